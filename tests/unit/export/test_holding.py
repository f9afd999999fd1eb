"""Test that an export refuses a policy with rules for MCP messages, because container engines do
not read messages.
"""

import pytest

from corral.errors import PolicyError
from corral.export.holding import Engine, decide_for_engine
from corral.policy.model import CONTROLS, Mcp, Policy

ENGINE = Engine(name="some", enforces=dict.fromkeys(CONTROLS, ("it", "")), lacks={})


def test_an_export_refuses_a_policy_with_rules_for_mcp_messages():
    assert decide_for_engine(Policy(), ENGINE, "x86_64")
    with pytest.raises(PolicyError, match="some does not inspect MCP messages"):
        decide_for_engine(Policy(mcp=Mcp()), ENGINE, "x86_64")
