"""Store the denials of each server's last runs, for `corral why`, `grant` and `status`.

Each run has a file of its own, so that concurrent runs do not conflict. A run appends each new
denial at once, so that no denial is lost if the run is killed. When the run ends, it writes the
file again, with the number of times that each denial occurred. Each server has a directory, which
is named after the digest of its command. The first line of each file contains the command and the
run's flags, with masked secrets.
"""

from __future__ import annotations

import os
import stat

from corral.abi.private_directory import make_private_directory
from corral.abi.whole_file import replace_file
from corral.denials.records import Denial, all_kept, kept_directory
from corral.denials.server_id import ServerId
from corral.directories import is_private
from corral.record import fields, record, replace
from corral.safe_text import is_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MAX_DENIALS = 200
"""The maximum number of denials that are stored for one run."""
MAX_LINES = 3 * MAX_DENIALS
"""The maximum number of lines that are stored for all runs of one server. This is more than a
single run can have, so a run with many denials does not displace all earlier runs.
"""
MAX_AGE_SECONDS = 30 * 24 * 3600
MAX_SERVERS = 200
MAX_BYTES = 1 << 20
ENDING = ".jsonl"
NOT_STARTED = "corral did not start it"
"""The beginning of a failure of a run that corral refused."""


@record
class KeptRun:
    """A stored run. `time` is the end of the run in Unix seconds. If the run was killed, `time` is
    the time of its first denial. `flags` lists the flags that granted something to the run, with
    their values. `failure` says how the run failed.
    """

    time: int
    server: ServerId
    denials: tuple[Denial, ...] = ()
    flags: tuple[str, ...] = ()
    failure: str = ""


@record
class SeenDenial:
    """A denial, and the time of the last stored run in which it occurred. `had_flags` is true if
    that run already had flags that seemed to allow it.
    """

    denial: Denial
    time: int
    had_flags: bool = False


def keep(
    server: ServerId,
    denials: Sequence[Denial],
    now: float,
    flags: Sequence[str] = (),
    failure: str = "",
) -> None:
    """Store a run's denials, and how the run failed. If the run has neither denials nor a failure,
    store it only if earlier runs of the same server are stored.

    If the files cannot be written, the run continues, and `corral why` does not show these denials.
    """
    directory = kept_directory(server)
    try:
        if not denials and not failure and not os.path.isdir(directory):
            return
        path = _new_path(directory, now)
        text = _format_head(server, flags, failure) + _format_rows(denials[:MAX_DENIALS])
        replace_file(path, text.encode("ascii"), sync=False)
        _prune(directory, now)
    except OSError:
        return


class LiveRun:
    def __init__(self, server: ServerId, flags: Sequence[str] = ()) -> None:
        self._server = server
        self._flags = flags
        self._path = ""
        self._left = MAX_DENIALS

    def add(self, denial: Denial, now: float) -> None:
        """Append a denial to the run's file. If corral is killed while it writes, the last line is
        incomplete, and `_read` ignores it.
        """
        self._left -= 1
        if self._left < 0:
            return
        try:
            if not self._path:
                self._path = _new_path(kept_directory(self._server), now)
                text = _format_head(self._server, self._flags) + _format_rows([denial])
                replace_file(self._path, text.encode(), sync=False)
                return
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
            with open(fd, "w", encoding="ascii") as file:
                file.write(_format_rows([denial]))
        except OSError:
            return

    def end(self, denials: Sequence[Denial], now: float, failure: str = "") -> None:
        keep(self._server, denials, now, self._flags, failure)
        if self._path:
            try:
                os.unlink(self._path)
            except OSError:
                return


def _new_path(directory: str, now: float) -> str:
    """Return the path of a new file. Raise OSError if another user could change its directory."""
    for part in (os.path.dirname(directory), directory):
        make_private_directory(part)
        _refuse_foreign(os.lstat(part))
    return os.path.join(directory, f"{int(now * 1e6):020}-{os.getpid()}{ENDING}")


def _format_head(server: ServerId, flags: Sequence[str], failure: str = "") -> str:
    import json

    head = {
        "command": list(server.command),
        "directory": server.directory,
        "flags": list(flags),
        "failure": failure,
    }
    return json.dumps(head) + "\n"


def _format_rows(denials: Sequence[Denial]) -> str:
    import json

    return "".join(f"{json.dumps(_to_json(one))}\n" for one in denials)


