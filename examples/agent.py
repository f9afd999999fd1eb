"""Run an agent with two servers from the registries, each in its own sandbox.

    pip install '.[mcp]'
    python examples/agent.py ~/notes

The agent reads a directory through one server and asks another server for the time. Of your files,
the first server sees only that directory, and the second server sees none. Neither server can use
the network.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from corral.mcp import sandboxed


def servers(directory: str) -> dict[str, StdioServerParameters]:
    files = StdioServerParameters(
        command="npm:@modelcontextprotocol/server-filesystem@2026.8.31", args=[directory]
    )
    clock = StdioServerParameters(command="pypi:mcp-server-time==2026.10.19")
    return {
        "files": sandboxed(files, {"limits": {"pids": 64}}, profile="filesystem-read"),
        "clock": sandboxed(clock, {"limits": {"timeout": "10m"}}, profile="time"),
    }


async def main(directory: str) -> None:
    async with AsyncExitStack() as stack:
        sessions = {}
        for name, parameters in servers(directory).items():
            streams = await stack.enter_async_context(stdio_client(parameters))
            sessions[name] = await stack.enter_async_context(ClientSession(*streams))
            await sessions[name].initialize()
            tools = await sessions[name].list_tools()
            print(f"{name} offers {', '.join(tool.name for tool in tools.tools)}")
        listing = await sessions["files"].call_tool("list_directory", {"path": directory})
        print(listing.content[0].text)
        now = await sessions["clock"].call_tool("get_current_time", {"timezone": "UTC"})
        print(now.content[0].text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
