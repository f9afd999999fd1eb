"""Define the flags of `run` that set what a target may do, and make a manifest from them.

Most flags set a key of the policy. The policy's schema defines the names of these flags, and the
kinds of values that they take.
"""

from __future__ import annotations

import os

from corral.cli.option_parser import Flag, Options
from corral.platforms.deadlines import GRACE_SECONDS
from corral.policy.schema import BY_PATH, LISTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.policy.manifest import Manifest

GRANTING = {"network", "filesystem", "subprocess", "environment", "mcp"}
"""Flags for keys in these sections of the policy can allow something that was denied."""
PLACEHOLDERS = {
    "size": "SIZE", "cpu": "CORES", "duration": "TIME", "count": "N", "paths": "PATH",
    "destinations": "HOST[:PORT]", "ports": "PORT", "names": "NAME", "patterns": "NAME",
}  # fmt: skip


def _flag(path: str, text: str, value: str = "") -> Flag:
    key = BY_PATH[path]
    value = value or PLACEHOLDERS.get(key.kind, "")
    return Flag(name=key.flag, value=value, many=key.kind in LISTS, help=text, key=path)


FLAGS = (
    Flag(name="--profile", value="NAME", help="a curated policy; `corral profiles` lists them"),
    Flag(name="--policy", value="FILE|JSON", help="policy file, or JSON text; flags override it"),
    _flag("limits.memory", "memory of all processes together, e.g. 512M (default: 1G)"),
    _flag(
        "limits.cpu",
        "processor cores, e.g. 0.5 or 500m; an integer means millicores (default: none)",
    ),
    _flag("limits.cpu_time", "CPU time of all processes together, e.g. 10m (default: none)"),
    _flag("limits.pids", "number of processes and threads (default: 128)"),
    _flag("limits.fds", "number of open files of each process (default: 1024)"),
    _flag("limits.disk", "size of the private writable space, and of each file (default: 1G)"),
    _flag(
        "limits.timeout",
        f"time until SIGTERM, e.g. 60s (default: none); SIGKILL follows {GRACE_SECONDS:g} s later",
    ),
    _flag("network.allow", "a destination that the server may reach, e.g. api.github.com:443"),
    _flag("network.listen", "a port of the server that this host may reach on loopback, e.g. 8080"),
    _flag("filesystem.read", "a file or directory that the server may read"),
    _flag("filesystem.write", "a file or directory that the server may change"),
    _flag(
        "filesystem.own_unix_sockets",
        "let the server's processes use unix sockets among themselves",
    ),
    _flag("filesystem.state", "keep the server's home directory between runs"),
    Flag(name="--no-state", help="do not keep the home directory, even if a policy says so"),
    _flag("subprocess.allow", "let the server start other processes"),
    _flag("environment.pass", "pass an environment variable, or set it", "NAME[=VALUE]"),
    _flag("environment.secrets", "pass a variable whose value is never printed"),
    _flag(
        "mcp.tools.allow", "a tool that the client may use, e.g. 'read_*'; other tools are hidden"
    ),
    _flag(
        "mcp.pins", "hide tools that differ from their pins, or only warn about them", "refuse|warn"
    ),
    Flag(
        name="--config",
        value="KEY=VALUE",
        many=True,
        help="a setting of a bundle or registry server",
    ),
    Flag(
        name="--with",
        value="REQUIREMENT",
        many=True,
        help="another package to install together with a pypi: package",
    ),
    Flag(
        name="--python",
        value="VERSION|PATH",
        help="run a pypi: package with this installed Python, e.g. 3.12",
    ),
    Flag(
        name="--node",
        value="VERSION|PATH",
        help="run an npm: package with this installed Node.js, e.g. 22",
    ),
    Flag(name="--allow-install-scripts", help="let a package run code while it is installed"),
    Flag(
        name="--learn-until",
        value="TIME",
        help="record the files that the server does not find until then, e.g. 2030-01-31T12:00:00Z",
    ),
    Flag(name="--start-in", value="DIRECTORY", help="refuse to start in any other directory"),
    Flag(
        name="--strict",
        help="refuse if a default limit cannot be enforced; stop if a hidden file is replaced",
    ),
    Flag(name="--best-effort", help="run with a warning if a control cannot be enforced"),
)
OUTPUTS = (
    Flag(
        name="--report",
        value="FILE",
        help="write a report of the run: JSON, or a page if FILE ends in .html",
    ),
    Flag(
        name="--audit", value="FILE", help="append every denial to FILE, a hash chain of JSON lines"
    ),
)
"""Flags that name files that a run writes. No grant may contain such a file."""
VERBOSE = Flag(name="--verbose", short="-v", help="print every warning, not only new ones")
ALL = (*FLAGS, *OUTPUTS, VERBOSE)


def list_grants(options: Options) -> list[str]:
    """Return the words of the flags that grant something, without the values of environment
    variables.
    """
    words: list[str] = []
    for flag in FLAGS:
        if flag.key.partition(".")[0] not in GRANTING:
            continue
        if not flag.value:
            words += [flag.name] if options.has(flag.name) else []
        for value in options.all(flag.name) if flag.value else ():
            words += [flag.name, _strip_value(flag.key, value)]
    return words


def _strip_value(key: str, value: str) -> str:
    """Return a flag's value, as an absolute path if it is a path. For `NAME=VALUE`, return only the
    name.
    """
    if key.startswith("environment."):
        return value.partition("=")[0]
    if BY_PATH[key].kind == "paths":
        return os.path.abspath(os.path.expanduser(value))
    return value


def to_manifest(options: Options) -> Manifest | None:
    """Return the flags as a manifest, or None if none of them affects the policy."""
    chosen = [flag for flag in FLAGS if flag.key and options.has(flag.name)]
    best_effort, strict = options.has("--best-effort"), options.has("--strict")
    forget = options.has("--no-state")
    if not (chosen or best_effort or strict or forget):
        return None
    from corral.policy.manifest import from_flags

    values: dict[str, object] = {}
    for flag in chosen:
        if flag.many:
            values[flag.key] = list(options.all(flag.name))
        else:
            values[flag.key] = options.get(flag.name) if flag.value else True
    given = [item.partition("=") for item in options.all("--env")]
    if given:
        values["environment.pass"] = [name for name, equals, _ in given if not equals]
        values["environment.set"] = {name: value for name, equals, value in given if equals}
    values = {key: value for key, value in values.items() if value or isinstance(value, str)}
    if forget:
        values["filesystem.state"] = False
    return from_flags(values, best_effort=best_effort or None, strict=strict or None)
