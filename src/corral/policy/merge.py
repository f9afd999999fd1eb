"""Sources -> one Policy: who may say what, and whose word counts.

Every rule here keeps one promise: adding an unapproved request never loosens anything. What keeps
the sources from becoming a policy is collected and told at once.
"""

from __future__ import annotations

from corral.errors import PolicyError
from corral.policy.model import LIMITS, Limits, Macos, Policy, Windows
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corral.policy.manifest import Manifest
    from corral.policy.model import Access, Control, Grant, Source

# For each switch the value that asks for nothing, which is also the default.
SWITCHES: Mapping[str, object] = {
    "state": False,
    "subprocess": False,
    "app_container": True,
    "minifilter": True,
    "fail_on_app_container_error": True,
    "windows_network": "none",
    "keep_grants": False,
    "seatbelt": "auto",
}
PATHS: tuple[tuple[str, str, Access], ...] = (
    ("read", "filesystem.read", "read"),
    ("write", "filesystem.write", "write"),
    ("unix_sockets", "filesystem.unix_sockets", "socket"),
)
MENTIONS: Mapping[Control, tuple[str, ...]] = {
    "filesystem": ("read", "write", "unix_sockets", "state"),
    "network": ("allow", "listen"),
    "subprocess": ("subprocess",),
}
MOST_PORTS = 64


def merge(
    sources: Sequence[Source],
    ceilings: Manifest | None,
    *,
    home: str,
    cwd: str,
    protected: Sequence[str],
) -> Policy:
    refuse_unapproved(sources, home, cwd)
    problems = Problems()
    limits, said_by = limits_of(sources)
    stated = stated_walls(sources) | {name for name in said_by if limits[name] is not None}
    if ceilings is not None:
        stated |= apply_ceilings(limits, said_by, ceilings, problems)
    destinations, ports = check_ports(sources, problems)
    grants = grants_of(sources, home, cwd, protected, problems)
    problems.settle()
    switches = {name: switch_of(sources, name) for name in SWITCHES}
    return replace(
        Policy(
            allow=destinations,
            listen=ports,
            grants=grants,
            stated=frozenset(stated),
            degrade=frozenset(str(item) for _, _, item in entries_of(sources, "degrade")),
            best_effort=user_switch(sources, "best_effort"),
            strict=user_switch(sources, "strict"),
        ),
        limits=replace(Limits(), **limits),
        state=switches.pop("state"),
        subprocess=switches.pop("subprocess"),
        macos=replace(Macos(), seatbelt=switches.pop("seatbelt")),
        windows=replace(Windows(), network=switches.pop("windows_network"), **switches),
        **environment_of(sources),
    )


class Problems(list[tuple[str, str]]):
    """Everything that keeps the sources from becoming one policy, to be told at once."""

    def settle(self) -> None:
        if self:
            hints = dict.fromkeys(hint for _, hint in self if hint)
            raise PolicyError("\n".join(text for text, _ in self), hint="; ".join(hints) or None)


def larger(asked: int | None, than: int | None) -> bool:
    """None is no limit, which is larger than any."""
    return than is not None and (asked is None or asked > than)


def limits_of(sources: Sequence[Source]) -> tuple[dict[str, int | None], dict[str, Manifest]]:
    """The limits, and for each that anybody stated the manifest whose value it is."""
    values: dict[str, int | None] = {name: getattr(Limits(), name) for name in LIMITS}
    said_by: dict[str, Manifest] = {}
    users = {
        name for source in sources if source.trust == "user" for name in source.manifest.limits
    }
    for source in sources:
        for name, value in source.manifest.limits.items():
            free = source.trust == "user" or (source.approved and name not in users)
            if free or not larger(value, values[name]):
                values[name] = value
                said_by[name] = source.manifest
    return values, said_by


def switch_of(sources: Sequence[Source], name: str) -> object:
    value = SWITCHES[name]
    users = any(
        source.trust == "user" and getattr(source.manifest, name) is not None for source in sources
    )
    for source in sources:
        said = getattr(source.manifest, name)
        free = source.trust == "user" or said == SWITCHES[name] or (source.approved and not users)
        if said is not None and free:
            value = said
    return value


