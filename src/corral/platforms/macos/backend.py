"""What corral's flow asks of macOS."""

from __future__ import annotations

import os
import sys

from corral.platforms.macos import options, tier_seatbelt
from corral.platforms.macos import spawn as births
from corral.platforms.macos.probes import cache_key as identities
from corral.platforms.macos.process_tree import Tree
from corral.platforms.posix import signals as wakeup
from corral.platforms.posix import work_directory
from corral.platforms.posix.watch import Watch
from corral.programs import resolve as command
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.plan.host import Finding, Host
    from corral.plan.model import Chains, Composition, Held, Plan, Sample
    from corral.platforms.macos.process_table import Table, Usage
    from corral.platforms.posix.watch import Child, Signals
    from corral.platforms.run_records import Run
    from corral.policy.model import Policy
    from corral.programs.model import Program

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
        return replace(program, notes=(*program.notes, *tier_seatbelt.notes(program)))

    def chains(self, policy: Policy) -> Chains:
        return options.chains(policy)

    def compose(
        self, policy: Policy, program: Program, controls: Sequence[Held], *, home: str
    ) -> Composition:
        return tier_seatbelt.compose(policy, program, controls, home=home)

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
        if os.path.basename(path).startswith(tier_seatbelt.WORK_PREFIX):
            work_directory.remove(path)

    def measure(self, root: int) -> Usage:
        """`root` is the watcher, which is not the target's. Orphans are only seen by itself."""
        tree = Tree(self._table, root, self._table.unique(root), grouped=False)
        return tree.measure(besides=root)

    def probe(self) -> tuple[Finding, ...]:
        from corral.platforms.macos.probes import host as probes

        return probes.probe(self._table, find_node())

    def identity(self) -> tuple[str, ...]:
        return identities.identity(find_node())

    def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]:
        from corral.platforms.macos.probes import doctor

        return doctor.lines(host)


def find_node() -> str:
    """The node that servers here would run on; empty where there is none."""
    for place in (*os.environ.get("PATH", "").split(":"), *PLACES):
        if place.startswith("/") and os.access(f"{place}/node", os.X_OK):
            return f"{place}/node"
    return ""
