"""Run one session with one server through the official SDK, as users of the SDK do.

The argument is a JSON object with the keys command, args, env, sandboxed and calls. `sandboxed` is
an object with a policy and a profile, or null to start the server without corral. A call is a tool
and its arguments. The script prints the results as JSON.
"""

import asyncio
import json
import os
import sys
import time

sys.path.insert(0, sys.argv[1])
ASKED = json.loads(sys.argv[2])

from mcp import ClientSession, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402

try:
    from mcp.shared.exceptions import McpError
except ImportError:
    from mcp.shared.exceptions import MCPError as McpError


def parameters() -> StdioServerParameters:
    env = {**os.environ, **ASKED["env"]} if ASKED["sandboxed"] is None else ASKED["env"]
    plain = StdioServerParameters(command=ASKED["command"], args=ASKED["args"], env=env)
    if ASKED["sandboxed"] is None:
        return plain
    from corral.mcp import sandboxed

    return sandboxed(plain, **ASKED["sandboxed"])


async def call(session: ClientSession, name: str, given: dict) -> dict:
    """Return the result of a call. A server's error is also a result, because a server without
    network access may answer with an error.
    """
    try:
        return plain(await session.call_tool(name, given))
    except McpError as error:
        return {"text": str(error), "failed": True}


def plain(result: object) -> dict:
    texts = [getattr(item, "text", "") for item in result.content]
    failed = getattr(result, "isError", None) or getattr(result, "is_error", False)
    return {"text": "\n".join(texts), "failed": bool(failed)}


async def main() -> dict:
    server = parameters()
    began = time.monotonic()
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        hello = await session.initialize()
        started = time.monotonic() - began
        about = getattr(hello, "serverInfo", None) or hello.server_info
        tools = await session.list_tools()
        results = [await call(session, name, given) for name, given in ASKED["calls"]]
    return {
        "server": about.name,
        "tools": [tool.name for tool in tools.tools],
        "results": results,
        "started": started,
    }


print(json.dumps(asyncio.run(main())))
