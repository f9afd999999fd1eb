"""Prepare sandboxes in advance, for callers that start the same program often.

A spare is a sandbox that is complete except for the arguments, environment and directory of its
command. A launch uses a spare only if both have the same plan in everything else. Each spare has
its own channel, so no other sandbox can get the command that is sent to the spare.
"""

from __future__ import annotations

import sys
import threading

from corral.api import launch as launching
from corral.api import sandbox as sandboxes
from corral.api.sandbox import Sandbox
from corral.errors import SandboxError
from corral.platforms import current
from corral.record import record, replace

if sys.platform != "win32":
    from corral.api import zygote_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from corral.api.launch import PolicyLike
    from corral.api.sandbox import Channel, Stream
    from corral.plan.model import Plan


MAX_SPARES = 64
"""The number of spares is limited, because each spare keeps three processes running until it is
used.
"""


@record
class _Spare:
    shape: Plan
    channel: Channel


class Pool:
    """Launches sandboxes, and keeps spares ready for the next launches.

    After each launch the pool makes new spares for the same program, so the first launch of a
    program cannot use a spare. A pool is a context manager: leaving it ends the spares, but not the
    sandboxes that it launched.
    """

    def __init__(self, policy: PolicyLike = None, *, spares: int = 1) -> None:
        if not 1 <= spares <= MAX_SPARES:
            raise ValueError(f"spares must be from 1 to {MAX_SPARES}, not {spares}")
        self._policy = launching.load_manifest(policy)
        self._max_spares = spares
        self._spares: list[_Spare] = []
        self._lock = threading.Lock()
        self._closed = False

    def launch(
        self,
        argv: Sequence[str],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Sandbox:
        """Start a target as `corral.launch` does, but use a spare if a suitable one exists."""
        if self._closed:
            raise ValueError("the pool is closed")
        plan = launching.plan(argv, self._policy, env=env, cwd=cwd)
        made = Sandbox(plan, stdin=stdin, stdout=stdout, stderr=stderr, connect=self._connect)
        self._refill(_shape(plan))
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the spares, and wait until they have ended."""
        with self._lock:
            self._closed = True
            spares, self._spares = self._spares, []
        for spare in spares:
            if sys.platform != "win32":
                zygote_client.end_spare(spare.channel)

    def _connect(self, plan: Plan, stdio: tuple[int, int, int]) -> Channel:
        shape = _shape(plan)
        while spare := self._take():
            try:
                if spare.shape == shape and (
                    sys.platform != "win32" and zygote_client.hand_over(spare.channel, plan, stdio)
                ):
                    return spare.channel
            except BaseException:
                spare.channel.close()
                raise
            spare.channel.close()
        return sandboxes.supervisors.launch(plan, stdio)

    def _take(self) -> _Spare | None:
        with self._lock:
            return self._spares.pop(0) if self._spares else None

    def _refill(self, shape: Plan) -> None:
        """Ask for new spares without waiting for them. Ignore errors: the next launch then starts
        without a spare, and reports the error if it still occurs.
        """
        if current.load().find_spare_maker(shape) is None:
            return
        with self._lock:
            while not self._closed and len(self._spares) < self._max_spares:
                try:
                    channel = sandboxes.supervisors.launch(shape, ())
                except (OSError, SandboxError):
                    return
                self._spares.append(_Spare(shape=shape, channel=channel))


def _shape(plan: Plan) -> Plan:
    """Return a plan without its command, environment and streams, to compare it with the plan of a
    spare.
    """
    program = replace(
        plan.program, argv=(), typed=(), own_file="", directory="", home_per_directory=False,
        cwd="", notes=(), environment=(),
    )  # fmt: skip
    return replace(
        plan, program=program, environment=(), run="", ungranted=(), secret_names=(), warnings=(),
        private_streams=(),
    )  # fmt: skip
