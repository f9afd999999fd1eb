"""Make a plan from a command and its policy sources.

This module merges the policy, resolves the program, and decides which mechanism enforces each
control. It starts nothing. `run`, `explain` and the Python API all use it, so `explain` prints
exactly what `run` executes.
"""

from __future__ import annotations

import os
import sys

from corral.directories import config_file, home_directory
from corral.errors import PolicyError
from corral.plan.decide import decide, needed_capabilities, sample, warnings
from corral.plan.model import Plan
from corral.platforms import current
from corral.policy.model import Policy
from corral.programs.arguments import detect_kind
from corral.record import record, replace
from corral.supervisor import findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from corral.messages.definitions import Pin
    from corral.plan.host import Host
    from corral.plan.model import Composition, Held, Ungranted
    from corral.policy.model import Mcp, Source
    from corral.programs.model import Program


CERTIFICATES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE",
)  # fmt: skip
STATE = "${STATE_DIRECTORY}"
"""In the values of `environment.set`, this text is replaced with the path of the directory that
persists between runs.
"""
DOTS = 3  # the number of dots in an IPv4 address
ALWAYS_VISIBLE = ("/usr/", "/etc/ssl/certs", "/etc/pki/", "/etc/ca-certificates/")


@record
class Subject:
    """A program, the policy for it, and the user's home directory.

    `authorities` maps the names of variables such as SSL_CERT_FILE to the host's certificate files.
    """

    policy: Policy
    program: Program
    home: str
    authorities: Mapping[str, str]


