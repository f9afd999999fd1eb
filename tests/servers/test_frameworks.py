"""Start servers through corral in several Python agent frameworks, with each framework's own
configuration.

The configurations use npx and uvx, as these servers' documentation says.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from servers import sdk
from servers.test_published import corral, environment, home  # noqa: F401 - fixtures

pytestmark = pytest.mark.rig("frameworks")
NODE_PACKAGE = "@modelcontextprotocol/server-everything"
PYTHON_PACKAGE = "mcp-server-time"
FRAME = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from corral.mcp import sandboxed

NPX = {"command": "npx", "args": ["-y", sys.argv[2]], "env": {"GREETING": "hello"}}
UVX = {"command": "uvx", "args": [sys.argv[3]]}

def text(answer):
    return getattr(answer, "content", answer)[0].text

async def main():
"""
FRAMEWORKS = {
    "openai-agents": """
    from agents.mcp import MCPServerStdio
    async with MCPServerStdio(sandboxed(NPX), client_session_timeout_seconds=60) as server:
        print(text(await server.call_tool("get-env", {})))
""",
    "langchain-mcp-adapters": """
    from langchain_mcp_adapters.client import MultiServerMCPClient
    servers = {"every": NPX, "time": UVX}
    client = MultiServerMCPClient(
        sandboxed({name: {**one, "transport": "stdio"} for name, one in servers.items()})
    )
    tools = {tool.name: tool for tool in await client.get_tools()}
    assert "get_current_time" in tools
    answer = await tools["get-env"].ainvoke({})
    print(answer if isinstance(answer, str) else answer[0]["text"])
""",
    "mcp-use": """
    from mcp_use import MCPClient
    client = MCPClient(sandboxed({"mcpServers": {"every": NPX}}))
    session = await client.create_session("every")
    print(text(await session.call_tool("get-env", {})))
    await client.close_all_sessions()
""",
    "fastmcp": """
    from fastmcp import Client
    from fastmcp.client.transports import NpxStdioTransport, UvxStdioTransport
    async with Client(sandboxed({"mcpServers": {"every": NPX}})) as client:
        print(text(await client.call_tool("get-env", {})))
    # `env_vars` makes FastMCP pass a copy of the whole environment.
    os.environ["OWN_TOKEN"] = "not for servers"
    plain = NpxStdioTransport(sys.argv[2], env_vars={"GREETING": "hello"}, keep_alive=False)
    async with Client(sandboxed(plain)) as client:
        inside = text(await client.call_tool("get-env", {}))
        assert "hello" in inside and "OWN_TOKEN" not in inside, inside
    async with Client(sandboxed(UvxStdioTransport(sys.argv[3], keep_alive=False))) as client:
        assert await client.call_tool("get_current_time", {"timezone": "UTC"})
""",
    "pydantic-ai-slim[mcp]": """
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset
    toolset = MCPToolset(sandboxed(StdioTransport(NPX["command"], NPX["args"], env=NPX["env"])))
    async with toolset:
        answer = await toolset.direct_call_tool("get-env", {})
        import json
        print(answer if isinstance(answer, str) else json.dumps(answer))
""",
}


@pytest.fixture(scope="module")
def installed(environment):  # noqa: F811  - the imported fixture
    """Install both packages first, because some frameworks wait only a few seconds for a server."""
    for reference in (f"npm:{NODE_PACKAGE}", f"pypi:{PYTHON_PACKAGE}"):
        done = corral(environment, "explain", reference)
        assert done.returncode == 0, done.stderr
    return environment


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_starts_its_servers_in_the_sandbox(name, installed):
    interpreter = sdk.python(f"framework-{name.partition('[')[0]}", name)
    program = f"{FRAME}{FRAMEWORKS[name]}\nasyncio.run(main())"
    argv = [interpreter, "-c", program, str(sdk.SOURCE), NODE_PACKAGE, PYTHON_PACKAGE]
    done = subprocess.run(
        argv, env=installed, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    # mcp-use prints log lines before the answer, so skip them.
    inside = json.loads(done.stdout[done.stdout.index("{") :])
    # corral sets USER for every target. This is corral's value and not the framework's, so the
    # server runs in the sandbox.
    assert (inside["GREETING"], inside["USER"]) == ("hello", "user")
    assert "corral installs npm:" in done.stderr
