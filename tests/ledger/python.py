"""The promises of docs/python.md."""

from __future__ import annotations

from ledger.claim import ANY, Claim

PROFILES = "tests/unit/policy/test_profiles.py"
PUBLISHED = "tests/servers/test_published.py"
PYTHON_PAGE = "docs/python.md"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="sdk-generations",
        sentence="`mcp` 1.x and 2.x",
        tests=(f"{PUBLISHED}::test_both_generations_of_the_sdk",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-fastmcp",
        sentence="with FastMCP's `StdioTransport`.",
        tests=(f"{PUBLISHED}::test_fastmcp",),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-environment",
        sentence="Those whose names look like secrets are passed as secrets.",
        tests=(
            f"{PUBLISHED}::test_both_generations_of_the_sdk",
            f"{PROFILES}::test_parameters_for_an_sdk_name_every_variable_once",
        ),
        source=PYTHON_PAGE,
    ),
    Claim(
        id="sdk-mistakes",
        sentence="A mistake in the policy is raised by `sandboxed` itself, before anything starts.",
        tests=(f"{PROFILES}::test_what_is_wrong_with_a_policy_is_said_before_anything_starts",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-imports",
        sentence="Nothing of `mcp` or `fastmcp` is imported by corral unless you gave it one of theirs;",
        tests=(f"{PROFILES}::test_no_sdk_is_imported_and_the_same_python_runs_corral",),
        source=PYTHON_PAGE,
        where=ANY,
    ),
    Claim(
        id="sdk-example",
        sentence="is a small agent with two servers from the registries.",
        tests=(f"{PUBLISHED}::test_the_example_agent",),
        source=PYTHON_PAGE,
    ),
)  # fmt: skip
