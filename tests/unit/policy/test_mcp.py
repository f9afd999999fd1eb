"""Test which sources of a policy may set its `mcp` keys, and how the lists of several sources are
combined.
"""

import pytest

from corral.errors import ManifestError, PolicyError
from corral.policy.manifest import from_data, from_flags
from corral.policy.merge import merge
from corral.policy.model import Mcp, Source
from corral.policy.requests import describe_requests


def source(trust="user", *, approved=True, **mcp) -> Source:
    manifest = from_data({"version": 1, "mcp": mcp}, f"a {trust}")
    return Source(manifest=manifest, trust=trust, approved=approved)


def merged(*sources: Source) -> Mcp | None:
    return merge(sources, home="/", cwd="/").mcp


def test_a_policy_without_mcp_keys_has_no_message_guard():
    assert merged() is None
    assert merged(source()) is None
    assert merged(source(max_pending=5)) == Mcp(max_pending=5)


def test_mcp_lists_are_added_up_and_an_empty_list_resets_them():
    one, two = source(tools={"allow": ["a"], "deny": ["b"]}), source(tools={"allow": ["c"]})
    assert merged(one, two) == Mcp(tools_allow=("a", "c"), tools_deny=("b",))
    nothing = source(tools={"allow": []})
    assert merged(one, nothing) == Mcp(tools_allow=(), tools_deny=("b",))
    assert merged(one, nothing, two) == Mcp(tools_allow=("c",), tools_deny=("b",))


def test_a_request_needs_approval_and_never_overrides_the_user():
    wants = {"tools": {"allow": ["*"]}, "requests": ["sampling"], "max_message": "1G"}
    asked = source("request", approved=False, **wants)
    with pytest.raises(PolicyError, match=r"set mcp.requests to 'sampling'"):
        merged(asked)
    assert "set mcp.max_message to 1073741824" in describe_requests(asked.manifest)
    agreed = source("request", **wants)
    assert merged(agreed) == Mcp(tools_allow=("*",), requests=("sampling",), max_message=1 << 30)
    own = source(tools={"allow": ["a"]}, requests=[])
    assert merged(agreed, own) == Mcp(tools_allow=("a",), requests=(), max_message=1 << 30)
    assert merged(own, agreed) == merged(agreed, own)
    # If the user sets the key too, the request's value is not used and needs no approval.
    assert merged(source("request", approved=False, requests=["*"]), own).requests == ()


def test_mcp_flags_set_their_keys():
    flags = from_flags({"mcp.tools.allow": ["a", "b"], "mcp.pins": "warn"})
    assert merged(Source(manifest=flags)) == Mcp(tools_allow=("a", "b"), pins="warn")


MISTAKES = [
    ({"mcp": {"tools": ["a"]}}, "mcp.tools: must be a table of keys"),
    ({"mcp": {"tools": {"alow": []}}}, "mcp.tools.alow: unknown key; did you mean allow?"),
    ({"mcp": {"tool": {}}}, "mcp.tool: unknown key; did you mean tools?"),
    ({"mcp": {"tools.allow": []}}, "unknown key"),
    ({"mcp": {"tools": {"allow": [""]}}}, "is not a name or a pattern"),
    ({"mcp": {"tools": {"allow": "a"}}}, "must be a list"),
    ({"mcp": {"pins": "yes"}}, "is not one of off, refuse, warn"),
    ({"mcp": {"max_message": 5}}, "is less than"),
    ({"mcp": {"max_pending": 0}}, "must be from 1 to"),
]


@pytest.mark.parametrize(("data", "words"), MISTAKES)
def test_mistakes_in_mcp_keys_are_named(data, words):
    with pytest.raises(ManifestError) as caught:
        from_data({"version": 1, **data}, "a policy")
    assert words in str(caught.value)
