"""Test the switches that only the user can turn on, such as `listen_everywhere`. A server's request
cannot turn them on, even if it is approved.
"""

import pytest

from corral.policy.manifest import from_data
from corral.policy.merge import USERS_ALONE, merge
from corral.policy.model import Source

SAID = {
    "listen_everywhere": {"network": {"listen_everywhere": True}},
    "strict_handles": {"windows": {"strict_handles": True}},
    "strict_grants": {"windows": {"strict_grants": True}},
}


def value(name, trust):
    manifest = from_data({"version": 1, **SAID[name]}, "corral.toml")
    policy = merge([Source(manifest=manifest, trust=trust, approved=True)], home="/home/x", cwd="/")
    return getattr(policy, name, None) or getattr(policy.windows, name, False)


@pytest.mark.parametrize("name", USERS_ALONE)
def test_a_switch_reserved_for_the_user_is_not_turned_on_by_an_approved_request(name):
    assert not value(name, "request")
    assert value(name, "user")  # Sanity check: the user can turn the switch on
