"""One command of a package manager, run behind corral's own walls.

It sees the system, itself, and one staging directory; it reaches the hosts of its registry and
nothing else; of the user's settings it gets those that it needs. What it leaves in the staging
directory is looked at afterwards, when nothing of it runs any more.
"""

from __future__ import annotations

import os
import tempfile
import time

from corral.errors import SandboxError
from corral.servers.packages import progress
from corral.servers.store.tree import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    from corral.api.sandbox import Sandbox
    from corral.servers.packages.source import Registry

LIMITS: Mapping[str, object] = {"memory": "4G", "disk": "4G", "pids": 512, "timeout": "15m"}
TOLD = 12
NO_LOG = "A complete log of this run"
LINKS = ("bin/python",)
"""Made by corral itself: a virtual environment is a link to its interpreter."""
LONGEST_LOG = 1 << 16
TICK = 0.2
WALLED = (
    "packages are installed inside walls with network access to their registry only; see"
    " `corral doctor` for what is missing here"
)


def run(
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
    """Raises with the last lines of what it said when it failed; `links` may lead out."""
    from corral.api.launch import launch
    from corral.api.sandbox import let_go

    policy: dict[str, object] = {
        "limits": limits(),
        "network": {"allow": destinations(registry.urls)},
        "filesystem": {"write": [staging], "read": [*registry.reads, *reads]},
        "subprocess": {"allow": subprocess},
        "environment": {
            "set": {**settings, **registry.settings},
            "secrets": list(registry.secrets),
        },
        # The walls are what counts here; a limit that this host lacks is no reason to refuse.
        "degrade": {"allow": ["memory", "pids", "disk", "timeout"]},
    }
    environment = {**os.environ, **registry.secrets}
    with tempfile.TemporaryFile() as log:
        try:
            with launch(
                argv, policy, stdin=-3, stdout=log, stderr=log, env=environment, cwd=staging
            ) as sandbox:
                code = wait(sandbox, label)
        except SandboxError as problem:
            hint = f"{problem.hint}; {WALLED}" if problem.hint else WALLED
            raise SandboxError(f"cannot install {label}: {problem.message}", hint=hint) from problem
        finally:
            let_go()  # the server that follows is started by this very process
        if code:
            why = told(log, registry.hidden)
            hint = refused(sandbox) or "is the name right, and can the registry be reached?"
            raise SandboxError(f"cannot install {label}: {why}", hint=hint)
    # Before anything of it is opened: a pipe in place of a file would hold us for ever.
    check(staging, allowed=links)


def limits() -> dict[str, object]:
    """Room for a large package; where the user's ceilings are lower, those."""
    from corral.policy.user_config import load

    ceilings = load().ceilings
    lower = ceilings.limits if ceilings else {}
    return {name: value for name, value in LIMITS.items() if lower.get(name) is None}


def wait(sandbox: Sandbox, label: str) -> int:
    """Until it has ended, with a line of progress for a person who looks."""
    started = time.monotonic()
    try:
        while True:
            try:
                return sandbox.wait(TICK if progress.is_shown() else None)
            except TimeoutError:
                progress.show(f"installing {label} ... {time.monotonic() - started:.0f} s")
    except BaseException:
        sandbox.kill()  # nothing in there is worth waiting for
        raise
    finally:
        progress.show("")


def told(log: IO[bytes], hidden: Iterable[str]) -> str:
    """The last lines of what it said; they come from strangers, and never hold a secret."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - LONGEST_LOG))
    text = log.read().decode(errors="replace")
    for secret in hidden:
        text = text.replace(secret, "***")
    # npm's own log was written inside, where nobody can look for it.
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and NO_LOG not in line]
    clean = ["".join(c if c.isprintable() else " " for c in line) for line in lines[-TOLD:]]
    return "\n  ".join(["the package manager failed:", *clean])


def refused(sandbox: Sandbox) -> str:
    """What the walls stopped is the likeliest reason."""
    report = sandbox.report
    names = sorted({row.destination for row in report.denials}) if report else []
    return f"it tried to reach {', '.join(names[:3])}, which is not the registry" if names else ""


def destinations(urls: Sequence[str]) -> list[str]:
    """The hosts and ports of these URLs, as rules.

    A name that leads to a private or loopback address is refused by the gateway's guard unless the
    address is named too. Here the name is the user's own registry, so its addresses are.
    """
    from urllib.parse import urlsplit

    found: dict[str, None] = {}
    for url in urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (80 if parts.scheme == "http" else 443)
        found[rule(host, port)] = None
        found.update(dict.fromkeys(rule(one, port) for one in guarded(host, port)))
    return list(found)


def rule(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def guarded(host: str, port: int) -> list[str]:
    """The addresses of a host that the guard would refuse."""
    import socket

    from corral.network.guard import find_refusal

    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = {(family, str(place[0]).partition("%")[0]) for family, _, _, _, place in found}
    return sorted(
        text
        for family, text in addresses
        if find_refusal(socket.inet_pton(family, text)) is not None
    )
