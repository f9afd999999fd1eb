"""Run a session with the official SDK (mcp >= 2) in a chosen era, and print the results as JSON.

The argument is JSON: command, args, mode, calls.
"""

import asyncio
import json
import os
import sys

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import ListRootsResult, Root

ASKED = json.loads(sys.argv[1])


async def list_roots(_context: object) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///project")])


async def attempt(awaitable) -> object:
    """Return the result, or the error that the server answered."""
    try:
        return (await awaitable).model_dump(mode="json", exclude={"meta", "ttl_ms"})
    except MCPError as error:
        return {"error": str(error)}


async def main() -> dict:
    steps = []

    async def progress(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    server = StdioServerParameters(command=ASKED["command"], args=ASKED["args"], env=dict(os.environ))  # fmt: skip
    async with Client(server, mode=ASKED["mode"], list_roots_callback=list_roots) as client:
        lists = [client.list_tools, client.list_prompts, client.list_resources, client.list_resource_templates]  # fmt: skip
        found = {
            "version": client.protocol_version,
            "instructions": client.instructions,
            "lists": [await attempt(one()) for one in lists],
            "calls": [
                await attempt(client.call_tool(name, given, progress_callback=progress))
                for name, given in ASKED["calls"]
            ],
            "prompts": [
                await attempt(client.get_prompt(name, given))
                for name, given in ASKED.get("prompts", ())
            ],
            "resources": [
                await attempt(client.read_resource(uri)) for uri in ASKED.get("resources", ())
            ],
        }
    return {**found, "progress": steps}


print(json.dumps(asyncio.run(main())))
