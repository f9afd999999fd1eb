"""Named hosts for a target without any network capability: the outer end of the relay.

The wall is the missing capability (`network_capabilities.py`); the relay is how honest clients get
through it. Inside the container a shim (`inside.py`) listens on loopback, and `HTTP_PROXY` and
`HTTPS_PROXY` name its port; every connection comes out here through one pair of inherited pipes.
Each request is checked as on Linux: the name against the policy, every address that the host finds
for it against the guard, and exactly the address that was checked is dialled. On TLS ports the name
in the client's hello has to be allowed too. A client that ignores the variables reaches nothing.

`start.py` says where the shim runs and why. The shim is not trusted.

    relay = Relay(reader, writer, Outbound(...))   # the pipes to and from the shim
    relay.close()                                  # after the shim was ended
"""

import os
import threading
import time
from collections.abc import Mapping

from corral.denials.records import Denials
from corral.network.destinations import check_from_policy
from corral.network.http_proxy.connection import Connection
from corral.network.http_proxy.outbound import Outbound
from corral.network.traffic import Traffic
from corral.plan.model import Plan
from corral.platforms.windows.relay import inside
from corral.platforms.windows.relay.inside import Stream

MAX_HANDLERS = 2 * inside.MAX_STREAMS
"""A connection that has ended for the target can still send to a slow server."""
CLOSE_SECONDS = 5.0
"""How long to wait for the end of the pipe."""


class Relay:
    """Owns both descriptors. It blocks only in threads of its own; none outlives the pipes."""

    def __init__(self, reader: int, writer: int, out: Outbound) -> None:
        self.denials = out.denials
        self._out = out
        self._handlers = threading.Semaphore(MAX_HANDLERS)
        self._descriptors = (reader, writer)
        self._mux = inside.Mux(reader, writer, arrived=self._arrive)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return -1: there is nothing to poll, because the relay has threads of its own."""
        return -1

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Do nothing: the threads do it."""

    def traffic(self) -> Mapping[str, Traffic]:
        return self._out.traffic()

    def close(self) -> None:
        """Close the pipes. The shim must have ended, so that the thread that reads them ends."""
        self._thread.join(CLOSE_SECONDS)
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
        # If all handlers are busy, half of them have no stream any more and end by themselves.
        self._handlers.acquire()
        threading.Thread(target=self._handle, args=(stream,), daemon=True).start()

    def _handle(self, stream: Stream) -> None:
        connection = Connection(self._out, stream, lambda end: inside.Splice(end, stream))
        try:
            connection.serve()
        finally:
            # The client has its answer; only the handler stays busy for this time.
            time.sleep(connection.pause_seconds())
            self._handlers.release()


def open_relay(plan: Plan, pipes: tuple[int, int], denials: Denials | None) -> Relay:
    """`pipes` are those from and to the relay's inner end."""
    return Relay(*pipes, Outbound(check_from_policy(plan.allow, plan.admit, os.environ, denials)))
