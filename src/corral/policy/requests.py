"""Describe in plain words what a server's own manifest requests beyond corral's defaults.

A request may tighten the policy without approval. The items described here loosen it, so they take
effect only after the user has approved them.
"""

import os
from collections.abc import Iterator, Sequence

from corral.directories import home_directory
from corral.errors import PolicyError
from corral.network.rules import describe_entry
from corral.policy.manifest import Manifest
from corral.policy.merge import (
    collect_entries,
    is_larger,
    merge_environment,
    merge_limits,
    merge_switch,
    resolve_paths,
    user_switch,
)
from corral.policy.model import LIMITS, Limits, Source, format_limit
from corral.policy.path_grants import Refused, make_absolute
from corral.policy.schema import KEYS, MCP, SWITCHES
from corral.policy.secret_files import MAKES_GIT_RUN, VERSION_CONTROL
from corral.policy.variables import is_loader_variable
from corral.record import record
from corral.safe_text import printable, shell_word, shown

SWITCH_TEXTS = {
    "listen_everywhere": "be reached from other machines",
    "own_unix_sockets": "use unix sockets among its own processes",
    "state": "keep a home directory of its own between runs",
    "subprocess": "start other programs",
    "app_container": "run without an AppContainer (Windows)",
    "minifilter": "run without the filter driver (Windows)",
    "fail_on_app_container_error": "run without an AppContainer if it cannot be created (Windows)",
    "windows_network": "use the network (Windows)",
    "keep_grants": "leave permissions behind (Windows)",
    "strict_handles": "be stopped when it uses a closed handle (Windows)",
    "strict_grants": "be refused if a grant contains secrets or self-starting files (Windows)",
    "seatbelt": "run without Seatbelt (macOS)",
    "disclaim": "use the privacy consents of the program that starts corral (macOS)",
    "trustd": "have certificates checked outside the sandbox (macOS)",
}
GUARD = "mcp"  # `RequestedItem.field` of an item that changes a setting of the MCP guard
PATHS = (("read", "read"), ("write", "read and write"), ("unix_sockets", "connect to the socket"))


@record
class RequestedItem:
    """One item that a server requests. `field` is a field of Manifest, the name of a limit, or
    GUARD. `value` is the limit, the list entry or the value of the setting. For an environment
    variable and for a setting of the MCP guard, `value` is only the name. `text` describes the item
    for the user.
    """

    field: str
    value: object
    text: str


def describe_requests(manifest: Manifest) -> list[str]:
    return [item.text for item in requested_items(manifest, home_directory(), os.getcwd())]


def requested_items(manifest: Manifest, home: str, cwd: str) -> Iterator[RequestedItem]:
    """Yield each item that a manifest requests beyond the defaults. Paths are made absolute, so
    that users see what they approve.
    """
    yield from _limits(manifest)
    base = manifest.directory or cwd
    for field, verb in PATHS:
        for text in getattr(manifest, field) or ():
            yield _path(field, verb, text, base, home)
    for destination in manifest.allow or ():
        text = f"connect to {describe_entry(destination)}"
        yield RequestedItem(field="allow", value=destination, text=text)
    for port in manifest.listen or ():
        text = f"be reached on port {port} of this machine"
        yield RequestedItem(field="listen", value=port, text=text)
    for field, default in SWITCHES.items():
        value = getattr(manifest, field)
        if value is not None and value != default:
            more = f": {value}" if isinstance(value, str) else ""
            yield RequestedItem(field=field, value=value, text=SWITCH_TEXTS[field] + more)
    for name in manifest.pass_names or ():
        text = f"see the environment variable {name}"
        yield RequestedItem(field="pass_names", value=name, text=text)
    for name in manifest.secret_names or ():
        yield RequestedItem(field="secret_names", value=name, text=f"see the secret {name}")
    for name, value in manifest.set_values or ():
        if is_loader_variable(name):
            text = f"set {name} to {shown(value)}, which changes what programs load or trust"
            yield RequestedItem(field="set_values", value=name, text=text)
    for name, value in manifest.mcp.items():
        path = next(key.path for key in KEYS if key.path.startswith(MCP) and key.field == name)
        words = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        text = f"set {path} to {shown(words)}"
        yield RequestedItem(field=GUARD, value=name, text=text)
    for control in manifest.degrade or ():
        text = f"run even if {control} cannot be enforced"
        yield RequestedItem(field="degrade", value=control, text=text)


def _limits(manifest: Manifest) -> Iterator[RequestedItem]:
    for name, value in manifest.limits.items():
        default: int | None = getattr(Limits(), name)
        if is_larger(value, default):
            usual = format_limit(name, default)
            text = f"set limits.{name} to {format_limit(name, value)} (default {usual})"
            yield RequestedItem(field=name, value=value, text=text)


def _path(field: str, verb: str, text: str, base: str, home: str) -> RequestedItem:
    try:
        path = make_absolute(text, base, home)
    except Refused:
        return RequestedItem(field=field, value=text, text=f"{verb} {shown(text, 200)}")
    real = os.path.realpath(path)
    more = "" if real == path else f" (leads to {printable(real)})"
    if field == "write" and os.path.basename(real) in VERSION_CONTROL:
        more += f": {MAKES_GIT_RUN}"
    return RequestedItem(field=field, value=path, text=f"{verb} {printable(path)}{more}")


def refuse_unapproved(sources: Sequence[Source], home: str, cwd: str) -> None:
    """Refuse an unapproved request that asks for more than the user's own sources grant."""
    users = tuple(one for one in sources if one.trust == "user")
    for source in sources:
        if source.trust == "user" or source.approved:
            continue
        texts = [
            item.text
            for item in requested_items(source.manifest, home, cwd)
            if not _is_granted(item.field, item.value, users, home, cwd)
        ]
        if texts:
            origin = printable(source.manifest.origin)
            where = shell_word(source.manifest.directory or source.manifest.origin)
            raise PolicyError(
                f"{origin} asks for more than you approved: to " + "; to ".join(texts),
                hint=f"check this list, then run `corral approve {where}`",
            )


def _is_granted(field: str, value: object, users: Sequence[Source], home: str, cwd: str) -> bool:
    """Return whether the user's own sources already grant this item."""
    if field in LIMITS:
        own = merge_limits(users)[0][field]
        return not is_larger(value if isinstance(value, int) else None, own)
    if field in SWITCHES:
        return merge_switch(users, field) == value
    if field in {"read", "write", "unix_sockets"}:
        wanted = {"read": ("read", "write"), "write": ("write",)}.get(field, ("socket",))
        granted = {(access, path) for _, _, access, path in resolve_paths(users, home, cwd)}
        return any((access, value) in granted for access in wanted)
    if field == GUARD:
        return any(value in one.manifest.mcp for one in users)
    if field in {"pass_names", "secret_names", "set_values"}:
        names = merge_environment(users).values()
        flat = [entry for group in names if isinstance(group, tuple) for entry in group]
        return value in {entry[0] if isinstance(entry, tuple) else entry for entry in flat}
    if field == "degrade" and user_switch(users, "best_effort"):
        return True
    return value in {entry for _, _, entry in collect_entries(users, field)}
