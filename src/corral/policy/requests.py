"""What a server's own manifest asks for beyond corral's defaults, in plain words.

Tightening is nobody's concern; everything here counts only after the user approved it.
"""

from __future__ import annotations

import os

from corral.policy.merge import SWITCHES, larger
from corral.policy.model import Limits
from corral.policy.path_grants import Refused, absolute
from corral.policy.variables import is_loader_variable
from corral.record import record
from corral.safe_text import printable, shown
from corral.units import format_cpu, format_duration, format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from corral.policy.manifest import Manifest

WORDS = {
    "state": "keep a private directory between runs",
    "subprocess": "start other programs",
    "app_container": "run without an AppContainer (Windows)",
    "minifilter": "run without the filter driver (Windows)",
    "fail_on_app_container_error": "run without an AppContainer if it cannot be made (Windows)",
    "windows_network": "use the network (Windows)",
    "keep_grants": "leave permissions behind (Windows)",
    "seatbelt": "run without Seatbelt (macOS)",
}
PATHS = (("read", "read"), ("write", "read and write"), ("unix_sockets", "connect to the socket"))
FORMATS: dict[str, Callable[[int | None], str]] = {
    "cpu": format_cpu,
    "cpu_time": format_duration,
    "timeout": format_duration,
    "pids": lambda value: "none" if value is None else str(value),
    "fds": lambda value: "none" if value is None else str(value),
}


@record
class Ask:
    """`field` is the manifest's, `item` what was asked of it: a limit, an entry, a value."""

    field: str
    item: object
    words: str


def asks(manifest: Manifest, home: str, cwd: str) -> Iterator[Ask]:
    """Everything asked for, with each path made absolute so that people see what they approve."""
    yield from ask_limits(manifest)
    base = manifest.directory or cwd
    for field, verb in PATHS:
        for text in getattr(manifest, field) or ():
            yield ask_path(field, verb, text, base, home)
    for destination in manifest.allow or ():
        yield Ask(field="allow", item=destination, words=f"connect to {destination}")
    for port in manifest.listen or ():
        yield Ask(field="listen", item=port, words=f"be reached on port {port} of this machine")
    for field, tight in SWITCHES.items():
        value = getattr(manifest, field)
        if value is not None and value != tight:
            more = f": {value}" if isinstance(value, str) else ""
            yield Ask(field=field, item=value, words=WORDS[field] + more)
    for name in manifest.pass_names or ():
        yield Ask(field="pass_names", item=name, words=f"see the environment variable {name}")
    for name in manifest.secret_names or ():
        yield Ask(field="secret_names", item=name, words=f"see the secret {name}")
    for name, value in manifest.set_values or ():
        if is_loader_variable(name):
            words = f"set {name} to {shown(value)}, which changes what programs load or trust"
            yield Ask(field="set_values", item=name, words=words)
    for control in manifest.degrade or ():
        yield Ask(field="degrade", item=control, words=f"run even if {control} cannot be enforced")


def ask_limits(manifest: Manifest) -> Iterator[Ask]:
    defaults = Limits()
    for name, value in manifest.limits.items():
        usual: int | None = getattr(defaults, name)
        if larger(value, usual):
            show = FORMATS.get(name, format_size)
            words = f"have {name} {show(value)} (default {show(usual)})"
            yield Ask(field=name, item=value, words=words)


def ask_path(field: str, verb: str, text: str, base: str, home: str) -> Ask:
    try:
        path = absolute(text, base, home)
    except Refused:
        return Ask(field=field, item=text, words=f"{verb} {shown(text, 200)}")
    leads = os.path.realpath(path)
    more = "" if leads == path else f" (leads to {printable(leads)})"
    return Ask(field=field, item=path, words=f"{verb} {printable(path)}{more}")
