"""Check each path of a policy before it becomes a grant."""

from __future__ import annotations

from corral.paths.mounts import find_kind, read_kinds, read_mounts
from corral.paths.posix import is_below
from corral.policy.home_grants import refuse_home
from corral.policy.own_files import (
    Protected,
    check_own,
    find_hard_links,
    is_refused,
    own_paths,
    refuse_hard_links,
)
from corral.policy.path_grants import (
    SYSTEM_PATHS,
    Refused,
    check_links,
    contains,
    make_grant,
    merge_grants,
    resolve,
)
from corral.record import replace
from corral.safe_text import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corral.paths.mounts import Kinds, Mounts
    from corral.policy.model import Access, Grant, Source

    Written = tuple[Source, str, Access, str]


def check_grants(
    paths: Iterable[Written],
    home: str,
    outputs: Iterable[str],
    policies: Iterable[str],
    problems: list[tuple[str, str]],
) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants that pass all checks, and the mounts to hide below them. Add an error for
    each refused path to `problems`.
    """
    own = [*own_paths(home)]
    own += [Protected(path=path, what="a file of this run") for path in outputs]
    own += [Protected(path=path, what="the policy itself") for path in policies]
    mounts, kinds = read_mounts(), read_kinds()
    found: list[Grant] = []
    for source, where, access, path in paths:
        try:
            _refuse_home(access, path, home, own, mounts)
            grant = make_grant(access, path)
            if access != "socket" and find_kind(grant.path, kinds) == "kernel":
                raise Refused(
                    f"{shown(grant.path, 200)} belongs to the system", "grant your own files"
                )
            # `parts` allows grants inside corral's directory for packages, because an installer
            # needs a grant for the directory of one package. A server's request never gets such a
            # grant.
            is_request = source.trust == "request"
            check_own(
                grant, [replace(one, parts=False) for one in own] if is_request else own, mounts
            )
            check_approved_path(source, grant)
        except Refused as error:
            problems.append((f"{where}: {error}", error.hint))
        else:
            found.append(grant)
    covered: list[str] = []
    try:
        check_links(found)
        linked = find_hard_links() if any(one.access == "write" for one in found) else frozenset()
        for grant in found:
            refuse_hard_links(grant, linked)
            covered += _check_mounts(grant, found, home, own, mounts, kinds=kinds)
    except Refused as error:
        problems.append((str(error), error.hint))
    # Leave out a mount inside another hidden mount, because it cannot be reached anyway.
    top = [path for path in covered if not any(is_below(path, other) for other in covered)]
    return merge_grants(found), tuple(dict.fromkeys(top))


def _refuse_home(
    access: Access, written: str, home: str, own: Sequence[Protected], mounts: Mounts
) -> None:
    def is_granted(path: str) -> bool:
        return not is_refused(access, path, own, mounts)

    refuse_home(
        resolve(written, is_socket=access == "socket"), home, mounts, f"--{access} {{}}", is_granted
    )


def check_approved_path(source: Source, grant: Grant) -> None:
    """Refuse a requested path that no longer resolves to the file that the user approved."""
    resolved = source.manifest.resolved
    if source.trust == "request" and resolved is not None:
        seen = dict(resolved).get(grant.written)
        if seen != grant.path:
            raise Refused(f"{grant.written!r} no longer leads to the file that you approved")


def _check_mounts(
    grant: Grant,
    grants: Sequence[Grant],
    home: str,
    own: Sequence[Protected],
    mounts: Mounts,
    *,
    kinds: Kinds,
) -> list[str]:
    """Return the mounts below a grant that the target must not see: kernel file systems, and mounts
    that contain one of SYSTEM_PATHS or are inside one.

    Refuse the grant if another mount below it contains the home directory or corral's own files.
    Also refuse it if a network file system is below it and has no grant of its own.
    """
    covered: list[str] = []
    named = {one.path for one in grants}
    for point, kind in kinds.items():
        if not is_below(point, grant.path):
            continue
        of_system = any(
            contains(system, point, mounts) or contains(point, system, mounts)
            for system in SYSTEM_PATHS
        )
        if kind == "kernel" or of_system:
            covered.append(point)
        elif kind == "network" and point not in named:
            from shlex import quote

            raise Refused(
                f"{shown(grant.path, 200)} contains the network file system {shown(point, 200)}",
                f"if the server needs it, grant it too: --{grant.access} {quote(point)}",
            )
        else:
            refuse_home(point, home, mounts, f"--{grant.access} {{}}")
            check_own(replace(grant, path=point), own, mounts)
    return covered
