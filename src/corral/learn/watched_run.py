"""Plan a run in which corral watches the paths that the target opens, and turn its accesses into
proposals.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from corral.denials.records import Denial
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.learn import remote_paths
from corral.learn.proposals import (
    OWN_FILE,
    Learned,
    Proposal,
    Seen,
    find_denied,
    find_in_home,
    find_on_host,
    list_some,
    propose,
)
from corral.learn.variables import find_variables
from corral.network.addresses import address_or_none
from corral.network.guard import is_metadata_service
from corral.paths.mounts import read_kinds
from corral.paths.posix import is_inside
from corral.plan.model import Plan
from corral.platforms.linux import own_files
from corral.platforms.linux.mechanisms import root_filesystem, seccomp
from corral.record import replace
from corral.safe_text import shell_word
from corral.supervisor import findings
from corral.supervisor.secret_values import hide_values

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from corral.denials.records import Hide, Kind
    from corral.platforms.contract import Watcher

GIB = 1 << 30
METADATA_SERVICE = "a metadata service, which gives out the machine's credentials"


def is_silent(stdin: int) -> bool:
    """Return whether a target's stdin is open but has no data yet."""
    import select

    try:
        return not select.select([stdin], [], [], 0)[0]
    except OSError:
        return False  # closed


def has_client(stdin: int) -> bool:
    """Return whether an MCP client may be at the other end of a target's stdin.

    A terminal is not a client. A stream that has ended before the target starts is not a client
    either.
    """
    import fcntl  # imported here, because Windows has no fcntl and no termios
    import termios

    if os.isatty(stdin):
        return False
    if is_silent(stdin):
        return True  # a client may still write
    try:
        return any(fcntl.ioctl(stdin, termios.FIONREAD, bytes(4)))
    except OSError:
        return False  # /dev/null, or closed


def watched_plan(plan: Plan) -> Plan:
    """Return a copy of the plan whose seccomp filter reports the paths that the target opens. Raise
    SandboxError if this host cannot watch paths.
    """
    filters = [step for step in plan.steps if isinstance(step, seccomp.Seccomp)]
    if not filters or own_files.find_wall(plan) is None:
        raise SandboxError(
            "the paths that a target opens cannot be watched here",
            hint="`corral doctor` shows what is missing: namespaces or Landlock, and seccomp",
        )
    if findings.current_host().finding("start_notices").status == "absent":
        raise SandboxError(
            "the paths that a target opens cannot be watched here: another seccomp filter, such as"
            " a container's, already reports system calls, or the kernel cannot report them",
            hint="start corral outside the container; `corral doctor` shows what it can do there",
        )
    steps = [
        replace(step, watch_paths=True) if isinstance(step, seccomp.Seccomp) else step
        for step in plan.steps
    ]
    return replace(plan, steps=tuple(steps))


def find_seen(plan: Plan) -> Seen:
    wall = own_files.find_wall(plan)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    if isinstance(wall, root_filesystem.View):
        reads = (
            *(bind.target for bind in wall.binds if bind.access != "write"),
            *(path for path, _ in (*wall.links, *wall.files)),
        )
        writes = tuple(bind.target for bind in wall.binds if bind.access == "write")
    elif wall is not None:
        reads, writes = (*wall.read, *wall.devices), wall.write
    return Seen(
        reads=reads,
        writes=writes,
        private=wall.private if wall else (),
        own=plan.program.reads,
        same_files=not isinstance(wall, root_filesystem.View),
        home=dict(plan.environment).get("HOME", ""),
        host_home=os.path.realpath(home_directory(os.environ)),
    )


def find_learned(
    plan: Plan, watch: Watcher, denials: tuple[Denial, ...], *, missing: str = ""
) -> Learned:
    """Return the proposals of a run that has ended. Raise an error if no path could be read from
    the target's memory.

    `missing` is the path of the command's script if this file does not exist. The directories above
    it are then not proposed, because the target opened them only to find the script.
    """
    found = getattr(watch.child, "path_watch", None)
    if found is None:
        return Learned()
    if found.calls and found.unreadable == found.calls:
        raise SandboxError(
            f"none of the {found.calls} paths could be read from the target's memory",
            hint="give corral CAP_SYS_PTRACE, or start it as an ordinary user",
        )
    seen = find_seen(plan)
    asked = {key: times for key, times in found.seen.items() if key[0] != root_filesystem.TRIED}
    asked = {key: times for key, times in asked.items() if not missing.startswith(f"{key[0]}/")}
    remote = _find_remote(asked, seen)
    asked = {key: times for key, times in asked.items() if key[0] not in remote}
    directories = {find_on_host(path, seen) for path in found.directories if path not in remote}
    hide = hide_values(plan)
    files = _judge_own_files(plan, propose(find_denied(asked, seen), seen), directories, hide)
    parts = (
        files,
        Learned(never=list_some(sorted(remote.items()))),
        _judge_socket(found.bound),
        find_variables(asked, plan, os.environ),
        _judge_memory(found.memory),
        _judge_denials(denials),
    )
    learned = Learned(
        asked_for=files.asked_for,
        proposed=tuple(one for part in parts for one in part.proposed),
        never=tuple(one for part in parts for one in part.never),
        calls=found.calls,
        waited_seconds=round(found.seconds, 3),
    )
    return _hide_secrets(learned, hide)


