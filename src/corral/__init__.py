"""Run MCP servers that nobody has reason to trust, inside walls and limits that corral can prove.

The names in `__all__` are the public API. They are loaded when first used, because the command line
passes through here on its way to a target.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.api.asyncio_sandbox import AsyncSandbox as AsyncSandbox
    from corral.api.asyncio_sandbox import launch_async as launch_async
    from corral.api.asyncio_sandbox import run_async as run_async
    from corral.api.launch import Result as Result
    from corral.api.launch import launch as launch
    from corral.api.launch import probe as probe
    from corral.api.launch import run as run
    from corral.api.sandbox import DEVNULL as DEVNULL
    from corral.api.sandbox import PIPE as PIPE
    from corral.api.sandbox import Sandbox as Sandbox
    from corral.errors import CommandError as CommandError
    from corral.errors import LaunchError as LaunchError
    from corral.errors import ManifestError as ManifestError
    from corral.errors import PolicyError as PolicyError
    from corral.errors import SandboxError as SandboxError
    from corral.errors import SupervisionError as SupervisionError
    from corral.errors import UnenforceableError as UnenforceableError
    from corral.plan.host import Finding as Finding
    from corral.plan.host import Host as Host
    from corral.plan.model import Plan as Plan
    from corral.supervisor.report import Report as Report

_HOMES = {
    "api.launch": ("Result", "launch", "probe", "run"),
    "errors": (
        "CommandError", "LaunchError", "ManifestError", "PolicyError", "SandboxError",
        "SupervisionError", "UnenforceableError",
    ),
    "api.asyncio_sandbox": ("AsyncSandbox", "launch_async", "run_async"),
    "plan.host": ("Finding", "Host"),
    "plan.model": ("Plan",),
    "supervisor.report": ("Report",),
    "api.sandbox": ("DEVNULL", "PIPE", "Sandbox"),
}  # fmt: skip
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605 - a list of names
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            module = __import__(f"corral.{home}", fromlist=[name])
            return getattr(module, name)
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
