"""The macOS backend: what corral's flow asks of the system."""

from __future__ import annotations

import os
import sys

from corral.platforms.macos import cache_key, options, process_tree, tier_seatbelt
from corral.platforms.macos import spawn as processes
from corral.platforms.posix import run_directories
from corral.platforms.posix import signals as posix_signals
from corral.platforms.posix.watch import Watch
from corral.programs import resolve as programs
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.plan.host import Finding, Host
    from corral.plan.model import Plan
    from corral.platforms.contract import Stdio, Usage
    from corral.platforms.macos.process_table import ProcessTable
    from corral.platforms.run_records import Budget
    from corral.policy.model import Grant
    from corral.programs.model import Program

NODE_DIRECTORIES = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin")
"""Searched for node after PATH, which is short where a client starts programs."""


class Macos:
    """`table` is where the host's processes are read from."""

    __file__: str | None = __file__
    chains = staticmethod(options.chains)
    compose = staticmethod(tier_seatbelt.compose)
    signals = posix_signals.SignalPipe
    watch = Watch

    def __init__(self, table: ProcessTable) -> None:
        self._table = table

    def resolve(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str,
        home: str,
        subprocess: bool,
        grants: Sequence[Grant],
        root: str,
    ) -> Program:
        program = programs.resolve(
            argv,
            environment=environment,
            cwd=cwd,
            home=home,
            subprocess=subprocess,
            grants=grants,
            root=root,
        )
        return replace(program, notes=(*program.notes, *tier_seatbelt.notes(program)))

    def spawn(self, plan: Plan, stdio: Stdio) -> processes.Child:
        return processes.spawn(plan, stdio, self._table)

    def warm_up(self) -> None:
        """Nothing is worth doing ahead of a request."""

    def clean(self, path: str, budget: Budget) -> None:
        """Remove the private directory of a dead run."""
        if run_directories.is_work_directory(path):
            run_directories.remove(path, budget)

    def measure(self, root: int) -> Usage:
        """Measure the tree below `root`, the watcher, which alone knows the tree's orphans."""
        tree = process_tree.Tree(self._table, root, self._table.unique_id(root), grouped=False)
        return tree.measure(excluded=root)

    def probe(self) -> tuple[Finding, ...]:
        from corral.platforms.macos.probes import host

        return host.probe(self._table, find_node())

    def cache_key(self) -> tuple[str, ...]:
        return cache_key.build(find_node())

    def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]:
        from corral.platforms.macos.probes import doctor

        return doctor.lines(host)


def find_node() -> str:
    """Return the node that servers would run on, empty where there is none."""
    for directory in (*os.environ.get("PATH", "").split(":"), *NODE_DIRECTORIES):
        if directory.startswith("/") and os.access(f"{directory}/node", os.X_OK):
            return f"{directory}/node"
    return ""
