"""The one choice of operating system.

A backend is a module with these verbs; nothing else in corral asks
which system it runs on in order to decide what to enforce.
"""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from corral.plan.host import Finding, Host, System
    from corral.plan.model import Chains, Composition, Held, Plan, Sample
    from corral.platforms.posix.watch import Child, Signals, Watcher
    from corral.platforms.run_records import Run
    from corral.platforms.sampling import Usage
    from corral.policy.model import Policy
    from corral.programs.model import Program

    class Backend(Protocol):
        __file__: str | None

        def resolve(
            self,
            argv: Sequence[str],
            *,
            environment: Mapping[str, str],
            cwd: str,
            home: str,
            subprocess: bool,
        ) -> Program: ...
        def chains(self, policy: Policy) -> Chains: ...
        def compose(
            self, policy: Policy, program: Program, controls: Sequence[Held], *, home: str
        ) -> Composition: ...
        def warm_up(self) -> None: ...
        def clean(self, path: str) -> None: ...
        def measure(self, root: int) -> Usage: ...
        def probe(self) -> tuple[Finding, ...]: ...
        def identity(self) -> tuple[str, ...]: ...
        def doctor(self, host: Host) -> Sequence[tuple[str, str, Finding | None]]: ...
        def signals(self, numbers: Sequence[int]) -> Signals: ...
        def birth(self, plan: Plan, stdio: tuple[int, int, int]) -> Child: ...
        def watch(
            self,
            child: Child,
            *,
            timeout: float | None,
            signals: Signals,
            control: int,
            sample: Sample | None,
            run: Run,
        ) -> Watcher: ...


def system() -> System:
    if sys.platform == "darwin":
        return "darwin"
    return "windows" if sys.platform == "win32" else "linux"


def machine() -> str:
    if sys.platform == "win32":
        return os.environ.get("PROCESSOR_ARCHITECTURE", "").lower()
    return os.uname().machine


def load() -> Backend:
    if sys.platform == "linux":
        from corral.platforms.linux import backend

        return backend
    if sys.platform == "win32":
        from corral.platforms.windows import backend as windows

        return windows
    if sys.platform == "darwin":
        from corral.platforms.macos.backend import Macos
        from corral.platforms.macos.libproc import Libproc

        return Macos(Libproc())
    raise SandboxError(
        f"corral has no walls for {sys.platform}, so it runs nothing there",
        hint="run it in a Linux virtual machine",
    )
