"""Install each profile's server that needs no account, start it inside, and list its tools."""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral.messages import client as messages
from corral.policy import profiles
from servers import sdk
from servers.test_published import MAIN, environment, home  # noqa: F401 - fixtures

pytestmark = [pytest.mark.rig("servers"), pytest.mark.timeout(600)]
START_SECONDS = 400.0
# Arguments and invented variables that a server needs to start. HERE is an empty directory.
STARTED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "azure": (("server", "start"), {}),
    "blender": ((), {}),
    "chart": ((), {}),
    "chroma": (("--client-type", "persistent", "--data-dir", "/state/chroma"), {}),
    "chrome-devtools": ((), {}),
    "clickhouse": (
        (),
        dict.fromkeys(("CLICKHOUSE_HOST", "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"), "none"),
    ),
    "code-index": ((), {}),
    "elevenlabs": ((), {"ELEVENLABS_API_KEY": "none"}),
    "eslint": ((), {}),
    "excel": (("stdio",), {}),
    "grafana": ((), {"GRAFANA_URL": "http://127.0.0.1:3000"}),
    "kubernetes": ((), {}),
    "mongodb": ((), {}),
    "motherduck": (("--read-write",), {}),
    "n8n": ((), {}),
    "neo4j": ((), {"NEO4J_PASSWORD": "none"}),
    "netlify": ((), {"NETLIFY_PERSONAL_ACCESS_TOKEN": "none"}),
    "next-devtools": ((), {}),
    "nx": (("HERE",), {}),
    "obsidian": ((), {"OBSIDIAN_API_KEY": "none"}),
    "perplexity": ((), {"PERPLEXITY_API_KEY": "none"}),
    "playwright-executeautomation": ((), {}),
    "sentry": ((), {"SENTRY_ACCESS_TOKEN": "none"}),
    "serena": (("start-mcp-server",), {}),
    "shopify-dev": ((), {}),
    "xcodebuild": (("mcp",), {}),
}
FLAGS = {"serena": ("--allow-install-scripts",)}  # one of its indirect dependencies has no wheel


@pytest.mark.parametrize("name", STARTED)
def test_a_profiles_server_starts_and_lists_its_tools(name, environment, monkeypatch, tmp_path):  # noqa: F811
    # The first start installs the server.
    monkeypatch.setattr(messages, "ANSWER_SECONDS", START_SECONDS)
    words, variables = STARTED[name]
    arguments = [word.replace("HERE", str(tmp_path)) for word in words]
    reference = profiles.load(name).packages[0]
    argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), "run", "--profile", name]
    argv += FLAGS.get(name, ())
    with subprocess.Popen(
        [*argv, reference, *arguments], env={**environment, **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            client = messages.Client(process.stdout, process.stdin)
            client.initialize()
            assert client.list_tools()
        finally:
            process.stdin.close()
            process.terminate()
