"""Provide the Python API. corral must not fork the calling process, because a process that has
several threads cannot be forked safely. Instead, except on Windows, corral starts a process with
only one thread, the zygote, and forks that.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from corral.api import child_python, wire_format
from corral.api.sandbox import PIPE, Sandbox
from corral.errors import CommandError, SandboxError
from corral.plan.host import Host
from corral.platforms import current
from corral.policy.manifest import COMMAND_LINE, Manifest, from_data, load
from corral.policy.model import Source
from corral.record import record
from corral.safe_text import shell_word, shown
from corral.supervisor import findings
from corral.supervisor.prepare import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Literal, TypedDict, Unpack, overload

    from corral.api.policy_dict import PolicyDict
    from corral.api.sandbox import Stream
    from corral.plan.model import Plan
    from corral.supervisor.report import Report

    class Surroundings(TypedDict, total=False):
        """The keyword arguments of `launch` that do not concern streams."""

        env: Mapping[str, str] | None
        cwd: str | None

    Pipe = Literal[-1]  # the type of PIPE
    PolicyLike = str | os.PathLike[str] | PolicyDict | Manifest | None

PACKAGES = ("npm:", "pypi:", "mcp:")
BUNDLES = (".mcpb", ".dxt")
PROBE = (
    "from corral.api import wire_format; from corral.supervisor import findings; "
    "sys.stdout.buffer.write(wire_format.encode(findings.current_host(fresh=True)))"
)


@record
class Result:
    """The result of `run` and `run_async`: the output of an ended target, and its report."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    report: Report


def probe(*, fresh: bool = False) -> Host:
    """Return what this machine can enforce.

    The probes run in a separate process, and their results are stored for later calls. With `fresh`
    all probes run again.
    """
    if fresh or not _known_hosts:
        stored = None if fresh else findings.load()
        system, machine = current.system(), current.machine()
        found = Host(system=system, machine=machine, findings=stored or ())
        if not stored or any(item.status == "unknown" for item in stored):
            command = [sys.executable, *child_python.build_arguments(PROBE)]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                problem = done.stderr.decode(errors="replace").strip()
                raise SandboxError(f"the probes failed: {problem}")
            found = wire_format.decode(done.stdout, Host)
        _known_hosts[:] = [found]
    return _known_hosts[0]


_known_hosts: list[Host] = []
"""This machine with its findings, or an empty list until this machine has been probed.

All launches in this process use the same findings.
"""


def plan(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Plan:
    """Return the plan of a launch, without starting the target."""
    sources = [Source(manifest=load_manifest(policy), trust="user", approved=True)]
    environment = os.environ if env is None else env
    directory = os.getcwd() if cwd is None else os.path.abspath(cwd)
    if isinstance(argv, (str, bytes)):
        raise TypeError(f"argv must be a list of words, not {argv!r}; use shlex.split")
    if not os.path.isdir(directory):
        raise NotADirectoryError(errno.ENOTDIR, "cwd is not a directory", directory)
    try:
        return prepare(argv, sources, environment=environment, cwd=directory, machine=probe())
    except CommandError as error:
        if argv and (argv[0].startswith(PACKAGES) or argv[0].lower().endswith(BUNDLES)):
            error.hint = (
                "argv is a program and its arguments; for a package or a bundle use `sandboxed` "
                f'in corral\'s module `mcp`: sandboxed({{"command": {shown(argv[0], 200)}}}), '
                f"or type: corral run {shell_word(argv[0])}"
            )
        raise


if TYPE_CHECKING:
    # The overloads differ only in the types of their streams.
    # fmt: off
    @overload
    def launch(
        argv: Sequence[str], policy: PolicyLike = None, *,
        stdin: Pipe, stdout: Pipe, stderr: Pipe,
        **more: Unpack[Surroundings],
    ) -> Sandbox[BinaryIO, BinaryIO, BinaryIO]: ...
    @overload
    def launch(
        argv: Sequence[str], policy: PolicyLike = None, *,
        stdin: Pipe, stdout: Pipe, stderr: Stream = None,
        **more: Unpack[Surroundings],
    ) -> Sandbox[BinaryIO, BinaryIO]: ...
    @overload
    def launch(  # type: ignore[overload-overlap]  # the overload with two PIPEs is above
        argv: Sequence[str], policy: PolicyLike = None, *,
        stdin: Stream = None, stdout: Pipe, stderr: Stream = None,
        **more: Unpack[Surroundings],
    ) -> Sandbox[BinaryIO | None, BinaryIO]: ...
    @overload
    def launch(
        argv: Sequence[str], policy: PolicyLike = None, *,
        stdin: Pipe, stdout: Stream = None, stderr: Stream = None,
        **more: Unpack[Surroundings],
    ) -> Sandbox[BinaryIO]: ...
    @overload
    def launch(
        argv: Sequence[str], policy: PolicyLike = None, *,
        stdin: Stream = None, stdout: Stream = None, stderr: Stream = None,
        **more: Unpack[Surroundings],
    ) -> Sandbox: ...
    # fmt: on


def launch(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Sandbox:
    """Start a target in a sandbox.

    `policy` is a policy file, a mapping with the same keys as such a file, or a Manifest. The
    variables and secrets that the policy passes are taken from `env`, or else from `os.environ`.
    """
    made = plan(argv, policy, env=env, cwd=cwd)
    return Sandbox(made, stdin=stdin, stdout=stdout, stderr=stderr)


def run(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Result:
    """Run a target until it ends, and return its exit code, output and report."""
    check_input(input)
    with launch(argv, policy, env=env, cwd=cwd, stdin=PIPE, stdout=PIPE, stderr=PIPE) as sandbox:
        errors: list[bytes] = []
        stderr = sandbox.stderr
        threads = [
            threading.Thread(target=lambda: errors.append(stderr.read()), daemon=True),
            threading.Thread(target=_feed, args=(sandbox.stdin, input), daemon=True),
        ]
        for thread in threads:
            thread.start()
        output = sandbox.stdout.read()
        sandbox.wait()
        for thread in threads:
            thread.join()
    return make_result(sandbox.report, output, b"".join(errors))


def check_input(data: object) -> None:
    """Raise TypeError if the target's input is not bytes. Call this before the launch."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"input must be bytes, not {data!r}; use str.encode")


def make_result(report: Report | None, stdout: bytes, stderr: bytes) -> Result:
    assert report is not None  # noqa: S101 - the target was waited for
    code = report.outcome.exit_code
    return Result(exit_code=code, stdout=stdout, stderr=stderr, report=report)


def _feed(stdin: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[stdin.write(left) :]  # one `write` may write only a part of the data
        stdin.close()
    except OSError:
        pass  # the target closed its stdin before it read everything, which is not an error


def load_manifest(policy: PolicyLike) -> Manifest:
    if policy is None:
        return Manifest(origin=COMMAND_LINE)
    if isinstance(policy, Manifest):
        return policy
    if isinstance(policy, str | os.PathLike):
        return load(os.fspath(policy))
    if not isinstance(policy, Mapping):
        raise TypeError(f"policy must be a mapping or the path of a file, not {policy!r}")
    return from_data({"version": 1, **policy}, "policy")