def user_switch(sources: Sequence[Source], name: str) -> bool:
    said = [getattr(source.manifest, name) for source in sources if source.trust == "user"]
    return next((value for value in reversed(said) if value is not None), False) is True


def entries_of(sources: Sequence[Source], name: str) -> tuple[tuple[Source, int, object], ...]:
    """(source, position in its list, entry): the approved requests' entries, then the user's."""
    found: list[tuple[Source, int, object]] = []
    for source in sorted(sources, key=lambda one: one.trust == "user"):
        listed = getattr(source.manifest, name)
        if source.trust == "user" and listed == ():
            found.clear()
        elif source.trust == "user" or source.approved:
            found += [(source, index, item) for index, item in enumerate(listed or ())]
    return tuple(found)


def environment_of(sources: Sequence[Source]) -> dict[str, object]:
    """Each name is passed, set or secret as whoever mentioned it last said; the user is last."""
    found: dict[str, tuple[str, str]] = {}
    for source in sorted(sources, key=lambda one: one.trust == "user"):
        counts = source.trust == "user" or source.approved
        manifest = source.manifest
        for name, value in manifest.set_values or ():
            if counts or not loads_code(name):
                found[name] = ("set", value)
        if counts:
            found.update(dict.fromkeys(manifest.pass_names or (), ("pass", "")))
            found.update(dict.fromkeys(manifest.secret_names or (), ("secret", "")))
    return {
        "pass_names": tuple(name for name, (kind, _) in found.items() if kind == "pass"),
        "secret_names": tuple(name for name, (kind, _) in found.items() if kind == "secret"),
        "set_values": tuple((name, text) for name, (kind, text) in found.items() if kind == "set"),
    }


def loads_code(name: str) -> bool:
    from corral.policy.variables import is_loader_variable

    return is_loader_variable(name)


def stated_walls(sources: Sequence[Source]) -> set[str]:
    return {
        wall
        for source in sources
        for wall, names in MENTIONS.items()
        if any(getattr(source.manifest, name) is not None for name in names)
    }


def apply_ceilings(
    limits: dict[str, int | None],
    said_by: Mapping[str, Manifest],
    ceilings: Manifest,
    problems: Problems,
) -> set[str]:
    """Lower defaults to their ceilings, refuse stated values above; what has one is stated."""
    held: set[str] = set()
    for name, ceiling in ceilings.limits.items():
        if ceiling is None:
            continue
        held.add(name)
        if not larger(limits[name], ceiling):
            continue
        if name in said_by:
            places = said_by[name].place(f"limits.{name}"), ceilings.place(f"ceilings.{name}")
            problems.append((f"{places[0]} is above the ceiling at {places[1]}", ""))
        limits[name] = ceiling
    return held


