"""What `corral demo` does: the same acts by the same server, inside walls and outside, judged.

Which wall an act is about is declared with the act; what that wall is here, and whether it stands,
comes from the plan of this very run. The server's word is not enough: where the demo can see for
itself (a secret that came through, a file, a dead process) it does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from corral.errors import SandboxError
from corral.messages.client import Client, ConversationError
from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Literal, Self

    from corral.demo.stage import Stage
    from corral.plan.model import Plan

    Verdict = Literal["stopped", "unpromised", "open", "escaped", "unproven", "works", "broken"]

PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVER = "corral.demo.server"
LIMITS = {"memory": "512M", "fds": 64, "disk": "8M"}
HELD = ("verified", "applied", "cooperative")
GOOD: tuple[Verdict, ...] = ("stopped", "unpromised", "works")
END_PATIENCE = 10.0


@record
class Act:
    """`control` is empty for what has to work.

    `proof` is what only the host knows; `witness` is told what the server says, and says whether
    the host saw it happen.
    """

    name: str
    tool: str
    arguments: dict[str, object]
    control: str = ""
    proof: str = ""
    witness: Callable[[bool], bool] | None = None


@record
class Attempt:
    done: bool
    text: str


@record
class Wall:
    """A control as the plan has it."""

    control: str
    mechanism: str
    status: str
    why: str = ""


@record
class Row:
    act: str
    tool: str
    wall: Wall | None
    inside: Attempt
    outside: Attempt
    verdict: Verdict


@record
class Session:
    """A conversation with the server. `end` closes its input and waits for it to go by itself."""

    client: Client
    end: Callable[[], int]
    plan: Plan | None = None


def judge(wall: Wall | None, inside: Attempt, outside: Attempt) -> Verdict:
    """Nothing counts as stopped unless it was seen to succeed outside."""
    if wall is None:
        return "works" if inside.done and outside.done else "broken"
    held = wall.status in HELD
    if inside.done:
        return "escaped" if held else "open"
    if not outside.done:
        return "unproven"
    return "stopped" if held else "unpromised"


def passed(rows: Sequence[Row]) -> bool:
    return bool(rows) and all(row.verdict in GOOD for row in rows)


def summary(rows: Sequence[Row]) -> str:
    acts = [row for row in rows if row.wall is not None]
    stopped = sum(1 for row in acts if not row.inside.done)
    succeeded = sum(1 for row in acts if row.outside.done)
    outside = f"all {len(acts)} succeed" if succeeded == len(acts) else f"{succeeded} succeed"
    line = f"{stopped} of {len(acts)} acts stopped inside; {outside} outside"
    opened = sum(1 for row in acts if row.verdict == "open")
    if opened:
        line += f"; {opened} not stopped on this host"
    works = [row.verdict for row in rows if row.wall is None]
    return line + f"; {works.count('works')} of {len(works)} permitted acts work"


def believe(act: Act, answer: Attempt, *, walled: bool) -> Attempt:
    """Inside, any sign that it was done counts; outside, all of them have to be there."""
    signs = [answer.done]
    if act.proof:
        signs.append(act.proof in answer.text)
    if act.witness:
        signs.append(act.witness(answer.done))
    forbidden = bool(act.control)
    return Attempt(done=any(signs) if walled and forbidden else all(signs), text=answer.text)


def wall_of(plan: Plan, control: str, secret: str = "") -> Wall:
    if control == "environment":
        names = [name for name, _ in plan.environment]
        status = "degraded" if secret in names else "applied"
        return Wall(control=control, mechanism=f"{len(names)} variables by name", status=status)
    for held in plan.controls:
        if held.control == control:
            return Wall(control=control, mechanism=held.mechanism, status=held.status, why=held.why)
    raise SandboxError(f"the plan has no control {control}")


def perform() -> list[Row]:
    """All acts, on both sides. Nothing of it stays, also when it is interrupted."""
    from corral.demo.stage import acts
    from corral.platforms import current

    current.load()  # where there are no walls at all, that is the answer
    with Interruptions() as interruptions, staged(interruptions) as stage:
        with inside(stage) as walled, outside(stage) as free:
            rows = [_row(act, walled, free) for act in acts(stage)]
            for session in (walled, free):
                if session.end():
                    raise ConversationError("the server did not end well")
        rows.append(_outlive(stage))
        return rows


@contextmanager
def inside(stage: Stage, *, processes: bool = False) -> Iterator[Session]:
    """The policy lets any control go, so that a host which lacks one is shown as it is."""
    import corral
    from corral.policy.model import CONTROLS

    policy = {
        "limits": LIMITS,
        "filesystem": {"write": [stage.granted]},
        "subprocess": {"allow": processes},
        "degrade": {"allow": list(CONTROLS)},
    }
    with corral.launch(
        command(SERVER), policy, stdin=corral.PIPE, stdout=corral.PIPE,
        env=stage.environment(), cwd=PACKAGES,
    ) as sandbox:  # fmt: skip
        stdin, stdout = sandbox.stdin, sandbox.stdout
        assert stdin is not None  # noqa: S101 - PIPE
        assert stdout is not None  # noqa: S101 - PIPE

        def end() -> int:
            stdin.close()
            return sandbox.wait(END_PATIENCE)

        client = Client(stdout, stdin)
        client.initialize()
        yield Session(client=client, end=end, plan=sandbox.plan)


@contextmanager
def outside(stage: Stage) -> Iterator[Session]:
    with subprocess.Popen(
        command(SERVER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        env=stage.environment(), cwd=PACKAGES, start_new_session=True,
    ) as process:  # fmt: skip
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None  # noqa: S101 - PIPE
        assert stdout is not None  # noqa: S101 - PIPE

        def end() -> int:
            stdin.close()
            return process.wait(END_PATIENCE)

        try:
            client = Client(stdout, stdin)
            client.initialize()
            yield Session(client=client, end=end)
        finally:
            process.kill()


def command(module: str, *arguments: str) -> list[str]:
    """By its module, from the directory of packages: that makes all of corral visible inside."""
    return [sys.executable, "-m", module, *arguments]


def _row(act: Act, walled: Session, free: Session) -> Row:
    assert walled.plan is not None  # noqa: S101 - it was planned
    secret = str(act.arguments.get("name", ""))
    wall = wall_of(walled.plan, act.control, secret) if act.control else None
    within = believe(act, _ask(act, walled), walled=True)
    without = believe(act, _ask(act, free), walled=False)
    return _judged(act, wall, within, without)


def _outlive(stage: Stage) -> Row:
    """Processes are allowed inside here, or there would be no daemon for the end to reach."""
    act = Act(
        name="outlive the server", tool="outlive", arguments={"path": stage.fifo}, control="tree"
    )
    plans: list[Plan] = []
    within = _left_behind(act, stage, inside(stage, processes=True), plans)
    without = _left_behind(act, stage, outside(stage), plans)
    return _judged(act, wall_of(plans[0], act.control), within, without)


def _left_behind(
    act: Act, stage: Stage, start: AbstractContextManager[Session], plans: list[Plan]
) -> Attempt:
    with stage.reading_fifo() as held:
        with start as session:
            answer = _ask(act, session)
            session.end()
            plans += [session.plan] if session.plan else []
        if not answer.done:
            return answer
        alive = held()
    text = "the daemon lives on" if alive else "its daemon died with it"
    return Attempt(done=alive, text=text)


def _judged(act: Act, wall: Wall | None, within: Attempt, without: Attempt) -> Row:
    verdict = judge(wall, within, without)
    return Row(
        act=act.name, tool=act.tool, wall=wall, inside=within, outside=without, verdict=verdict
    )


def _ask(act: Act, session: Session) -> Attempt:
    answer = session.client.call(act.tool, act.arguments)
    return Attempt(done=not answer.error, text=answer.text)


class Interruptions:
    """Ctrl-C and its kin: raised once, and never in the middle of building up or clearing away."""

    def __init__(self) -> None:
        self._postponed = self._pending = False

    def __enter__(self) -> Self:
        wanted = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
        self._previous = {
            number: signal.signal(number, self._interrupt)
            for number in dict.fromkeys(wanted)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        self._postponed = True
        try:
            yield
        finally:
            self._postponed = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _interrupt(self, _number: int, _frame: object) -> None:
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)
        self._pending = self._postponed
        if not self._postponed:
            raise KeyboardInterrupt


@contextmanager
def staged(interruptions: Interruptions) -> Iterator[Stage]:
    from corral.demo.stage import Stage

    stage = Stage()
    try:
        with interruptions.postponed():
            stage.open()
        yield stage
    finally:
        with interruptions.postponed():
            stage.close()
