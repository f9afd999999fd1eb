"""Run the acts of `corral demo` with one server inside a sandbox and one outside, and judge them.

If a hostile act succeeds inside the sandbox, this is an escape only if the run's plan says that the
act's control is enforced.

The server's answer alone does not prove that an act succeeded. So where possible the demo also
looks for the effect on the host: a new file, or a process that has ended. A secret in the answer is
also proof.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import corral
from corral.api.policy_dict import PolicyDict
from corral.demo.acts import POSIX, Act, list_acts
from corral.demo.decoys import PACKAGES, TOKEN, Decoys
from corral.messages.client import Client, ConversationError
from corral.platforms import current
from corral.policy.model import CONTROLS

Verdict = Literal["stopped", "unpromised", "open", "escaped", "unproven", "works", "broken"]

SERVER = [sys.executable, "-m", "corral.demo.server"]
ENFORCED = ("verified", "applied", "cooperative")
GOOD: tuple[Verdict, ...] = ("stopped", "unpromised", "works")
EXIT_SECONDS = 10.0
SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}


@dataclass(frozen=True, slots=True)
class Attempt:
    done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Wall:
    control: str
    mechanism: str
    status: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class ActResult:
    act: str
    tool: str
    wall: Wall | None
    inside: Attempt
    outside: Attempt
    verdict: Verdict


OUTLIVE = Act("outlive the server", "outlive", {}, "tree", systems=POSIX)


def judge(wall: Wall | None, inside: Attempt, outside: Attempt) -> Verdict:
    """Return the verdict on an act. The act counts as stopped only if it succeeded outside."""
    if wall is None:
        return "works" if inside.done and outside.done else "broken"
    enforced = wall.status in ENFORCED
    if inside.done:
        return "escaped" if enforced else "open"
    if not outside.done:
        return "unproven"
    return "stopped" if enforced else "unpromised"


def has_passed(results: Sequence[ActResult]) -> bool:
    """Return whether at least one act was stopped and no act has a bad verdict. Acts that also fail
    outside the sandbox do not count, because they prove nothing.
    """
    verdicts = {result.verdict for result in results}
    return "stopped" in verdicts and verdicts <= {*GOOD, "unproven"}


def sort_results(results: Sequence[ActResult], untried: Sequence[str]) -> dict[str, list[str]]:
    """Sort the acts by verdict: good, bad, or not tried. An act that also fails outside counts as
    not tried. Acts that were not tried are listed with the reason.
    """
    unproven = [f"{one.act} (fails outside too)" for one in results if one.verdict == "unproven"]
    return {
        "held": [one.act for one in results if one.verdict in GOOD],
        "did not hold": [one.act for one in results if one.verdict not in (*GOOD, "unproven")],
        "not tried": [*untried, *unproven],
    }


def summarize(results: Sequence[ActResult]) -> str:
    hostile = [result for result in results if result.wall is not None]
    stopped = sum(not result.inside.done for result in hostile)
    succeeded = sum(result.outside.done for result in hostile)
    outside = f"all {succeeded} succeed" if succeeded == len(hostile) else f"{succeeded} succeed"
    line = f"{stopped} of {len(hostile)} acts stopped inside; {outside} outside"
    if opened := sum(result.verdict == "open" for result in hostile):
        line += f"; {opened} not stopped on this host"
    if unproven := sum(result.verdict == "unproven" for result in hostile):
        line += f"; {unproven} could not be tried, because they fail outside too"
    works = [result.verdict for result in results if result.wall is None]
    return line + f"; {works.count('works')} of {len(works)} permitted acts work"


def check_attempt(act: Act, answer: Attempt, *, inside: bool) -> Attempt:
    """Compare the server's answer with the effect on the host.

    A hostile act inside the sandbox counts as successful if the answer or the effect shows success.
    For all other acts both have to show success.
    """
    signs = [answer.done]
    if act.proof:
        signs.append(act.proof in answer.text)
    if act.witness:
        signs.append(act.witness(answer.done))
    return Attempt(any(signs) if inside and act.control else all(signs), answer.text)


def list_walls(plan: corral.Plan) -> dict[str, Wall]:
    names = [name for name, _ in plan.environment]
    status = "degraded" if TOKEN in names else "applied"
    environment = Wall("environment", f"{len(names)} variables by name", status)
    planned = [Wall(row.control, row.mechanism, row.status, row.why) for row in plan.controls]
    return {wall.control: wall for wall in [environment, *planned]}


class Session:
    """A conversation with a server. `walls` is empty for a server outside a sandbox."""

    def __init__(
        self, process: corral.Sandbox | subprocess.Popen[bytes], walls: dict[str, Wall]
    ) -> None:
        assert process.stdin and process.stdout  # noqa: S101, PT018 - both PIPE
        self.walls = walls
        self._process, self._stdin = process, process.stdin
        self._client = Client(process.stdout, process.stdin)
        self._client.initialize()

    def try_act(self, act: Act) -> Attempt:
        answer = self._client.call_tool(act.tool, act.arguments)
        return check_attempt(act, Attempt(not answer.error, answer.text), inside=bool(self.walls))

    def end(self) -> int:
        """Close the server's input, and wait until the server exits by itself."""
        self._stdin.close()
        return self._process.wait(EXIT_SECONDS)


