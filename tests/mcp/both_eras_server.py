"""Serve clients of the older and the newer MCP protocol, with the official SDK (mcp >= 2).

The tools send requests to the client, report progress or wait.
"""

from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp_types import CreateMessageResult, ListRootsResult, SamplingMessage, TextContent
from pydantic import BaseModel

was_cancelled = anyio.Event()
server = MCPServer("both-eras", instructions="Be brief.")


def ask_for_roots() -> ListRoots:
    return ListRoots()


class Color(BaseModel):
    color: str


def ask_for_color() -> Elicit[Color]:
    return Elicit("Which color?", Color)


def ask_model() -> Sample:
    words = TextContent(type="text", text="Say a word.")
    return Sample([SamplingMessage(role="user", content=words)], max_tokens=10)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def slow(context: Context) -> str:
    """Report progress three times."""
    for step in range(3):
        await context.report_progress(step, 3)
    return "done"


@server.tool()
def roots(found: Annotated[ListRootsResult, Resolve(ask_for_roots)]) -> str:
    """Ask the client for its roots."""
    return ", ".join(str(root.uri) for root in found.roots)


@server.tool()
def color(found: Annotated[Color, Resolve(ask_for_color)]) -> str:
    """Ask the user for a color."""
    return found.color


@server.tool()
def sample(found: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Ask the client's model for a word."""
    return str(found.content.text)


@server.tool()
async def wait(context: Context) -> str:
    """Wait until the call is cancelled."""
    await context.report_progress(1, 2)
    try:
        await anyio.sleep_forever()
    finally:
        was_cancelled.set()
    return "not cancelled"


@server.tool()
async def cancelled() -> str:
    """Answer after a call of `wait` has been cancelled."""
    await was_cancelled.wait()
    return "cancelled"


@server.resource("notes://{name}")
def note(name: str) -> str:
    """A note."""
    return f"note {name}"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Greet {name}"


server.run("stdio")
