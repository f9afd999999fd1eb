"""Run MCP servers that nobody has reason to trust, inside walls and limits that corral can prove.

The names in `__all__` are the public API. They are loaded when first used, because the command line
passes through here on its way to a target.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.api.asyncio_sandbox import AsyncSandbox, launch_async, run_async
    from corral.api.launch import Result, launch, probe, run
    from corral.api.public_types import (
        CommandError,
        Finding,
        Host,
        LaunchError,
        ManifestError,
        Plan,
        PolicyError,
        Report,
        SandboxError,
        SupervisionError,
        UnenforceableError,
    )
    from corral.api.sandbox import DEVNULL, PIPE, Sandbox

__all__ = [
    "DEVNULL", "PIPE", "AsyncSandbox", "CommandError", "Finding", "Host", "LaunchError",
    "ManifestError", "Plan", "PolicyError", "Report", "Result", "Sandbox", "SandboxError",
    "SupervisionError", "UnenforceableError", "launch", "launch_async", "probe", "run", "run_async",
]  # fmt: skip
__version__ = "0.1.0"
_HOMES = {
    "asyncio_sandbox": ("AsyncSandbox", "launch_async", "run_async"),
    "launch": ("Result", "launch", "probe", "run"),
    "sandbox": ("DEVNULL", "PIPE", "Sandbox"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "public_types")
    return getattr(__import__(f"corral.api.{home}", fromlist=[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
