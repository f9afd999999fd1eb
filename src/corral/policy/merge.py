"""Merge all sources into one Policy.

A server's request can loosen the policy only after the user has approved it. All problems are
collected and reported together.
"""

from __future__ import annotations

from corral.errors import PolicyError
from corral.policy.model import LIMITS, Limits, Macos, Mcp, Policy, Windows
from corral.policy.schema import MAX_PORTS, SWITCHES
from corral.policy.variables import is_loader_variable
from corral.record import fields, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from corral.policy.manifest import Manifest
    from corral.policy.model import Access, Control, Grant, Source

PATHS: tuple[tuple[str, str, Access], ...] = (
    ("read", "filesystem.read", "read"),
    ("write", "filesystem.write", "write"),
    ("unix_sockets", "filesystem.unix_sockets", "socket"),
)
USERS_ALONE = ("strict_handles", "strict_grants", "listen_everywhere")
"""Settings that only the user can turn on. A request cannot, even if it is approved."""
LOWER = "lower this limit, or raise the ceiling"
ONE_PORT = "use a different port for one of them"
MENTIONS: Mapping[Control, tuple[str, ...]] = {
    "filesystem": ("read", "write", "unix_sockets", "own_unix_sockets", "state"),
    "network": ("allow", "listen", "listen_everywhere"),
    "subprocess": ("subprocess",),
}


def merge(
    sources: Iterable[Source],
    *,
    ceilings: Manifest | None = None,
    home: str,
    cwd: str,
    protected: Sequence[str] = (),
) -> Policy:
    """Merge all sources, in order of increasing precedence, into one policy.

    The user's values override values from earlier sources. Lists from several sources are joined,
    but an empty list from the user removes the entries that earlier sources set. A request can
    always tighten the policy. Its grants take effect only if the user approved it, and never
    override the user's values.
    `protected` lists files of this run (report, audit) that no write grant may contain.
    """
    sources = tuple(sources)
    if any(source.trust == "request" and not source.approved for source in sources):
        from corral.policy.requests import refuse_unapproved

        refuse_unapproved(sources, home, cwd)
    problems = Problems()
    limits, stated_by = merge_limits(sources)
    stated: set[str] = {name for name in stated_by if limits[name] is not None}
    for wall, names in MENTIONS.items():
        if any(getattr(source.manifest, name) is not None for source in sources for name in names):
            stated.add(wall)
    if ceilings is not None:
        stated |= apply_ceilings(limits, stated_by, ceilings, problems)
    destinations, ports = merge_ports(sources, problems)
    grants, covered = make_grants(sources, home, cwd, protected, problems)
    problems.raise_all()
    switches = {name: merge_switch(sources, name) for name in SWITCHES}
    for name in USERS_ALONE:
        switches[name] = user_switch(sources, name)
    return replace(
        Policy(
            allow=destinations,
            listen=ports,
            grants=grants,
            covered=covered,
            stated=frozenset(stated),
            degrade=frozenset(str(item) for _, _, item in collect_entries(sources, "degrade")),
            best_effort=user_switch(sources, "best_effort"),
            strict=user_switch(sources, "strict"),
        ),
        limits=replace(Limits(), **limits),
        **{name: switches.pop(name) for name in fields(Policy()) if name in switches},
        macos=replace(Macos(), **{name: switches.pop(name) for name in fields(Macos())}),
        windows=replace(Windows(), network=switches.pop("windows_network"), **switches),
        mcp=merge_mcp(sources),
        **merge_environment(sources),
    )


class Problems(list[tuple[str, str]]):
    """Problems that prevent the sources from being merged, as (text, hint)."""

    def raise_all(self) -> None:
        if self:
            hints = dict.fromkeys(hint for _, hint in self if hint)
            first, *details = (text for text, _ in self)
            raise PolicyError(first, hint="; ".join(hints) or None, details=details)


