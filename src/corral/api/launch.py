"""The Python API. Threads in the caller are normal: it is never forked, a zygote is."""

from __future__ import annotations

import os
import sys

from corral.api.sandbox import PIPE, Sandbox
from corral.policy.manifest import COMMAND_LINE, Manifest, from_data, load
from corral.policy.model import Source
from corral.record import record
from corral.supervisor.prepare import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from corral.api.sandbox import Stream
    from corral.plan.host import Finding, Host
    from corral.plan.model import Plan
    from corral.supervisor.report import Report

    PolicyLike = str | os.PathLike[str] | Mapping[str, object] | Manifest | None

PROBE = "from corral.cli import main; sys.exit(main(['doctor', '--json']))"


@record
class Result:
    exit_code: int
    stdout: bytes
    stderr: bytes
    report: Report


def probe(*, fresh: bool = False) -> Host:
    """What this machine was seen to do. The probes run in a process of their own, once a boot."""
    from corral.plan.host import Host
    from corral.platforms import current
    from corral.supervisor import findings as cache

    if fresh or not _seen:
        findings = (None if fresh else cache.load()) or _probe_elsewhere()
        found = Host(system=current.system(), machine=current.machine(), findings=findings)
        _seen[:] = [found]
    return _seen[0]


_seen: list[Host] = []
"""The machine does not change under a running process often enough to look at every launch."""


def plan(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Plan:
    """What a launch would do; nothing is started but, once a boot, the probes."""
    sources = [Source(manifest=_manifest(policy), trust="user", approved=True)]
    environment = os.environ if env is None else env
    where = os.getcwd() if cwd is None else os.path.abspath(cwd)
    return prepare(argv, sources, environment=environment, cwd=where, machine=probe())


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
    """Start a target behind walls. `policy` is a file, a mapping with a file's keys, or a Manifest.

    `env` is the environment that the policy takes its passed and secret variables from.
    """
    chosen = plan(argv, policy, env=env, cwd=cwd)
    return Sandbox(chosen, stdin=stdin, stdout=stdout, stderr=stderr)


def run(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Result:
    """Run a target to its end with its output captured."""
    import threading

    with launch(argv, policy, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd) as sandbox:
        errors: list[bytes] = []
        assert sandbox.stdin and sandbox.stdout and sandbox.stderr  # noqa: S101, PT018 - all PIPE
        stderr = sandbox.stderr
        reader = threading.Thread(target=lambda: errors.append(stderr.read()), daemon=True)
        writer = threading.Thread(target=_feed, args=(sandbox.stdin, input), daemon=True)
        reader.start()
        writer.start()
        output = sandbox.stdout.read()
        code = sandbox.wait()
        reader.join()
        writer.join()
        report = sandbox.report
    assert report is not None  # noqa: S101 - it was waited for
    return Result(exit_code=code, stdout=output, stderr=b"".join(errors), report=report)


def _feed(stdin: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[stdin.write(left) :]  # a pipe takes what it takes
        stdin.close()
    except OSError:
        pass  # a target need not read what it is sent


def _manifest(policy: PolicyLike) -> Manifest:
    if policy is None:
        return Manifest(origin=COMMAND_LINE)
    if isinstance(policy, Manifest):
        return policy
    if isinstance(policy, str | os.PathLike):
        return load(os.fspath(policy))
    return from_data({"version": 1, **policy}, "policy")


def _probe_elsewhere() -> tuple[Finding, ...]:
    import json
    import subprocess

    from corral.api import own_python
    from corral.errors import SandboxError
    from corral.plan.host import Finding

    command = [sys.executable, *own_python.arguments(PROBE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(f"the probes failed: {done.stderr.strip()}")
    return tuple(Finding(**item) for item in json.loads(done.stdout)["findings"])
