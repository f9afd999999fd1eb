"""Start a server in a sandbox, list its tools and other definitions, and stop it."""

import threading
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from corral.api.sandbox import PIPE, Sandbox
from corral.denials.records import Denial
from corral.errors import SandboxError
from corral.messages.client import Client, ConversationError
from corral.messages.definitions import LISTS, PIN_KINDS, Pin, canonical, list_items
from corral.messages.frames import Message
from corral.messages.marks import Mark, find_marks
from corral.plan.model import Plan
from corral.policy.pins import list_pinned
from corral.policy.variables import masked
from corral.record import record
from corral.safe_text import printable
from corral.supervisor.secret_values import hide_values

CHUNK = 65536
NO_TOOLS: Mapping[str, Iterable[str]] = {}
KEPT_BYTES = 2000
KEPT_LINES = 3
HINT = (
    "give the server what it needs to start, such as --env NAME=VALUE or --read PATH; corral's own"
    " flags go before the server"
)


@record
class Inspection:
    """The result of an inspection. `offer` contains the server's lists (`tools`, `prompts`, ...)
    and the server's description of itself. `strays` is the number of lines on the server's stdout
    that are not messages.
    """

    server: tuple[str, ...]
    offer: Mapping[str, object]
    strays: int
    denials: tuple[Denial, ...]
    marks: tuple[Mark, ...]

    def pins(self) -> list[Pin]:
        """Return the definitions to pin. Later runs compare the server's definitions with them."""
        found: list[Pin] = []
        for listed in LISTS.values():
            if listed.kind in PIN_KINDS:
                items = list_items(self.offer, listed.field)
                found += [(listed.kind, str(one.get(listed.name)), canonical(one)) for one in items]
        if (text := self.offer.get("instructions")) is not None:
            found.append(("instructions", "", canonical(text)))
        return found


def inspect_server(plan: Plan, known: Mapping[str, Iterable[str]] = NO_TOOLS) -> Inspection:
    """Run the plan until its server has listed its definitions. Raise SandboxError if the server
    does not list them.

    `known` maps other servers to the names of their tools. The result contains a warning for each
    tool of this server that could be confused with a tool in `known` or with a pinned tool of
    another server.
    """
    words = masked(plan.pinned_as)
    problem: ConversationError | None = None
    offer: Message = {}
    sandbox: Sandbox[BinaryIO, BinaryIO, BinaryIO]
    sandbox = Sandbox(plan, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    stderr = LastLines(sandbox.stderr)
    with sandbox:
        client = Client(sandbox.stdout, sandbox.stdin)
        try:
            offer = _ask(client)
        except ConversationError as error:
            problem = error
        sandbox.stop()
        stderr.join()
    denials = sandbox.report.denials if sandbox.report else ()
    if problem is not None:
        hide = hide_values(plan)
        lines = [hide(line)[0] for line in (problem.message, *stderr.text())]
        said = "; ".join([lines[0], *(one.describe() for one in denials), *lines[1:]])
        raise SandboxError(f"cannot list the server's tools: {said}", hint=HINT) from problem
    pinned: dict[str, Iterable[str]] = {
        " ".join(one.server): [name for kind, name, _ in one.pins if kind == "tool"]
        for one in list_pinned(besides=plan.pinned_as)
    }
    return Inspection(
        server=words,
        offer=offer,
        strays=client.strays,
        denials=denials,
        marks=tuple(find_marks(offer, {**pinned, **known})),
    )


class LastLines(threading.Thread):
    """Reads a server's stderr and keeps only the end. `text` returns the last lines, escaped for a
    terminal.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._end = b""
        self.start()

    def run(self) -> None:
        while chunk := self._stream.read(CHUNK):
            self._end = (self._end + chunk)[-KEPT_BYTES:]

    def text(self) -> list[str]:
        lines = self._end.decode(errors="replace").splitlines()
        return [printable(line) for line in lines[-KEPT_LINES:]]


def _ask(client: Client) -> Message:
    about = client.connect()
    offer: Message = {
        key: about[key] for key in ("protocolVersion", "serverInfo", "instructions") if key in about
    }
    for method, listed in LISTS.items():
        offer[listed.field] = client.list_all(method)
    return offer