def is_larger(asked: int | None, than: int | None) -> bool:
    """Return whether the limit `asked` is larger than the limit `than`. None means unlimited, and
    is larger than every number.
    """
    return than is not None and (asked is None or asked > than)


def merge_limits(sources: Sequence[Source]) -> tuple[dict[str, int | None], dict[str, Manifest]]:
    """Return the value of each limit, and the manifest that set it. A default limit has no
    manifest.
    """
    values: dict[str, int | None] = {name: getattr(Limits(), name) for name in LIMITS}
    stated_by: dict[str, Manifest] = {}
    users = {
        name for source in sources if source.trust == "user" for name in source.manifest.limits
    }
    for source in sources:
        for name, value in source.manifest.limits.items():
            free = source.trust == "user" or (source.approved and name not in users)
            if free or not is_larger(value, values[name]):
                values[name] = value
                stated_by[name] = source.manifest
    return values, stated_by


def merge_switch(sources: Sequence[Source], name: str) -> object:
    value = SWITCHES[name]
    users = any(
        source.trust == "user" and getattr(source.manifest, name) is not None for source in sources
    )
    for source in sources:
        own = getattr(source.manifest, name)
        free = source.trust == "user" or own == SWITCHES[name] or (source.approved and not users)
        if own is not None and free:
            value = own
    return value


def user_switch(sources: Sequence[Source], name: str) -> bool:
    values = [getattr(source.manifest, name) for source in sources if source.trust == "user"]
    return next((value for value in reversed(values) if value is not None), False) is True


def collect_entries(sources: Sequence[Source], name: str) -> tuple[tuple[Source, int, object], ...]:
    """Return (source, index, entry) for each entry of a list: first the entries of approved
    requests, then the user's entries. An empty list from the user removes all entries before it.
    """
    found: list[tuple[Source, int, object]] = []
    for source in sorted(sources, key=lambda one: one.trust == "user"):
        listed = getattr(source.manifest, name)
        if source.trust == "user" and listed == ():
            found.clear()
        elif source.trust == "user" or source.approved:
            found += [(source, index, item) for index, item in enumerate(listed or ())]
    return tuple(found)


def merge_mcp(sources: Sequence[Source]) -> Mcp | None:
    """Return the settings of the MCP guard, or None if neither the user nor an approved request
    sets a key of `mcp`.

    A key that the user sets replaces the value from a request. If several of the user's sources set
    a list, the lists are joined, but an empty list removes the entries that earlier sources set.
    """
    asked: dict[str, object] = {}
    own: dict[str, object] = {}
    for source in sources:
        if source.trust == "request" and source.approved:
            asked.update(source.manifest.mcp)
    for source in sources:
        for name, value in source.manifest.mcp.items() if source.trust == "user" else ():
            before = own.get(name)
            if value and isinstance(value, tuple) and isinstance(before, tuple):
                value = (*before, *value)  # noqa: PLW2901
            own[name] = value
    found = {**asked, **own}
    return replace(Mcp(), **found) if found else None


def merge_environment(sources: Sequence[Source]) -> dict[str, object]:
    """Return the policy's fields for environment variables. If several sources name a variable, the
    last of them decides. The user's sources come after all requests.
    """
    found: dict[str, tuple[str, str]] = {}
    chosen: dict[str, bool] = {}
    for source in sorted(sources, key=lambda one: one.trust == "user"):
        counts = source.trust == "user" or source.approved
        manifest = source.manifest
        for name, value in manifest.set_values or ():
            if counts or not is_loader_variable(name):
                found[name] = ("set", value)
                chosen[name] = source.trust == "request" or source.given_values is not None
        if counts:
            found.update(dict.fromkeys(manifest.pass_names or (), ("pass", "")))
            found.update(dict.fromkeys(manifest.secret_names or (), ("secret", "")))
    # The secrets in a server's settings are passed to the server in environment variables. The
    # server chose the names of these variables, so they count as requested.
    filled = [one.manifest.secret_names or () for one in sources if one.given_values is not None]
    requested = {name for names in filled for name in names}
    return {
        "requested_names": tuple(
            name
            for name, (kind, _) in found.items()
            if (chosen[name] if kind == "set" else name in requested)
        ),
        "given_values": tuple(value for one in sources for value in one.given_values or ()),
        "pass_names": tuple(name for name, (kind, _) in found.items() if kind == "pass"),
        "secret_names": tuple(name for name, (kind, _) in found.items() if kind == "secret"),
        "set_values": tuple((name, text) for name, (kind, text) in found.items() if kind == "set"),
    }


