"""Run one command of a package manager in a sandbox, and read its result.

In the sandbox the package manager can read only the system's files, its own files and one staging
directory. It can reach only the hosts of its registry, and gets only the user's settings that it
needs. After all its processes have ended, corral checks the staging directory.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from corral.api.launch import launch
from corral.api.policy_dict import LimitsDict, PolicyDict
from corral.api.sandbox import Sandbox, end_zygote
from corral.errors import SandboxError
from corral.network.guard import find_refusal
from corral.policy.merge import is_larger
from corral.policy.model import GIB, Limits, format_limit
from corral.policy.user_config import load
from corral.record import replace
from corral.safe_text import shown
from corral.servers.packages.install_errors import SILENT, UNREACHABLE, explain_failure
from corral.servers.packages.sources import Registry
from corral.servers.reference import NAME, Reference, is_name, parse_reference
from corral.servers.registry.download import is_progress_shown, show_progress
from corral.servers.store.store import UnfinishedError, make_downloads
from corral.servers.store.tree import check_tree

if TYPE_CHECKING:
    from corral.policy.model import Control

LIMITS = Limits(memory=4 * GIB, disk=4 * GIB, pids=512, timeout=15 * 60 * 1000)
"""The limits of an installation. They are high enough for a large package, but the user's ceilings
may lower them.
"""
MAX_ANSWER_MS = 30_000
"""How long an interpreter may take to print its version."""
DEGRADABLE: list["Control"] = ["memory", "pids", "disk", "timeout"]
"""Limits that are dropped if this host cannot enforce them, so that an installation is refused only
if a wall is missing.
"""
MAX_LOG_LINES = 12
MAX_LOG_BYTES = 1 << 16
MAX_SHOWN_COLUMNS = 400
MAX_FILE_BYTES = 32 << 20
PROGRESS_SECONDS = 0.2
SILENT_SECONDS = 12
FETCH_SECONDS = 30  # how long a package manager waits for an answer from its registry
CACHES = ("UV_CACHE_DIR", "npm_config_cache")
CACHE_MARKS = frozenset({".lock", ".git", ".gitignore", "CACHEDIR.TAG", "_lastUpdateCheck"})
LOCAL_CACHES = ("_logs", "interpreter-")
"""Files in directories whose names begin with these words do not count as downloads, because npm
(for its log) and uv (for facts about an interpreter) write to them even if the registry does not
answer.
"""
NPM_LOG_NOTES = ("A complete log of this run", "/.npm/_logs/")
SANDBOX_HINT = (
    "packages are installed in a sandbox with network access to their registry only;"
    " `corral doctor` shows what is missing here"
)

Notify = Callable[[str], None]
MAX_ANSWER_BYTES = 4096

# Only denials of these kinds are named in a hint. Other denials do not make an installation fail.
# For example, pip works even if it is not allowed to start `lsb_release`.
HOST_KINDS = frozenset({"name", "port", "address", "guard", "sni"})


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
    notify: Notify = lambda _: None,
) -> list[str]:
    """Run a command of the package manager, and return the end of its output. Raise SandboxError if
    the command fails.

    After the run, links out of the staging directory are refused, except those in `links`. If the
    registry does not answer, `notify` is called with a message for the user.
    """
    downloads = make_downloads(staging)
    _remove_repository_marks(downloads)
    policy = build_policy(staging, registry, settings, subprocess=subprocess, reads=reads)
    environment = {**os.environ, **registry.secrets}
    with tempfile.TemporaryFile() as log:
        try:
            with launch(
                argv, policy, stdin=-3, stdout=log, stderr=log, env=environment, cwd=staging
            ) as sandbox:
                code = _wait(sandbox, label, silence=_Silence(downloads, registry, notify))
        except SandboxError as problem:
            hint = f"{problem.hint}; {SANDBOX_HINT}" if problem.hint else SANDBOX_HINT
            raise SandboxError(f"cannot install {label}: {problem.message}", hint=hint) from problem
        finally:
            end_zygote()  # the zygote was started only for the installation
        details = read_log_end(log, registry.hidden)
        if code:
            raise _build_error(sandbox, details[-MAX_LOG_LINES:], label)
    # Check the tree before opening any file in it, because opening a named pipe would block
    # forever.
    check_tree(staging, allowed=links)
    return details


def ask_program(argv: Sequence[str]) -> str:
    """Run a program in a sandbox without network access or grants. Return its output, or "" if it
    fails.

    corral uses this function to ask interpreters for their versions. They need a sandbox, because
    a client's configuration may name any file as an interpreter, and a server with a write grant
    may have replaced that file.
    """
    policy: PolicyDict = {
        "limits": lower_limits(replace(LIMITS, timeout=MAX_ANSWER_MS)),
        "subprocess": {"allow": True},  # some interpreters are shell scripts
        "degrade": {"allow": DEGRADABLE},
    }
    try:
        # The output goes to a pipe, because in a file it could fill the host's disk.
        with launch(argv, policy, stdin=-3, stdout=-1, stderr=-3, cwd="/") as sandbox:
            answer = sandbox.stdout.read(MAX_ANSWER_BYTES)
            # The pipe is closed now, so a program that prints more than MAX_ANSWER_BYTES fails.
            sandbox.stdout.close()
            code = sandbox.wait()
    finally:
        end_zygote()
    return "" if code else answer.decode(errors="replace")


def _build_error(sandbox: Sandbox, details: Sequence[str], label: str) -> SandboxError:
    asked = parse_reference(label) if label.startswith(("npm:", "pypi:")) else None
    why, hint = explain_failure(details, asked)
    kind = UnfinishedError if why in {UNREACHABLE, SILENT} else SandboxError
    return kind(
        f"cannot install {label}: {why}:",
        hint=_find_denied_hosts(sandbox) or hint,
        # Lines are cut, because pip may list every file of a package in one line.
        details=[one[:MAX_SHOWN_COLUMNS] for one in details],
    )


def _remove_repository_marks(downloads: str) -> None:
    """Remove the `.git` file that uv writes into its directory for sources.

    In every writable directory, corral protects `.git` with a read-only mount. If this file stayed,
    uv could not rename anything across that mount in its next run. Links are not followed, because
    a package may have made them while it was built.
    """
    if sys.platform == "win32":
        return  # uv is not used on Windows
    for entry in list(os.scandir(downloads)):
        if entry.name.startswith("sdists-") and entry.is_dir(follow_symlinks=False):
            directory = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(".git", dir_fd=directory)
            os.close(directory)


def build_policy(
    staging: str,
    registry: Registry,
    settings: Mapping[str, str],
    *,
    subprocess: bool,
    reads: Sequence[str] = (),
) -> PolicyDict:
    downloads = make_downloads(staging)
    return {
        "limits": lower_limits(LIMITS),
        "network": {"allow": urls_to_rules(registry.urls)},
        "filesystem": {"write": [staging, downloads], "read": [*registry.reads, *reads]},
        "subprocess": {"allow": subprocess},
        "environment": {
            "set": {**settings, **registry.settings, **dict.fromkeys(CACHES, downloads)},
            "secrets": list(registry.secrets),
        },
        "degrade": {"allow": DEGRADABLE},
    }


def lower_limits(limits: Limits) -> LimitsDict:
    """Return an installer's limits. Lower each limit that is above the user's ceiling, because
    corral refuses a run with a higher limit.
    """
    ceilings = load().ceilings
    lower = ceilings.limits if ceilings else {}

    def find(name: str) -> str:
        asked, ceiling = getattr(limits, name), lower.get(name)
        return format_limit(name, ceiling if is_larger(asked, ceiling) else asked)

    return {
        "memory": find("memory"),
        "disk": find("disk"),
        "pids": int(find("pids")),
        "timeout": find("timeout"),
    }


class _Silence:
    """Tells the user once if the registry has sent nothing for a while."""

    def __init__(self, downloads: str, registry: Registry, notify: Notify) -> None:
        hosts = [urlsplit(url).hostname or "" for url in registry.urls[:1]]
        self.downloads, self.host, self.notify = downloads, "".join(hosts), notify
        self.before = _measure(downloads)

    def look(self, seconds: float) -> None:
        if not self.host or seconds < SILENT_SECONDS:
            return
        if _measure(self.downloads) == self.before:
            self.notify(
                f"{self.host} has not answered for {seconds:.0f} s; the installer gives up after"
                f" two attempts of {FETCH_SECONDS} s each"
            )
        self.host = ""


def _measure(downloads: str) -> int:
    """Return the total size of the downloaded files. Do not count other files, because they can
    grow even if the registry does not answer.
    """
    sizes = 0
    for directory, below, names in os.walk(downloads):
        below[:] = [name for name in below if not name.startswith(LOCAL_CACHES)]
        for name in names:
            if name not in CACHE_MARKS:
                with suppress(OSError):
                    sizes += os.lstat(os.path.join(directory, name)).st_size
    return sizes


def _wait(sandbox: Sandbox, label: str, silence: _Silence) -> int:
    """Wait until the installer ends. If stderr is a terminal, show the progress there."""
    started = time.monotonic()
    try:
        while True:
            try:
                return sandbox.wait(PROGRESS_SECONDS if is_progress_shown() else SILENT_SECONDS)
            except TimeoutError:
                passed = time.monotonic() - started
                show_progress(f"installing {label} ... {passed:.0f} s")
                silence.look(passed)
    except BaseException:
        sandbox.kill()  # after an error or Ctrl-C the installer's result is not used
        raise
    finally:
        show_progress("")


def read_log_end(log: IO[bytes], hidden: Iterable[str]) -> list[str]:
    """Return the end of the installer's output, without secrets or control characters."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_LOG_BYTES))
    text = log.read().decode(errors="replace")
    for secret in hidden:
        text = text.replace(secret, "***")
    # Remove the lines in which npm names its log file, because this file was in the sandbox and is
    # gone now.
    lines = [one.rstrip() for one in text.splitlines() if one.strip()]
    lines = [one for one in lines if not any(note in one for note in NPM_LOG_NOTES)]
    return ["".join(c if c.isprintable() else " " for c in line) for line in lines]


