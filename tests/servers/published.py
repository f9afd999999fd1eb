"""List published servers with pinned versions, the calls to make, and the expected answers."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A published server and the calls that tests make.

    A call is a tool, its arguments, and a part of the expected answer. In arguments and answers,
    `{work}` stands for the test's directory, `{url}` for a page that the test serves, and `{mark}`
    for a new word.

    If the answer depends on the Internet, an account or a browser, the expected answer is None. The
    server must then give the same answer with corral as without it.
    """

    reference: str
    profile: str
    runtime: str
    calls: tuple[tuple[str, dict[str, object], str | None], ...]
    arguments: tuple[str, ...] = ()
    bare: tuple[str, ...] | None = None
    env: tuple[tuple[str, str], ...] = ()
    bare_env: tuple[tuple[str, str], ...] = ()
    policy: tuple[tuple[str, object], ...] = ()
    subprocess: bool = False


NPM = "npm:@modelcontextprotocol/server-"
SERVERS = (
    Published(
        reference=f"{NPM}filesystem@2026.8.31",
        profile="filesystem",
        runtime="node",
        arguments=("{work}",),
        calls=(
            ("write_file", {"path": "{work}/made.txt", "content": "by the server"}, "made.txt"),
            ("read_text_file", {"path": "{work}/made.txt"}, "by the server"),
        ),
    ),
    Published(
        reference=f"{NPM}everything@2026.8.31",
        profile="everything",
        runtime="node",
        calls=(("echo", {"message": "through the walls"}, "through the walls"),),
    ),
    Published(
        reference=f"{NPM}memory@2026.8.31",
        profile="memory",
        runtime="node",
        bare_env=(("MEMORY_FILE_PATH", "{work}/memory.jsonl"),),
        calls=(
            (
                "create_entities",
                {"entities": [{"name": "{mark}", "entityType": "x", "observations": ["holds"]}]},
                "{mark}",
            ),
            ("read_graph", {}, "{mark}"),
        ),
    ),
    Published(
        reference=f"{NPM}sequential-thinking@2026.8.31",
        profile="sequential-thinking",
        runtime="node",
        calls=(
            (
                "sequentialthinking",
                {
                    "thought": "one",
                    "nextThoughtNeeded": False,
                    "thoughtNumber": 1,
                    "totalThoughts": 1,
                },
                "thoughtNumber",
            ),
        ),
    ),
    Published(
        reference=f"{NPM}github@2025.4.8",
        profile="github",
        runtime="node",
        env=(("GITHUB_PERSONAL_ACCESS_TOKEN", "none-of-yours"),),
        calls=(("search_repositories", {"query": "corral"}, None),),
    ),
    Published(
        reference="npm:@upstash/context7-mcp@4.1.1",
        profile="context7",
        runtime="node",
        calls=(("resolve-library-id", {"query": "routing", "libraryName": "react"}, None),),
    ),
    Published(
        reference="npm:@playwright/mcp@0.0.83",
        profile="playwright",
        runtime="node",
        subprocess=True,
        calls=(("browser_close", {}, None),),
    ),
    Published(
        reference="pypi:mcp-server-time==2026.10.19",
        profile="time",
        runtime="python",
        calls=(("get_current_time", {"timezone": "Europe/Berlin"}, "Europe/Berlin"),),
    ),
    Published(
        reference="pypi:mcp-server-git==2026.10.19",
        profile="git",
        runtime="python",
        arguments=("--repository", "{work}/repository"),
        subprocess=True,
        calls=(
            ("git_status", {"repo_path": "{work}/repository"}, "new.txt"),
            ("git_log", {"repo_path": "{work}/repository"}, "the first"),
        ),
    ),
    Published(
        reference="pypi:mcp-server-fetch==2026.10.24",
        profile="fetch",
        runtime="python",
        # The page's URL contains a loopback address, which the server refuses by default.
        arguments=("--ignore-robots-txt", "--allow-private-ips"),
        bare_env=(("PATH", "/nonexistent"),),
        policy=(("network", {"allow": ["{host}"]}),),
        subprocess=True,
        calls=(("fetch", {"url": "{url}"}, "a page of the host"),),
    ),
    Published(
        reference="pypi:mcp-server-sqlite==2025.4.25",
        profile="sqlite",
        runtime="python",
        arguments=("--db-path", "/state/notes.db"),
        bare=("--db-path", "{work}/notes.db"),
        calls=(
            ("create_table", {"query": "CREATE TABLE IF NOT EXISTS notes (text TEXT)"}, "created"),
            ("write_query", {"query": "INSERT INTO notes VALUES ('{mark}')"}, "'affected_rows': 1"),
            ("read_query", {"query": "SELECT text FROM notes"}, "{mark}"),
        ),
    ),
    Published(
        reference="pypi:mcp-server-calculator==0.2.1",
        profile="calculator",
        runtime="python",
        calls=(("calculate", {"expression": "6 * 7"}, "42"),),
    ),
)
