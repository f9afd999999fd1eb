"""Run an MCP session with the official SDK (mcp >= 2) in a chosen version of the protocol, and
print the results as JSON.

The argument is a JSON object with the keys command, args, mode and calls, and optionally cancel,
prompts and resources. `mode` selects the version of the protocol. `cancel` lists tools. The client
cancels a call to one of these tools when it gets the call's first progress notification.
"""

import asyncio
import json
import os
import sys

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

ASKED = json.loads(sys.argv[1])
seen: list[str] = []
"""The server's requests that reached this client's callbacks."""


async def list_roots(_context: object) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///project")])


async def sample(_context: object, params: object) -> CreateMessageResult:
    seen.append(params.messages[0].content.text)
    words = TextContent(type="text", text="word")
    return CreateMessageResult(role="assistant", content=words, model="none")


async def elicit(_context: object, params: object) -> ElicitResult:
    seen.append(params.message)
    return ElicitResult(action="accept", content={"color": "red"})


async def cancel(client: Client, name: str) -> str:
    """Call a tool, and cancel the call after its first progress notification."""
    started = asyncio.Event()

    async def begin(_done: float, _total: float | None, _message: str | None) -> None:
        started.set()

    call = asyncio.create_task(client.call_tool(name, {}, progress_callback=begin))
    await started.wait()
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return "cancelled"
    return "answered"


async def attempt(awaitable) -> object:
    """Wait for a call, and return its result or the error that the server answered with."""
    try:
        return (await awaitable).model_dump(mode="json", exclude={"meta", "ttl_ms"})
    except MCPError as error:
        return {"error": str(error)}


async def main() -> dict:
    steps = []

    async def progress(done: float, _total: float | None, _message: str | None) -> None:
        steps.append(done)

    server = StdioServerParameters(command=ASKED["command"], args=ASKED["args"], env=dict(os.environ))  # fmt: skip
    asked = {"list_roots_callback": list_roots, "sampling_callback": sample, "elicitation_callback": elicit}  # fmt: skip
    async with Client(server, mode=ASKED["mode"], **asked) as client:
        lists = [client.list_tools, client.list_prompts, client.list_resources, client.list_resource_templates]  # fmt: skip
        found = {
            "version": client.protocol_version,
            "instructions": client.instructions,
            "lists": [await attempt(one()) for one in lists],
            "cancelled": [await cancel(client, name) for name in ASKED.get("cancel", ())],
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
    return {**found, "progress": steps, "seen": seen}


print(json.dumps(asyncio.run(main())))