def check_ports(
    sources: Sequence[Source], problems: Problems
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Destinations and listening ports; they may not meet: one listener cannot serve both."""
    allow = {str(item): source for source, _, item in entries_of(sources, "allow")}
    listen = {int(str(item)): source for source, _, item in entries_of(sources, "listen")}
    if allow:
        from corral.network.rules import collect_ports

        for text, source in allow.items():
            for port in collect_ports([text], max_ports=MOST_PORTS).intersection(listen):
                places = (
                    source.manifest.place("network.allow"),
                    listen[port].manifest.place("network.listen"),
                )
                problems.append(
                    (f"{places[0]}: {text} uses port {port}, and so does {places[1]}", "")
                )
        if len(collect_ports(allow, max_ports=MOST_PORTS)) > MOST_PORTS:
            problems.append((f"network.allow names more than {MOST_PORTS} ports in all", ""))
    if len(listen) > MOST_PORTS:
        problems.append((f"network.listen names more than {MOST_PORTS} ports in all", ""))
    return tuple(allow), tuple(listen)


def paths_of(
    sources: Sequence[Source], home: str, cwd: str, problems: Problems | None = None
) -> Iterator[tuple[Source, str, Access, str]]:
    """(source, place, access, absolute path) for each path that counts."""
    from corral.policy.path_grants import Refused, absolute

    for name, key, access in PATHS:
        for source, index, item in entries_of(sources, name):
            place = source.manifest.place(f"{key}[{index}]")
            try:
                path = absolute(str(item), source.manifest.directory or cwd, home)
            except Refused as error:
                if problems is not None:
                    problems.append((f"{place}: {error}", error.hint))
                continue
            yield source, place, access, path


def grants_of(
    sources: Sequence[Source],
    home: str,
    cwd: str,
    protected: Sequence[str],
    problems: Problems,
) -> tuple[Grant, ...]:
    if not any(getattr(source.manifest, name) for source in sources for name, _, _ in PATHS):
        return ()
    from corral.policy.path_grants import (
        Protected,
        Refused,
        check_links,
        check_own,
        collapse,
        make,
        mounts,
        own_places,
    )

    own = [*own_places(home)]
    own += [Protected(path=path, what="a file of this run") for path in protected]
    # A target that can rewrite the user's policy grants itself everything in the next run.
    files = {source.manifest.file for source in sources if source.trust == "user"} - {""}
    own += [Protected(path=file, what="the policy itself") for file in sorted(files)]
    found: list[Grant] = []
    table = mounts()
    for source, place, access, path in paths_of(sources, home, cwd, problems):
        try:
            grant = make(access, path)
            check_own(grant, own, home, table)
            check_request(source, grant)
        except Refused as error:
            problems.append((f"{place}: {error}", error.hint))
            continue
        found.append(grant)
    try:
        check_links(found)
    except Refused as error:
        problems.append((str(error), error.hint))
    return collapse(found)


def check_request(source: Source, grant: Grant) -> None:
    """What a request's path leads to must be what the user approved."""
    from corral.policy.path_grants import Refused

    resolved = source.manifest.resolved
    if source.trust == "request" and resolved is not None:
        seen = dict(resolved).get(grant.written)
        if seen != grant.path:
            raise Refused(f"{grant.written!r} leads elsewhere than when it was approved")


def refuse_unapproved(sources: Sequence[Source], home: str, cwd: str) -> None:
    waiting = [one for one in sources if one.trust == "request" and not one.approved]
    if not waiting:
        return
    from corral.policy.requests import asks
    from corral.safe_text import printable

    users = tuple(one for one in sources if one.trust == "user")
    for source in waiting:
        open_asks = [
            ask.words
            for ask in asks(source.manifest, home, cwd)
            if not covered(ask.field, ask.item, users, home, cwd)
        ]
        if open_asks:
            origin = printable(source.manifest.origin)
            where = printable(source.manifest.directory) or origin
            raise PolicyError(
                f"{origin} asks for what you have not approved: to " + "; to ".join(open_asks),
                hint=f"look at it and run `corral approve {where}`",
            )


def covered(field: str, item: object, users: Sequence[Source], home: str, cwd: str) -> bool:
    """Has the user granted the same anyway? Then nothing is left to approve."""
    if field in LIMITS:
        return not larger(item if isinstance(item, int) else None, limits_of(users)[0][field])
    if field in SWITCHES:
        return switch_of(users, field) == item
    if field in {"read", "write", "unix_sockets"}:
        wanted = {"read": ("read", "write"), "write": ("write",)}.get(field, ("socket",))
        granted = {(access, path) for _, _, access, path in paths_of(users, home, cwd)}
        return any((access, item) in granted for access in wanted)
    if field in {"pass_names", "secret_names", "set_values"}:
        names = environment_of(users).values()
        flat = [entry for group in names if isinstance(group, tuple) for entry in group]
        return item in {entry[0] if isinstance(entry, tuple) else entry for entry in flat}
    if field == "degrade" and user_switch(users, "best_effort"):
        return True
    return item in {entry for _, _, entry in entries_of(users, field)}