def _find_remote(asked: Mapping[tuple[str, bool], int], seen: Seen) -> dict[str, str]:
    """Return the paths that corral must not look up, each with the reason."""
    used = (seen.host_home, *seen.reads, *seen.writes, *seen.own)
    remote = remote_paths.RemotePaths(read_kinds(), used)
    paths = dict.fromkeys(path for path, _ in asked)
    return {path: remote_paths.WHY for path in paths if remote.contains(find_in_home(path, seen))}


def _hide_secrets(learned: Learned, hide: Hide) -> Learned:
    """Mask secrets in all strings. Do not propose a path that contains a secret, because the user
    would have to type the secret to use the flag.
    """
    secret = [one for one in learned.proposed if hide(one.path)[1]]
    never = (
        *learned.never,
        *((one.path, "its name contains the value of a secret") for one in secret),
    )
    return replace(
        learned,
        asked_for=tuple(replace(one, path=hide(one.path)[0]) for one in learned.asked_for),
        proposed=tuple(
            replace(one, why=hide(one.why)[0]) for one in learned.proposed if one not in secret
        ),
        never=tuple((hide(what)[0], hide(why)[0]) for what, why in never),
    )


def _judge_own_files(
    plan: Plan, learned: Learned, directories: Collection[str], hide: Hide
) -> Learned:
    """Handle the server's attempts to change its own program files. If a profile makes the server
    write to another directory, propose this profile. Otherwise list the file as never proposed,
    with another remedy if there is one.

    `directories` are the directories that the server wanted to make. A path that contains a secret
    gets no remedy, because the path would be masked in the suggested command.
    """
    proposed: dict[str, Proposal] = {}
    kept = []
    for path, reason in learned.never:
        if reason != OWN_FILE or hide(path)[1]:
            kept.append((path, reason))
            continue
        top = max((top for top in plan.program.reads if is_inside(path, top)), key=len)
        allow, why = own_files.find_remedy(
            plan.program, top, path, is_directory=path in directories
        )
        flag, _, name = allow.partition(" ")
        if flag == "--profile":
            proposed[name] = Proposal(
                flag=flag, path=name, why=f"the server asked to change {shell_word(path)}"
            )
        else:
            kept.append((path, f"{reason}, {why}{'; ' if allow else ''}{allow}"))
    return replace(learned, proposed=(*learned.proposed, *proposed.values()), never=tuple(kept))


def _judge_socket(path: str) -> Learned:
    if not path:
        return Learned()
    made = shell_word(path) if path.startswith("/") else path
    why = f"the server asked to create the unix socket {made}"
    return Learned(proposed=(Proposal(flag="--own-unix-sockets", path=path, why=why),))


def _judge_memory(wanted: int) -> Learned:
    """Propose a memory limit that is high enough for what the target asked for. If this machine has
    less memory, do not propose a limit.
    """
    if not wanted:
        return Learned()
    mebibytes = f"{wanted >> 20} MiB of memory"
    if wanted > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return Learned(never=((mebibytes, "more than this machine has"),))
    proposal = Proposal(
        flag="--max-memory", path=f"{wanted // GIB + 1}G", why=f"the server asked for {mebibytes}"
    )
    return Learned(proposed=(proposal,))


def _judge_denials(denials: tuple[Denial, ...]) -> Learned:
    """For each denied name, connection or start of a program, propose the flag that would have
    allowed it. Never propose a flag for a service that gives out the machine's credentials.
    """
    rows = [row for row in denials if row.allow and row.kind in {"name", "address", "start"}]
    rows += [row for row in denials if row.allow and row.kind in {"port", "sni", "loopback"}]
    found = {row.allow: row for row in rows}
    never = {allow: row for allow, row in found.items() if _is_metadata_service(row)}
    return Learned(
        proposed=tuple(_to_proposal(row) for allow, row in found.items() if allow not in never),
        never=tuple((row.destination, METADATA_SERVICE) for row in never.values()),
    )


def _to_proposal(row: Denial) -> Proposal:
    flag, *values = shlex.split(row.allow)
    why = replace(row, allow="").describe().removeprefix("denied: ")
    return Proposal(flag=flag, path=" ".join(values), why=why)


def _is_metadata_service(row: Denial) -> bool:
    host, _, _port = row.destination.rpartition(":")
    address = address_or_none(row.destination) or address_or_none(host.strip("[]"))
    return address is not None and is_metadata_service(address)


def to_denials(learned: Learned, plan: Plan) -> tuple[Denial, ...]:
    """Return a denial for each proposal, and for each path that is never proposed, so that `corral
    why` and `corral grant` can show them. Leave out proposals that were made from denials, because
    these denials are recorded already.
    """
    rows = [Denial(kind=_find_kind(what), destination=what, why=why) for what, why in learned.never]
    for one in learned.proposed:
        if one.flag == "--max-memory":
            rows.append(_deny_memory(one, plan))
        elif one.flag not in {"--allow-net", "--allow-subprocess"}:
            why = f"learned{', ' if one.more else ''}{one.more}"
            row = Denial(kind=one.kind(), destination=one.path, allow=one.typed(), why=why)
            rows.append(row)
    return tuple(rows)


def _deny_memory(wanted: Proposal, plan: Plan) -> Denial:
    limit = next((held.asked for held in plan.controls if held.control == "memory"), "its limit")
    return Denial(kind=wanted.kind(), destination=f"memory beyond {limit}", allow=wanted.typed())


def _find_kind(what: str) -> Kind:
    if what.startswith("/"):
        return "path"
    return "variable" if what.isidentifier() else "limit"
