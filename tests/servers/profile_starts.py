"""List the arguments and variables with which the tests start each profile's server without an
account. For each server that they do not start, give the reason.
"""

from __future__ import annotations

# The arguments and variables that each server needs to start. The variables have fake values. HERE
# stands for an empty directory.
STARTED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "airtable": ((), {"AIRTABLE_API_KEY": "none"}),
    "apify": ((), {"APIFY_TOKEN": "none"}),
    "arxiv": ((), {}),
    "atlassian": (
        (),
        {
            "JIRA_URL": "http://127.0.0.1:9200",
            "JIRA_USERNAME": "none",
            "JIRA_API_TOKEN": "none",
            "CONFLUENCE_URL": "http://127.0.0.1:9200",
            "CONFLUENCE_USERNAME": "none",
            "CONFLUENCE_API_TOKEN": "none",
        },
    ),
    "aws-documentation": ((), {}),
    "azure": (("server", "start"), {}),
    "blender": ((), {}),
    "brave-search": ((), {"BRAVE_API_KEY": "none"}),
    "chart": ((), {}),
    "chroma": (("--client-type", "persistent", "--data-dir", "/state/chroma"), {}),
    "chrome-devtools": ((), {}),
    "clickhouse": (
        (),
        dict.fromkeys(("CLICKHOUSE_HOST", "CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD"), "none"),
    ),
    "code-index": ((), {}),
    "duckduckgo": ((), {}),
    "elasticsearch": ((), {"ES_URL": "http://127.0.0.1:9200", "ES_API_KEY": "none"}),
    "elevenlabs": ((), {"ELEVENLABS_API_KEY": "none"}),
    "eslint": ((), {}),
    "exa": ((), {"EXA_API_KEY": "none"}),
    "excel": (("stdio",), {}),
    "figma": (("--stdio",), {"FIGMA_API_KEY": "none"}),
    "filesystem-read": (("HERE",), {}),
    "firecrawl": ((), {"FIRECRAWL_API_KEY": "none"}),
    "gitlab": ((), {"GITLAB_PERSONAL_ACCESS_TOKEN": "none"}),
    "google-maps": ((), {"GOOGLE_MAPS_API_KEY": "none"}),
    "grafana": ((), {"GRAFANA_URL": "http://127.0.0.1:3000"}),
    "hubspot": ((), {"PRIVATE_APP_ACCESS_TOKEN": "none"}),
    "kubernetes": ((), {}),
    "mongodb": ((), {}),
    "motherduck": (("--read-write",), {}),
    "n8n": ((), {}),
    "neo4j": ((), {"NEO4J_PASSWORD": "none"}),
    "netlify": ((), {"NETLIFY_PERSONAL_ACCESS_TOKEN": "none"}),
    "next-devtools": ((), {}),
    "notion": ((), {"NOTION_TOKEN": "none"}),
    "nx": (("HERE",), {}),
    "obsidian": ((), {"OBSIDIAN_API_KEY": "none"}),
    "perplexity": ((), {"PERPLEXITY_API_KEY": "none"}),
    "playwright-executeautomation": ((), {}),
    "postgres": (("postgresql://none:none@127.0.0.1:9200/none",), {}),
    "sentry": ((), {"SENTRY_ACCESS_TOKEN": "none"}),
    "serena": (("start-mcp-server",), {}),
    "shopify-dev": ((), {}),
    "slack": ((), {"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "none"}),
    "tavily": ((), {"TAVILY_API_KEY": "none"}),
    "xcodebuild": (("mcp",), {}),
}
# An indirect dependency of serena has no wheel, so its build script must be allowed to run.
FLAGS = {"serena": ("--allow-install-scripts",)}
NOT_STARTED = {
    "azure-devops": "loads keytar, which its install script fetches from GitHub or compiles",
    "dbhub": "needs a database; SQLite (--demo) needs a module that an install script fetches or compiles",
    "desktop-commander": "needs a version of a dependency that was not in the registry",
    "markitdown": "needs a version of certifi that was not in the registry",
    "mcp-remote": "has to reach a server on the network before it lists any tools",
    "redis": "has to reach its database before it answers",
    "qdrant": "fetches a model from the Internet before it answers",
    "snowflake": "its imports fail with today's versions of its dependencies",
    "stripe": "has to reach api.stripe.com before it lists any tools",
    "supabase": "lists no tools without an account",
}
"""The reasons why the tests do not start the servers of these profiles."""