def _find_denied_hosts(sandbox: Sandbox) -> str:
    """Return a hint that names the hosts to which connections were denied, because a denial is the
    most likely cause of a failure. Return "" if no connection was denied.
    """
    report = sandbox.report
    rows = report.denials if report else ()
    names = sorted({row.destination for row in rows if row.kind in HOST_KINDS})
    hosts = ", ".join(names[:3])
    return f"the installer tried to reach {hosts}, which is not the registry" if names else ""


def urls_to_rules(urls: Sequence[str]) -> list[str]:
    """Return rules that allow connections to the hosts and ports of these URLs.

    If a registry has a private or loopback address, also return a rule for this address, because
    otherwise the address guard would refuse it. This is safe, because the user chose the registry.
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
    """Return the addresses of a host that the address guard would refuse."""
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
    """Return the text of a file that an installer wrote. Refuse a file of more than MAX_FILE_BYTES,
    because an installer could have made it as large as the disk.
    """
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
    """Choose a package's program as npx and uvx do: the program that the reference names, or else
    the only program, or else the program with the package's name.
    """
    if not programs:
        raise SandboxError(f"{reference.name} has no program to run: it is a library")
    if reference.program:
        if reference.program in programs:
            return reference.program
    elif len(programs) == 1:
        return programs[0]
    elif default in programs:
        return default
    what = f"no program {reference.program}; it has" if reference.program else "several programs:"
    # The hint contains only names that are safe in a shell, because users paste it into a shell,
    # and the package chooses the names of its programs.
    usable = [name for name in programs if is_name(name, NAME)]
    raise SandboxError(
        f"{reference.name} has {what} " + ", ".join(map(shown, sorted(programs))),
        hint=f"name one of them: {reference.text.partition('#')[0]}#{min(usable)}"
        if usable
        else "corral starts only programs whose names consist of letters, digits, `.`, `_` and `-`",
    )
