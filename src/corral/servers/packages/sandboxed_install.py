"""Runs one command of a package manager in a sandbox, and reads what it left.

The package manager sees the system, itself, and one staging directory. It reaches only the hosts of
its registry, and gets only the settings of the user that it needs. The staging directory is checked
afterwards, when none of its processes runs any more.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO
from urllib.parse import urlsplit

from corral.api.launch import launch
from corral.api.sandbox import Sandbox, end_zygote
from corral.errors import SandboxError
from corral.network.guard import find_refusal
from corral.policy.user_config import load
from corral.safe_text import printable, shown
from corral.servers.packages.sources import Registry
from corral.servers.reference import Reference
from corral.servers.registry.download import is_progress_shown, show_progress
from corral.servers.store.tree import check_tree

LIMITS: Mapping[str, object] = {"memory": "4G", "disk": "4G", "pids": 512, "timeout": "15m"}
MAX_LOG_LINES = 12
MAX_LOG_BYTES = 1 << 16
MAX_FILE_BYTES = 32 << 20
PROGRESS_SECONDS = 0.2
NPM_LOG_NOTE = "A complete log of this run"
SANDBOX_HINT = (
    "packages are installed inside walls with network access to their registry only; see"
    " `corral doctor` for what is missing here"
)


def run_installer(
    argv: Sequence[str],
    *,
    staging: str,
    registry: Registry,
    label: str,
    settings: Mapping[str, str],
    subprocess: bool = False,
    reads: Sequence[str] = (),
    links: tuple[str, ...] = (),
) -> None:
    """Run the command. An error has the last lines of its output. `links` may lead out."""
    policy: dict[str, object] = {
        "limits": _read_limits(),
        "network": {"allow": urls_to_rules(registry.urls)},
        "filesystem": {"write": [staging], "read": [*registry.reads, *reads]},
        "subprocess": {"allow": subprocess},
        "environment": {
            "set": {**settings, **registry.settings},
            "secrets": list(registry.secrets),
        },
        # A missing limit is no reason to refuse: isolation is what counts here.
        "degrade": {"allow": ["memory", "pids", "disk", "timeout"]},
    }
    environment = {**os.environ, **registry.secrets}
    with tempfile.TemporaryFile() as log:
        try:
            with launch(
                argv, policy, stdin=-3, stdout=log, stderr=log, env=environment, cwd=staging
            ) as sandbox:
                code = _wait(sandbox, label)
        except SandboxError as problem:
            hint = f"{problem.hint}; {SANDBOX_HINT}" if problem.hint else SANDBOX_HINT
            raise SandboxError(f"cannot install {label}: {problem.message}", hint=hint) from problem
        finally:
            end_zygote()  # the server that follows is started by this very process
        if code:
            details = read_log_end(log, registry.hidden)
            why = f"cannot install {label}: the package manager failed:"
            raise SandboxError(why, hint=_find_hint(sandbox), details=details)
    # Before any file is opened: opening a pipe in place of a file would block for ever.
    check_tree(staging, allowed=links)


def _read_limits() -> dict[str, object]:
    """Return limits that are enough for a large package, except where the user has ceilings."""
    ceilings = load().ceilings
    lower = ceilings.limits if ceilings else {}
    return {name: value for name, value in LIMITS.items() if lower.get(name) is None}


def _wait(sandbox: Sandbox, label: str) -> int:
    """Wait for the end, and show progress meanwhile if stderr is a terminal."""
    started = time.monotonic()
    try:
        while True:
            try:
                return sandbox.wait(PROGRESS_SECONDS if is_progress_shown() else None)
            except TimeoutError:
                show_progress(f"installing {label} ... {time.monotonic() - started:.0f} s")
    except BaseException:
        sandbox.kill()  # nothing in there is worth waiting for
        raise
    finally:
        show_progress("")


def read_log_end(log: IO[bytes], hidden: Iterable[str]) -> list[str]:
    """Return the last lines of the installer's output, without secrets and control characters."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG_BYTES))
    text = log.read().decode(errors="replace")
    for secret in hidden:
        text = text.replace(secret, "***")
    # npm's note names a log file inside, which is gone.
    lines = [one.rstrip() for one in text.splitlines() if one.strip() and NPM_LOG_NOTE not in one]
    lines = lines[-MAX_LOG_LINES:]
    return ["".join(c if c.isprintable() else " " for c in line) for line in lines]


def _find_hint(sandbox: Sandbox) -> str:
    """Name the hosts that were denied: they are the likeliest reason of a failure."""
    report = sandbox.report
    names = sorted({row.destination for row in report.denials}) if report else []
    if names:
        return f"it tried to reach {', '.join(names[:3])}, which is not the registry"
    return "is the name right, and can the registry be reached?"


def urls_to_rules(urls: Sequence[str]) -> list[str]:
    """Return rules for the hosts and ports of these URLs.

    The gateway's guard refuses a name with a private or loopback address, unless a rule names the
    address too. Here the user chose the registry, so its addresses get rules.
    """
    found: dict[str, None] = {}
    for url in urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (80 if parts.scheme == "http" else 443)
        for one in (host, *_find_guarded_addresses(host, port)):
            found[f"[{one}]:{port}" if ":" in one else f"{one}:{port}"] = None
    return list(found)


def _find_guarded_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host that the guard would refuse."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = {(family, str(peer[0]).partition("%")[0]) for family, _, _, _, peer in found}
    return sorted(
        text
        for family, text in addresses
        if find_refusal(socket.inet_pton(family, text)) is not None
    )


def write_text(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.write(text)


def read_bounded_text(path: str) -> str:
    """Return the text of a file that an installer left, which may be as large as the disk."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise SandboxError(f"{shown(path, 200)} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return text


def read_json(path: str) -> dict[str, object]:
    try:
        data: object = json.loads(read_bounded_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{shown(path, 200)} cannot be read: {error}") from None
    return data if isinstance(data, dict) else {}


def choose_program(programs: Sequence[str], reference: Reference, default: str) -> str:
    """Choose as npx and uvx do: the named one, the only one, or the one named like the package."""
    if not programs:
        raise SandboxError(f"{reference.name} has no program to run: it is a library")
    if reference.program:
        if reference.program in programs:
            return reference.program
    elif len(programs) == 1:
        return programs[0]
    elif default in programs:
        return default
    what = reference.program or "one program"
    raise SandboxError(
        f"{reference.name} does not have {what}, but " + ", ".join(map(shown, sorted(programs))),
        hint=f"say which: {reference.text.partition('#')[0]}#{printable(min(programs))}",
    )
