"""Serve both protocol eras with the official SDK (mcp >= 2). One tool asks its client, another reports progress."""

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import ListRoots, Resolve
from mcp_types import ListRootsResult

server = MCPServer("both-eras", instructions="Be brief.")


def ask_for_roots() -> ListRoots:
    return ListRoots()


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


@server.resource("notes://{name}")
def note(name: str) -> str:
    """A note."""
    return f"note {name}"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Greet {name}"


server.run("stdio")
