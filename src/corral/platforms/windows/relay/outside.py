"""Named hosts for a target without any network capability: the outer end of the relay.

The wall is the capability that is missing (`network.py`); this is how honest clients get through
it. Inside the container a shim (`relay_shim.py`) listens on loopback, and `HTTP_PROXY` and
`HTTPS_PROXY` lead there; every connection comes out here through one pair of inherited pipes. What
it asks for is checked as on Linux: the name against the policy, every address that the host finds
for it against the guard, and exactly the address that was checked is dialled. On TLS ports the name
in the client's hello has to be allowed too. A client that ignores the variables reaches nothing.

Where the shim runs and why is told in `relay_start.py`. Nothing is entrusted to it.

    relay = Relay(reader, writer, Outbound(...))   # the pipes to and from the shim
    relay.close()                                  # after the shim was ended
"""

from __future__ import annotations

import os
import threading
import time

from corral.denials.records import Denials
from corral.network.destinations import check_from_policy
from corral.network.http_proxy.connection import Connection
from corral.network.http_proxy.outbound import Outbound
from corral.platforms.windows.relay import inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from corral.network.traffic import Traffic
    from corral.plan.model import Plan
    from corral.platforms.windows.relay.inside import Stream


MOST_HANDLERS = 2 * inside.MOST_STREAMS
"""Connections that are over for the target can still be on their way to a slow server."""
LAST_BREATH = 5.0


class Relay:
    """Takes over both descriptors. Threads wait here and nowhere else; none outlives the pipes."""

    def __init__(self, reader: int, writer: int, out: Outbound) -> None:
        self.denials = out.denials
        self._out = out
        self._handlers = threading.Semaphore(MOST_HANDLERS)
        self._descriptors = (reader, writer)
        self._mux = inside.Mux(reader, writer, arrived=self._arrive)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """There is nothing to wait for from outside: it has threads of its own."""
        return -1

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Never anything."""

    def traffic(self) -> Mapping[str, Traffic]:
        return self._out.traffic()

    def close(self) -> None:
        """Once the shim is gone: the pipe has ended then, and so has whoever reads it."""
        self._thread.join(LAST_BREATH)
        self._out.stop_counting()
        if not self._thread.is_alive():
            for fd in self._descriptors:
                os.close(fd)

    def _run(self) -> None:
        try:
            self._mux.run()
        except inside.ProtocolError as error:
            self.denials.add("limit", "the relay's pipe", why=f"no frames of ours: {error}")

    def _arrive(self, stream: Stream) -> None:
        # With all of them busy half have no stream any more, and end without what comes by pipe.
        self._handlers.acquire()
        threading.Thread(target=self._handle, args=(stream,), daemon=True).start()

    def _handle(self, stream: Stream) -> None:
        connection = Connection(self._out, stream, lambda end: inside.Splice(end, stream))
        try:
            connection.serve()
        finally:
            time.sleep(connection.pause_seconds())
            self._handlers.release()


def outlet(plan: Plan, doors: list[int], denials: Denials | None) -> Relay:
    """`doors` are the pipes from and to the relay's inner end."""
    reader, writer = doors
    check = check_from_policy(plan.allow, plan.admit, os.environ, denials)
    return Relay(reader, writer, Outbound(check))
