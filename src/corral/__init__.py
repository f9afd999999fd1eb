"""Run untrusted MCP servers in a sandbox. corral tries each wall before a server starts. If a wall
cannot be set up, corral refuses the run, unless the user permits runs without this wall.

The names in `__all__` are the public API. Each name is loaded when it is first used, because
`corral run` also imports this package and has to start fast.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.api.asyncio_sandbox import AsyncSandbox, launch_async, run_async
    from corral.api.launch import Result, launch, probe, run
    from corral.api.pool import Pool
    from corral.api.public_types import (
        CommandError,
        Denial,
        Finding,
        Host,
        LaunchError,
        Manifest,
        ManifestError,
        Outcome,
        Plan,
        PolicyDict,
        PolicyError,
        Report,
        SandboxError,
        SupervisionError,
        UnenforceableError,
    )
    from corral.api.sandbox import DEVNULL, PIPE, Sandbox

__all__ = [
    "DEVNULL", "PIPE", "AsyncSandbox", "CommandError", "Denial", "Finding", "Host", "LaunchError",
    "Manifest", "ManifestError", "Outcome", "Plan", "PolicyDict", "PolicyError", "Pool", "Report",
    "Result", "Sandbox", "SandboxError", "SupervisionError", "UnenforceableError", "launch",
    "launch_async", "probe", "run", "run_async",
]  # fmt: skip
__version__ = "0.1.0"
_HOMES = {
    "asyncio_sandbox": ("AsyncSandbox", "launch_async", "run_async"),
    "launch": ("Result", "launch", "probe", "run"),
    "pool": ("Pool",),
    "sandbox": ("DEVNULL", "PIPE", "Sandbox"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'corral' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "public_types")
    return getattr(__import__(f"corral.api.{home}", fromlist=[name]), name)


# Python 3.8 cannot evaluate the annotation, so it is in quotes. Otherwise Python 3.8 would fail
# here, before `__main__` can say that corral needs a newer version.
def __dir__() -> "list[str]":
    return [*__all__, "__version__"]