def apply_ceilings(
    limits: dict[str, int | None],
    stated_by: Mapping[str, Manifest],
    ceilings: Manifest,
    problems: Problems,
) -> set[str]:
    """Lower default limits to their ceilings. Refuse a limit from a source if it is above its
    ceiling. Return the names of the limits that have a ceiling.
    """
    found: set[str] = set()
    for name, ceiling in ceilings.limits.items():
        if ceiling is None:
            continue
        found.add(name)
        if not is_larger(limits[name], ceiling):
            continue
        if name in stated_by:
            own, limit = stated_by[name].locate(f"limits.{name}"), f"ceilings.{name}"
            problems.append((f"{own} is above the ceiling at {ceilings.locate(limit)}", LOWER))
        limits[name] = ceiling
    return found


def merge_ports(
    sources: Sequence[Source], problems: Problems
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the allowed destinations and the published ports. Report a port that is in both,
    because on most hosts corral itself listens in the sandbox on the ports of the allowed
    destinations. The target could not listen there.
    """
    allow = {str(item): source for source, _, item in collect_entries(sources, "allow")}
    listen = {int(str(item)): source for source, _, item in collect_entries(sources, "listen")}
    if allow:
        from corral.network.rules import collect_ports

        for text, source in allow.items():
            for port in collect_ports([text], max_ports=MAX_PORTS).intersection(listen):
                one = source.manifest.locate("network.allow")
                other = listen[port].manifest.locate("network.listen")
                problems.append((f"{one}: {text} uses port {port}, and so does {other}", ONE_PORT))
        if len(collect_ports(allow, max_ports=MAX_PORTS)) > MAX_PORTS:
            problems.append((f"network.allow names more than {MAX_PORTS} ports in total", ""))
    if len(listen) > MAX_PORTS:
        problems.append((f"network.listen names more than {MAX_PORTS} ports in total", ""))
    return tuple(allow), tuple(listen)


def resolve_paths(
    sources: Sequence[Source], home: str, cwd: str, problems: Problems | None = None
) -> Iterator[tuple[Source, str, Access, str]]:
    """Yield (source, key path, access, absolute path) for each path from the user and from approved
    requests. Messages use the key path to name the entry. Add an error for each invalid path to
    `problems`.
    """
    from corral.policy.path_grants import Refused, make_absolute

    for name, key, access in PATHS:
        for source, index, item in collect_entries(sources, name):
            where = source.manifest.locate(f"{key}[{index}]")
            try:
                path = make_absolute(str(item), source.manifest.directory or cwd, home)
            except Refused as error:
                if problems is not None:
                    problems.append((f"{where}: {error}", error.hint))
                continue
            yield source, where, access, path


def make_grants(
    sources: Sequence[Source], home: str, cwd: str, protected: Sequence[str], problems: Problems
) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    """Return the grants, and the mounts below them that the target must not see."""
    if not any(getattr(source.manifest, name) for source in sources for name, _, _ in PATHS):
        return (), ()
    from corral.policy.grant_checks import check_grants

    paths = resolve_paths(sources, home, cwd, problems)
    # A target that can change the user's policy could grant itself everything in the next run.
    files = {source.manifest.file for source in sources if source.trust == "user"} - {""}
    return check_grants(paths, home, protected, sorted(files), problems)