def load(directory: str) -> list[KeptRun]:
    """Return the stored runs in one directory, oldest first. Skip other users' files."""
    runs = [_read(os.path.join(directory, name)) for name in _list(directory)]
    return [run for run in runs if run is not None]


def load_server(server: ServerId) -> list[KeptRun]:
    """Return the stored runs of a server, oldest first. If `server.directory` is empty, leave out
    the runs that are stored with a start directory. Always include the runs that corral refused.
    They are stored without a start directory, because corral refused them before it found out
    whether the command may start another server in another directory.
    """
    return [run for run in load_command(server) if run.server.is_started_by(server)]


def load_command(server: ServerId) -> list[KeptRun]:
    """Return the stored runs of a server's command in all directories, oldest first."""
    if not server.has_variables:
        return load(kept_directory(server))
    return [
        run
        for run in load_all()
        if replace(run.server, directory=server.directory).is_started_by(server)
    ]


def load_all() -> list[KeptRun]:
    base = all_kept()
    names = filter(is_digest, _list(base, ""))
    found = [run for name in names for run in load(os.path.join(base, name))]
    return sorted(found, key=lambda run: run.time)


def merge(
    runs: Iterable[KeptRun],
    is_allowed: Callable[[Denial, Sequence[str]], bool] = lambda _denial, _flags: False,
) -> tuple[SeenDenial, ...]:
    """Return the denials of all runs, oldest first, and add up the counts of equal denials. Leave
    out a denial if the flags of a later run allow it.

    Keep a denial that later runs do not repeat, because the server may not have tried again.
    """
    found: dict[Denial, SeenDenial] = {}
    for run in runs:
        for key in [one for one in found if run.flags and is_allowed(one, run.flags)]:
            del found[key]
        for one in run.denials:
            key = replace(one, count=1)
            before = found.get(key)
            count = one.count + (before.denial.count if before else 0)
            found[key] = SeenDenial(
                denial=replace(one, count=count),
                time=run.time,
                had_flags=bool(run.flags) and is_allowed(one, run.flags),
            )
    return tuple(found.values())


def _to_json(denial: Denial) -> dict[str, object]:
    return {name: getattr(denial, name) for name in fields(Denial)}


def _prune(directory: str, now: float) -> None:
    """Remove the oldest runs of a server, and the servers whose runs were stored longest ago, until
    no limit is exceeded.

    Of several runs with the same flags and without denials, keep only the last. Otherwise such runs
    could displace runs with denials.
    """
    lines = 0
    without_denials: set[tuple[str, ...]] = set()
    for name in reversed(_list(directory)):
        path = os.path.join(directory, name)
        run = _read(path)
        lines += 1 + len(run.denials) if run else MAX_LINES
        repeated = run is not None and not run.denials and run.flags in without_denials
        if run is not None and not run.denials:
            without_denials.add(run.flags)
        if repeated or lines > MAX_LINES or (run and now - run.time > MAX_AGE_SECONDS):
            os.unlink(path)
    base = all_kept()
    servers = [os.path.join(base, name) for name in _list(base, "")]
    servers.sort(key=lambda path: os.lstat(path).st_mtime)
    for old in servers[:-MAX_SERVERS]:
        for name in os.listdir(old):
            os.unlink(os.path.join(old, name))
        os.rmdir(old)


def _list(directory: str, ending: str = ENDING) -> list[str]:
    try:
        _refuse_foreign(os.lstat(directory))
        return sorted(name for name in os.listdir(directory) if name.endswith(ending))
    except OSError:
        return []


def _read(path: str) -> KeptRun | None:
    import json

    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags), encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or not is_private(found, 0o077):
                return None
            *lines, _ = file.read(MAX_BYTES).split("\n")
            first, *rows = map(json.loads, lines)
        directory, name = os.path.split(path)
        digest, command = os.path.basename(directory), tuple(map(str, first["command"]))
        return KeptRun(
            time=int(name.partition("-")[0]) // 1_000_000,
            server=ServerId(
                digest=digest, command=command, directory=str(first.get("directory", ""))
            ),
            denials=tuple(Denial(**row) for row in rows),
            flags=tuple(map(str, first.get("flags", ()))),
            failure=str(first.get("failure", "")),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _refuse_foreign(found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode) or not is_private(found, 0o077):
        raise PermissionError
