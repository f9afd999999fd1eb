"""Run the relay's outer end, which connects a target without network capabilities to named hosts.

Without a capability the target cannot reach any network (`network_capabilities.py`). To reach the
allowed hosts, it uses a small program in the container, the shim (`inside.py`), as its proxy:
`HTTP_PROXY` and `HTTPS_PROXY` name the shim's port on loopback. Connections to the shim arrive here
through one pair of pipes, which the shim has inherited. Each request is checked as on Linux: the
policy has to allow the host's name, and the address guard has to allow the address before corral
connects to it. On TLS ports the host name in the client's TLS hello has to be allowed too. A
program that ignores the proxy variables reaches nothing.

The shim is not trusted; `start.py` says where it runs and why.
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
"""More handlers than streams, because the handler of a closed stream may still be sending."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for the shim's pipe to end, at most."""


class Relay:
    """Serves the connections that arrive through the shim's pipes.

    It has its own threads, which end when the shim closes the pipes.
    """

    def __init__(self, reader: int, writer: int, out: Outbound) -> None:
        self.denials = out.denials
        self._out = out
        self._handlers = threading.Semaphore(MAX_HANDLERS)
        self._descriptors = (reader, writer)
        self._mux = inside.Mux(reader, writer, arrived=self._arrive)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return -1, because the relay has its own threads and needs no polling."""
        return -1

    def deadline(self) -> float | None:
        return None

    def run_ready(self) -> None:
        """Do nothing, because the relay's threads do the work."""

    def traffic(self) -> Mapping[str, Traffic]:
        return self._out.traffic()

    def close(self) -> None:
        """Close the pipes. Call this after the shim has ended, because otherwise a thread still
        reads from the pipes and they stay open.
        """
        self._thread.join(CLOSE_SECONDS)
        self._out.stop_counting()
        if not self._thread.is_alive():
            for fd in self._descriptors:
                os.close(fd)

    def _run(self) -> None:
        try:
            self._mux.run()
        except inside.ProtocolError as error:
            self.denials.add("limit", "the relay's pipe", why=f"invalid frames: {error}")

    def _arrive(self, stream: Stream) -> None:
        # This wait is short. There are twice as many handlers as open streams, so if all handlers
        # are busy, at least half of them have a closed stream and end soon.
        self._handlers.acquire()
        threading.Thread(target=self._handle, args=(stream,), daemon=True).start()

    def _handle(self, stream: Stream) -> None:
        connection = Connection(self._out, stream, lambda end: inside.Splice(end, stream))
        try:
            connection.serve()
        finally:
            # The pause keeps the handler busy, and so slows down a flood of denied requests. The
            # client already has its answer.
            time.sleep(connection.pause_seconds())
            self._handlers.release()


def open_relay(plan: Plan, pipes: tuple[int, int], denials: Denials) -> Relay:
    """Open the relay for a plan. `pipes` are the pipes from and to the relay's inner end."""
    return Relay(*pipes, Outbound(check_from_policy(plan.allow, plan.admit, os.environ, denials)))
