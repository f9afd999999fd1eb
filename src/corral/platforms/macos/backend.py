"""Implement the contract of `platforms.contract` for macOS."""

from __future__ import annotations

import os
import sys
from functools import partial

from corral.platforms.macos import (
    cache_key,
    developer_tools,
    options,
    process_tree,
    tier_seatbelt,
)
from corral.platforms.macos import spawn as processes
from corral.platforms.posix import run_directories
from corral.platforms.posix import signals as posix_signals
from corral.platforms.posix.watch import Watch
from corral.programs import resolve as programs
from corral.record import replace

TYPE_CHECKING = False
assert sys.platform == "darwin" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from corral.plan.host import Finding, Host
    from corral.plan.model import Composition, Held, Plan
    from corral.platforms.contract import Stdio, Usage
    from corral.platforms.macos.process_table import ProcessTable
    from corral.platforms.run_records import Budget
    from corral.policy.model import Grant, Policy
    from corral.programs.model import Program

HOMEBREW_PROGRAMS = "/opt/homebrew/bin"
NODE_DIRECTORIES = ("/opt/homebrew/bin", "/usr/local/bin", "/usr/bin")
"""The directories that `find_node` searches after those in PATH, because clients often set a short
PATH.
"""


class Macos:
    __file__: str | None = __file__
    chains = staticmethod(options.chains)
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
        find = partial(
            programs.resolve, environment=environment, cwd=cwd, home=home,
            subprocess=subprocess, grants=grants, root=root,
        )  # fmt: skip
        program, tools = find(argv), developer_tools.find_directory()
        if tool := developer_tools.find_tool(program.real, tools):
            program = replace(find((tool, *program.argv[1:])), typed=program.typed)
        search = program.search
        if subprocess:
            more = (HOMEBREW_PROGRAMS, f"{tools}/usr/bin" if tools else "")
            search = (*filter(os.path.isdir, more), *search)
        notes = (*program.notes, *tier_seatbelt.notes(program))
        return replace(program, search=search, notes=notes)

    def compose(
        self, policy: Policy, program: Program, controls: Sequence[Held], *, home: str
    ) -> Composition:
        running = self._table.count_own() if policy.subprocess else 0
        return tier_seatbelt.compose(policy, program, controls, home=home, running=running)

    def spawn(self, plan: Plan, stdio: Stdio) -> processes.Child:
        return processes.spawn(plan, stdio, self._table)

    def warm_up(self) -> None:
        """Do nothing, because on macOS no preparation makes the next run faster."""

    def clean(self, path: str, budget: Budget) -> None:
        if run_directories.is_work_directory(path):
            run_directories.remove(path, budget)

    def measure(self, root: int) -> Usage:
        """Measure the processes below the watcher `root`. The caller is not the watcher.

        Processes whose parents have ended are missing, because only the watcher knows that they
        belong to the tree.
        """
        tree = process_tree.Tree(self._table, root, self._table.unique_id(root), grouped=False)
        return tree.measure(excluded=root)

    def find_spare_maker(self, _plan: Plan) -> None:
        """Return None, because a spare is a sandbox whose process exists before its command is
        known. On macOS corral does not start such a process.
        """

    def rehearse(self, plan: Plan) -> None:
        """Do nothing, because on macOS the first run is as fast as later runs."""

    def probe(self, _wanted: Collection[str] = (), /) -> tuple[Finding, ...]:
        from corral.platforms.macos.probes import host

        return host.probe(self._table, find_node())

    def cache_key(self) -> tuple[str, ...]:
        return cache_key.build(find_node())

    def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]:
        from corral.platforms.macos.probes import doctor

        return doctor.lines(host)


def find_node() -> str:
    """Return the path of the node program that servers would use, or "" if none is found."""
    for directory in (*os.environ.get("PATH", "").split(":"), *NODE_DIRECTORIES):
        if directory.startswith("/") and os.access(f"{directory}/node", os.X_OK):
            return f"{directory}/node"
    return ""
