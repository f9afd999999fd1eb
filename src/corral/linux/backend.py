"""What corral's flow asks of Linux."""

from __future__ import annotations

import sys

from corral import linux
from corral.linux import birth as births
from corral.linux import layout

TYPE_CHECKING = False
assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.host import Finding
    from corral.linux.birth import Child, Stdio
    from corral.plan import Chains, Held, Plan, Step
    from corral.policy import Policy
    from corral.servers.program import Program


def chains(policy: Policy) -> Chains:
    return linux.chains(policy)


def steps(
    policy: Policy, program: Program, controls: Sequence[Held], *, home: str
) -> tuple[Step, ...]:
    """Look at the files once; what follows from that is pure."""
    return linux.compose(policy, program, layout.survey(policy, program, home=home), controls)


def birth(plan: Plan, stdio: Stdio) -> Child:
    return births.birth(plan, stdio)


def probe() -> tuple[Finding, ...]:
    from corral.linux import probes

    return probes.probe()