@contextmanager
def start_inside(decoys: Decoys, *, subprocesses: bool = False) -> Iterator[Session]:
    """Start a server with the default policy and one writable directory.

    The server starts even if this host cannot enforce a control, so that the demo shows what the
    host enforces.
    """
    policy: PolicyDict = {
        "filesystem": {"write": [decoys.granted]},
        "subprocess": {"allow": subprocesses},
        "degrade": {"allow": list(CONTROLS)},
    }
    with corral.launch(
        SERVER, policy, stdin=corral.PIPE, stdout=corral.PIPE,
        env=decoys.environment(), cwd=PACKAGES,
    ) as sandbox:  # fmt: skip
        yield Session(sandbox, list_walls(sandbox.plan))


@contextmanager
def start_outside(decoys: Decoys) -> Iterator[Session]:
    with subprocess.Popen(
        SERVER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        env=decoys.environment(), cwd=PACKAGES, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield Session(process, {})
        finally:
            process.kill()


def run_acts() -> tuple[list[ActResult], list[str]]:
    """Run every act inside and outside of the sandbox. Return the results, and the acts that only
    run on other systems.

    Remove the decoys afterwards, even after an interrupt.
    """
    current.load()  # on a system without a backend, raise an error before decoys are created
    heeded = {number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    for number in heeded:
        signal.signal(number, signal.default_int_handler)
    stack = ExitStack()
    try:
        with defer_signals(heeded):
            decoys = Decoys(stack)
        system = current.system()
        acts = [act for act in list_acts(decoys) if system in act.systems]
        untried = [
            f"{act.name} (this act runs only on {' and '.join(act.systems)})"
            for act in [*list_acts(decoys), OUTLIVE]
            if system not in act.systems
        ]
        with start_inside(decoys) as inside, start_outside(decoys) as outside:
            results = [
                compare(act, inside.walls, inside.try_act(act), outside.try_act(act))
                for act in acts
            ]
            if inside.end() or outside.end():
                raise ConversationError("the demo server exited with an error")
        if system in OUTLIVE.systems:
            results.append(run_outlive(decoys))
        return results, untried
    finally:
        with defer_signals(heeded):
            stack.close()


@contextmanager
def defer_signals(numbers: set[int]) -> Iterator[None]:
    """Hold back signals during the `with` block. If a signal arrived, raise KeyboardInterrupt at
    the end of the block.
    """
    arrived: list[int] = []
    for number in numbers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt


def run_outlive(decoys: Decoys) -> ActResult:
    """Run the act that starts a daemon: the sandbox has to end the daemon with the server."""
    act = replace(OUTLIVE, arguments={"path": decoys.fifo})
    walls: dict[str, Wall] = {}
    attempts = []
    for starting in (start_inside(decoys, subprocesses=True), start_outside(decoys)):
        with decoys.open_fifo() as fifo:
            with starting as session:
                attempt = session.try_act(act)
                session.end()
            if attempt.done:
                # While the daemon has the other end open, a read returns None, and afterwards b"".
                alive = fifo.read(1) is None
                text = "the daemon lives on" if alive else "the daemon ended with the server"
                attempt = Attempt(alive, text)
        walls.update(session.walls)
        attempts.append(attempt)
    return compare(act, walls, *attempts)


def compare(act: Act, walls: dict[str, Wall], inside: Attempt, outside: Attempt) -> ActResult:
    wall = walls[act.control] if act.control else None
    verdict = judge(wall, inside, outside)
    return ActResult(act.name, act.tool, wall, inside, outside, verdict)
