"""What corral's flow asks of macOS."""

from __future__ import annotations

import os
import sys

from corral import macos
from corral.macos import birth as births
from corral.macos import identity as identities
from corral.macos import layout
from corral.macos.tree import Tree
from corral.posix import wakeup, workdir
from corral.record import replace
from corral.servers import command
from corral.supervise import Watch

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.host import Finding, Host
    from corral.macos.processes import Table, Usage
    from corral.plan import Chains, Composition, Held, Plan, Sample
    from corral.policy import Policy
    from corral.runs import Run
    from corral.servers.program import Program
    from corral.supervise import Child, Signals

PLACES = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin")
"""Where node is found besides PATH, which is short where a client starts things."""


class Macos:
    """`table` is where the host's processes are read from."""

    __file__: str | None = __file__

    def __init__(self, table: Table) -> None:
        self._table = table

    def resolve(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        home: str,
        subprocess: bool,
    ) -> Program:
        program = command.resolve(
            argv, environment=environment, cwd=cwd, home=home, subprocess=subprocess
        )
        return replace(program, notes=(*program.notes, *layout.notes(program)))

    def chains(self, policy: Policy) -> Chains:
        return macos.chains(policy)

    def compose(
        self, policy: Policy, program: Program, controls: Sequence[Held], *, home: str
    ) -> Composition:
        return layout.compose(policy, program, controls, home=home)

    def signals(self, numbers: Sequence[int]) -> Signals:
        return wakeup.Wakeup(numbers)

    def birth(self, plan: Plan, stdio: tuple[int, int, int]) -> births.Child:
        return births.birth(plan, stdio, self._table)

    def watch(
        self,
        child: Child,
        *,
        timeout: float | None,
        signals: Signals,
        control: int,
        sample: Sample | None,
        run: Run,
    ) -> Watch:
        return Watch(
            child, timeout=timeout, signals=signals, control=control, sample=sample, run=run
        )

    def warm_up(self) -> None:
        """Nothing is worth doing ahead of a request."""

    def clean(self, path: str) -> None:
        """Remove the private directory of a dead run."""
        if os.path.basename(path).startswith(layout.WORK_PREFIX):
            workdir.remove(path)

    def measure(self, root: int) -> Usage:
        """`root` is the watcher, which is not the target's. Orphans are only seen by itself."""
        tree = Tree(self._table, root, self._table.unique(root), grouped=False)
        return tree.measure(besides=root)

    def probe(self) -> tuple[Finding, ...]:
        from corral.macos import probes

        return probes.probe(self._table, find_node())

    def identity(self) -> tuple[str, ...]:
        return identities.identity(find_node())

    def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]:
        from corral.macos import doctor

        return doctor.lines(host)


def find_node() -> str:
    """The node that servers here would run on; empty where there is none."""
    for place in (*os.environ.get("PATH", "").split(":"), *PLACES):
        if place.startswith("/") and os.access(f"{place}/node", os.X_OK):
            return f"{place}/node"
    return ""
