"""From what was asked to a Plan: gather the sources, look at the host, decide. Nothing is started.

`run`, `explain` and the Python API all come through here, so `explain` prints what `run` executes.
"""

from __future__ import annotations

import os

from corral import backend, host
from corral.directories import config_file, home_directory
from corral.errors import PolicyError
from corral.plan import Plan, decide, sample, warnings
from corral.policy import Policy
from corral.record import replace
from corral.servers.command import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from corral.host import Host
    from corral.plan import Composition
    from corral.policy import Source
    from corral.servers.program import Program


def prepare(
    argv: Sequence[str],
    sources: Sequence[Source],
    *,
    environment: Mapping[str, str],
    cwd: str,
    machine: Host | None = None,
    protected: Sequence[str] = (),
) -> Plan:
    """`protected` are files of this run, such as its report, that no grant may hold."""
    home = os.path.realpath(home_directory(environment))
    policy = _policy(sources, home, cwd, protected)
    program = resolve(
        argv, environment=environment, cwd=cwd, home=home, subprocess=policy.subprocess
    )
    system = backend.load()
    machine = machine or host.current()
    controls = decide(policy, machine, system.chains(policy))
    made = system.compose(policy, program, controls, home=home)
    start_in = program.cwd or _granted_directory(policy, cwd) or made.home
    return Plan(
        program=replace(program, cwd=start_in),
        steps=made.steps,
        controls=controls,
        environment=inside(policy, program, environment, made),
        secret_names=policy.secret_names,
        timeout=policy.limits.timeout,
        cpu_time=policy.limits.cpu_time,
        sample=sample(controls, policy),
        allow=policy.allow,
        run=made.run,
        residue=made.residue,
        watched=made.watched,
        warnings=(*warnings(controls), *program.notes),
    )


def _policy(sources: Sequence[Source], home: str, cwd: str, protected: Sequence[str]) -> Policy:
    """Where nobody said anything the default is the policy, and nothing more is imported for it."""
    if not sources and not os.path.lexists(config_file()):
        return Policy()
    from corral.config import load_ceilings
    from corral.policy import merge

    return merge(sources, ceilings=load_ceilings(), home=home, cwd=cwd, protected=protected)


def _granted_directory(policy: Policy, cwd: str) -> str:
    """The caller's directory, if the target may see it."""
    here = os.path.realpath(cwd)
    granted = any(
        grant.directory and os.path.commonpath((here, grant.path)) == grant.path
        for grant in policy.grants
    )
    return here if granted else ""


def inside(
    policy: Policy, program: Program, environment: Mapping[str, str], made: Composition
) -> tuple[tuple[str, str], ...]:
    """The target's environment: nothing of the caller's but what the policy passes."""
    missing = [name for name in policy.secret_names if name not in environment]
    if missing:
        raise PolicyError(
            f"secrets that are not in the environment: {', '.join(missing)}",
            hint="set them where corral is started; their values are never printed",
        )
    values = {
        "PATH": os.pathsep.join(program.search),
        "HOME": made.home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": made.temporary,
        "LANG": "C.UTF-8",
    }
    if policy.state:
        values["STATE_DIRECTORY"] = "/state"
    for name in (*policy.pass_names, *policy.secret_names):
        if name in environment:
            values[name] = environment[name]
    values.update(dict(policy.set_values))
    return tuple(values.items())