def find_subject(
    argv: Sequence[str],
    sources: Sequence[Source],
    *,
    environment: Mapping[str, str],
    cwd: str,
    protected: Sequence[str] = (),
    server: Sequence[str] = (),
) -> Subject:
    """Merge the policy sources and find the program. Do not check what this host can enforce."""
    home = os.path.realpath(home_directory(environment))
    policy = _merge_policy(sources, home, cwd, protected)
    program = current.load().resolve(
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
    program = replace(_with_reads(program, authorities.values()), server=tuple(server))
    return Subject(policy=policy, program=program, home=home, authorities=authorities)


def prepare(
    argv: Sequence[str],
    sources: Sequence[Source],
    *,
    environment: Mapping[str, str],
    cwd: str,
    machine: Host | None = None,
    protected: Sequence[str] = (),
    server: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Return the plan of a run. Refuse a write grant that contains one of the `protected` files,
    such as the run's report.

    The words in `server` identify the server: corral stores its denials, its pins, and the home
    directory that it keeps between runs under these words. If `server` is empty, the command
    identifies the server. If probing this machine is slow, `notify` is called with a line of text
    first.
    """
    subject = find_subject(
        argv, sources, environment=environment, cwd=cwd, protected=protected, server=server
    )
    policy, program, system = subject.policy, subject.program, current.load()
    chains = system.chains(policy)
    machine = machine or findings.current_host(
        wanted=lambda: needed_capabilities(policy, chains, current.system()), notify=notify
    )
    controls = decide(policy, machine, chains)
    named = find_start_directory(subject, sources, cwd)
    program = replace(program, cwd=named)
    if named or not all(map(os.path.isabs, program.typed)):
        from corral.programs.identity import with_directory

        program = with_directory(program, cwd=cwd)
    made = system.compose(policy, program, controls, home=subject.home)
    start_in = made.start_in or named or made.home
    # Pins are stored under the server's directory and command, because servers in different
    # directories may have the same command.
    pinned_as = program.server or (*filter(None, (_find_root(sources),)), *program.typed)
    return Plan(
        program=replace(program, cwd=start_in),
        steps=made.steps,
        controls=(*controls, *made.controls, *_guard_rows(policy.mcp)),
        environment=target_environment(
            policy, program, {**environment, **subject.authorities}, made, subject.authorities
        ),
        secret_names=policy.secret_names,
        requested_names=policy.requested_names,
        given_values=policy.given_values,
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
        mcp=policy.mcp,
        pins=_load_pins(policy.mcp, pinned_as),
        pinned_as=pinned_as,
        ungranted=_find_ungranted(subject, environment, cwd=subject.program.cwd or cwd),
        warnings=(
            *warnings(controls),
            *made.warnings,
            *_policy_warnings(policy),
            *program.notes,
            *_find_misplaced(subject, cwd=cwd, start_in=start_in, has_home=start_in == made.home),
            *_runtime_warnings(program, machine),
        ),
    )


def _guard_rows(mcp: Mcp | None) -> tuple[Held, ...]:
    if mcp is None:
        return ()
    from corral.supervisor.message_relay import describe_guard

    return (describe_guard(mcp),)


def _load_pins(mcp: Mcp | None, server: Sequence[str]) -> tuple[Pin, ...] | None:
    if mcp is None or mcp.pins == "off":
        return None
    from corral.policy.pins import load_pins

    return load_pins(server, required=mcp.pins == "refuse")


def _find_ungranted(
    subject: Subject, environment: Mapping[str, str], *, cwd: str
) -> tuple[Ungranted, ...]:
    """Search the command's arguments and the target's variables for paths, addresses and names of
    variables. Return those that the policy denies.
    """
    policy, program = subject.policy, subject.program
    # `words` must not contain secrets, because hints quote these words.
    passed = [environment[name] for name in policy.pass_names if name in environment]
    words = [*program.typed[1:], *(value for _, value in policy.set_values), *passed]
    found: tuple[Ungranted, ...] = ()
    if any("/" in word for word in words):
        from corral.supervisor.ungranted_paths import find_ungranted

        granted = [grant.path for grant in policy.grants]
        granted += [grant.written for grant in policy.grants if grant.written]
        found = find_ungranted(words, (*program.reads, *granted), home=subject.home, cwd=cwd)
    numbers = [word for word in words if word.count(".") >= DOTS]
    names = [word for word in program.typed[1:] if word.isupper() and word in environment]
    if numbers or names:
        from corral.supervisor.ungranted_names import find_addresses, find_variables

        given = (*policy.pass_names, *policy.secret_names, *(name for name, _ in policy.set_values))
        found += find_addresses(numbers, policy.allow) + find_variables(names, environment, given)
    return found


def _find_misplaced(
    subject: Subject, *, cwd: str, start_in: str, has_home: bool
) -> tuple[str, ...]:
    """Return a warning for each relative path in the command that the target does not find."""
    grants, words = subject.policy.grants, subject.program.argv[1:]
    if not grants or start_in in {cwd, os.path.realpath(cwd)}:
        return ()
    from corral.supervisor.ungranted_paths import find_misplaced

    granted = [path for grant in grants for path in (grant.path, grant.written) if path]
    home = subject.home if has_home else ""
    return tuple(find_misplaced(words, granted, cwd=cwd, start_in=start_in, home=home))


def _runtime_warnings(program: Program, machine: Host) -> tuple[str, ...]:
    """Return a warning if the program is a runtime, such as node, and a probe showed that this
    runtime does not start in the sandbox.
    """
    kind = detect_kind(program.path, program.real)
    found = machine.finding(f"starts {kind}")
    if found.status != "absent":
        return ()
    return (f"{kind} did not start in the sandbox when it was probed: {found.evidence}",)


def _merge_policy(
    sources: Sequence[Source], home: str, cwd: str, protected: Sequence[str]
) -> Policy:
    """Return the policy that results from all sources. Without sources and user configuration,
    return the default policy without importing `merge`, because the import takes time.
    """
    if not sources and not os.path.lexists(config_file()):
        return Policy()
    from corral.policy.merge import merge
    from corral.policy.user_config import load

    config = load()
    policy = merge(sources, ceilings=config.ceilings, home=home, cwd=cwd, protected=protected)
    if policy.grants:
        from corral.policy.granted_paths import check_granted_paths

        if warning := check_granted_paths(policy.grants, home):
            policy = replace(policy, warnings=(warning,))
    return replace(policy, admit=config.admit) if policy.allow else policy


def _find_root(sources: Sequence[Source]) -> str:
    """Return the directory of the server that the user named, or "" if the user named a command."""
    own = [one.manifest.directory for one in sources if one.trust == "request"]
    return next(filter(None, own), "")


def _policy_warnings(policy: Policy) -> Iterator[str]:
    if policy.admit:
        from corral.network.addresses import parse_network
        from corral.network.guard_exceptions import format_warning

        yield from filter(None, (format_warning(parse_network(text)) for text in policy.admit))
    for path in policy.covered:
        yield f"{path} is a mount of the system, which the target sees as an empty directory"
    yield from policy.warnings


def find_start_directory(subject: Subject, sources: Sequence[Source], cwd: str) -> str:
    """Return the directory in which the target starts, or "" for the target's home directory."""
    program, grants = subject.program, subject.policy.grants
    named = [one.manifest.directory for one in sources if one.trust == "request"]
    if not any(named) and not grants:
        return program.cwd
    from corral.paths.native import is_inside

    for directory in filter(None, named):
        if any(is_inside(directory, path) for path in program.reads):
            return directory
    if program.cwd:
        return program.cwd
    here = os.path.realpath(cwd)
    granted = any(grant.directory and is_inside(here, grant.path) for grant in grants)
    return here if granted else ""


def _check_proxy(environment: Mapping[str, str]) -> None:
    """Refuse a host proxy that corral cannot use, before anything starts."""
    from corral.network.host_proxy import proxy_from_environment

    try:
        proxy_from_environment(environment)
    except ValueError as error:
        raise PolicyError(
            f"network.allow: {error}",
            hint="set HTTPS_PROXY to an http:// address, or NO_PROXY for hosts that need no proxy",
        ) from error


def _authorities(environment: Mapping[str, str]) -> dict[str, str]:
    """Return {variable: path} for the variables that name the host's certificate files and
    directories.
    """
    found = {name: environment.get(name, "") for name in CERTIFICATES}
    return {
        name: os.path.realpath(path)
        for name, path in found.items()
        if os.path.isabs(path) and os.path.exists(path)
    }


def _with_reads(program: Program, paths: Iterable[str]) -> Program:
    """Add certificate files to the files that a program reads, and return the new program."""
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
    """Return a variable's name in the form used for comparisons. On Windows `Path` and `PATH` are
    the same variable.
    """
    return name.upper() if sys.platform == "win32" else name


def target_environment(
    policy: Policy,
    program: Program,
    environment: Mapping[str, str],
    made: Composition,
    certificates: Iterable[str] = (),
) -> tuple[tuple[str, str], ...]:
    """Return the target's environment. It contains only those of the caller's variables that the
    policy passes or declares as secrets, or that `certificates` names. Raise PolicyError if one of
    the policy's secrets is not set.
    """
    known = {_fold(name): value for name, value in environment.items()}
    missing = [name for name in policy.secret_names if _fold(name) not in known]
    if missing:
        raise PolicyError(
            f"these secrets are not in the environment: {', '.join(missing)}",
            hint="set them where corral is started; their values are never printed",
        )
    values = {"PATH": os.pathsep.join(program.search), **dict(made.environment)}
    for name in (*certificates, *policy.pass_names, *policy.secret_names):
        if _fold(name) in known:
            values[name] = known[_fold(name)]
    state = values.get("STATE_DIRECTORY", STATE)
    values.update((name, value.replace(STATE, state)) for name, value in policy.set_values)
    return tuple(values.items())
