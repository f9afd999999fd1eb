"""Command and sources -> Plan: merge the policy, resolve the program, decide. Nothing is started.

`run`, `explain` and the Python API all use this, so `explain` prints what `run` executes.
"""

from __future__ import annotations

import os
import sys

from corral.directories import config_file, home_directory
from corral.errors import PolicyError
from corral.plan.decide import decide, sample, warnings
from corral.plan.model import Plan
from corral.platforms import current
from corral.policy.model import Policy
from corral.record import replace
from corral.supervisor import findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corral.plan.host import Host
    from corral.plan.model import Composition
    from corral.policy.model import Source
    from corral.programs.model import Program


CERTIFICATES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE",
)  # fmt: skip
STATE = "${STATE_DIRECTORY}"
"""In a value that the policy sets, this stands for the directory that is kept between runs."""
ALWAYS_VISIBLE = ("/usr/", "/etc/ssl/certs", "/etc/pki/", "/etc/ca-certificates/")


def prepare(
    argv: Sequence[str],
    sources: Sequence[Source],
    *,
    environment: Mapping[str, str],
    cwd: str,
    machine: Host | None = None,
    protected: Sequence[str] = (),
) -> Plan:
    """Return the plan of a run. No grant may hold the `protected` files, such as its report."""
    home = os.path.realpath(home_directory(environment))
    policy = _merge_policy(sources, home, cwd, protected)
    system = current.load()
    program = system.resolve(
        argv,
        environment=environment,
        cwd=cwd,
        home=home,
        subprocess=policy.subprocess,
        grants=policy.grants,
        root=_find_root(sources),
    )
    if policy.allow:
        _check_proxy(environment)
    authorities = _authorities(environment) if policy.allow else {}
    program = _with_reads(program, authorities.values())
    machine = machine or findings.current_host()
    controls = decide(policy, machine, system.chains(policy))
    made = system.compose(policy, program, controls, home=home)
    start_in = (
        _server_directory(sources, program)
        or program.cwd
        or _granted_directory(policy, cwd)
        or made.home
    )
    return Plan(
        program=replace(program, cwd=start_in),
        steps=made.steps,
        controls=(*controls, *made.controls),
        environment=target_environment(
            policy, program, {**environment, **authorities}, made, authorities
        ),
        secret_names=policy.secret_names,
        timeout=policy.limits.timeout,
        cpu_time=policy.limits.cpu_time,
        sample=sample(controls, policy),
        allow=policy.allow,
        admit=policy.admit,
        listen=policy.listen,
        run=made.run,
        residue=made.residue,
        watched=made.watched,
        covers=made.covers,
        warnings=(
            *warnings(controls),
            *made.warnings,
            *_admission_warnings(policy),
            *(
                f"{path} is a mount of the system: the target sees it empty"
                for path in policy.covered
            ),
            *program.notes,
        ),
    )


def _merge_policy(
    sources: Sequence[Source], home: str, cwd: str, protected: Sequence[str]
) -> Policy:
    """Return the policy. Without any source it is the default, and nothing more is imported."""
    if not sources and not os.path.lexists(config_file()):
        return Policy()
    from corral.policy.merge import merge
    from corral.policy.user_config import load

    config = load()
    policy = merge(sources, ceilings=config.ceilings, home=home, cwd=cwd, protected=protected)
    if policy.grants:
        from corral.policy.granted_paths import check_granted_paths

        check_granted_paths(policy.grants, home)
    return replace(policy, admit=config.admit) if policy.allow else policy


def _find_root(sources: Sequence[Source]) -> str:
    """Return the directory of a server that the user named, "" for a plain command."""
    own = [one.manifest.directory for one in sources if one.trust == "request"]
    return next(filter(None, own), "")


def _admission_warnings(policy: Policy) -> tuple[str, ...]:
    """Return a warning for each network that the user's configuration admits and that needs one."""
    if not policy.admit:
        return ()
    from corral.network.addresses import parse_network
    from corral.network.guard_exceptions import format_warning

    return tuple(filter(None, (format_warning(parse_network(text)) for text in policy.admit)))


def _server_directory(sources: Sequence[Source], program: Program) -> str:
    """Return the directory of a server that came as one, if the target can see it."""
    own = [one.manifest.directory for one in sources if one.trust == "request"]
    for directory in filter(None, own):
        from corral.paths.native import is_inside

        if any(is_inside(directory, path) for path in program.reads):
            return directory
    return ""


def _granted_directory(policy: Policy, cwd: str) -> str:
    """Return the caller's directory if it is granted."""
    if not policy.grants:
        return ""
    from corral.paths.native import is_inside

    here = os.path.realpath(cwd)
    granted = any(grant.directory and is_inside(here, grant.path) for grant in policy.grants)
    return here if granted else ""


def _check_proxy(environment: Mapping[str, str]) -> None:
    """Refuse a proxy of the host that the gateway could not use, before anything starts."""
    from corral.network.host_proxy import proxy_from_environment

    try:
        proxy_from_environment(environment)
    except ValueError as error:
        raise PolicyError(
            f"network.allow: {error}",
            hint="set HTTPS_PROXY to an http:// address, or NO_PROXY for what needs no proxy",
        ) from error


def _authorities(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the host's certificate files and directories, by the variable that names them."""
    found = {name: environment.get(name, "") for name in CERTIFICATES}
    return {
        name: os.path.realpath(path)
        for name, path in found.items()
        if os.path.isabs(path) and os.path.exists(path)
    }


def _with_reads(program: Program, paths: Iterable[str]) -> Program:
    """Return the program with more files that it reads, except those that it reads already."""
    new = [path for path in dict.fromkeys(paths) if not path.startswith(ALWAYS_VISIBLE)]
    new = [path for path in new if path not in program.reads]
    if not new:
        return program
    seen = [os.stat(path) for path in new]
    return replace(
        program,
        reads=(*program.reads, *new),
        seen=(*program.seen, *((item.st_dev, item.st_ino) for item in seen)),
        why=(*program.why, *("certificates that this host trusts" for _ in new)),
    )


def _fold(name: str) -> str:
    """Return a variable's name for comparisons: on Windows `Path` is `PATH`."""
    return name.upper() if sys.platform == "win32" else name


def target_environment(
    policy: Policy,
    program: Program,
    environment: Mapping[str, str],
    made: Composition,
    certificates: Iterable[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Return the target's environment: of the caller's, only what the policy passes."""
    known = {_fold(name): value for name, value in environment.items()}
    missing = [name for name in policy.secret_names if _fold(name) not in known]
    if missing:
        raise PolicyError(
            f"secrets that are not in the environment: {', '.join(missing)}",
            hint="set them where corral is started; their values are never printed",
        )
    values = {"PATH": os.pathsep.join(program.search), **dict(made.environment)}
    for name in (*certificates, *policy.pass_names, *policy.secret_names):
        if _fold(name) in known:
            values[name] = known[_fold(name)]
    state = values.get("STATE_DIRECTORY", STATE)
    values.update((name, value.replace(STATE, state)) for name, value in policy.set_values)
    return tuple(values.items())
