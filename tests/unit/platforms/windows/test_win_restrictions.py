"""Test the code for tokens, mitigations and network levels, as far as it runs on any system."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError
from corral.plan.model import Results
from corral.platforms.windows.mechanisms import (
    desktop,
    mitigations,
    network_capabilities,
    restricted_token,
)
from corral.policy.model import Policy, Windows

LOGON = ("S-1-5-5-0-77", 0xC0000007)
DENIED_ADMIN = ("S-1-5-32-544", 0x10)
GOOD = {"S-1-1-0", "S-1-5-5-0-77"}


@pytest.mark.parametrize(
    ("groups", "restricting", "problem"),
    [
        ([LOGON], GOOD, ""),
        ([LOGON, DENIED_ADMIN], GOOD, ""),
        ([LOGON], GOOD | {"S-1-5-33"}, ""),
        ([LOGON, ("S-1-5-32-544", 0xF)], GOOD, "administrator"),
        ([LOGON], set(), "none"),
        ([LOGON], {"S-1-1-0"}, "S-1-1-0"),
        ([LOGON], GOOD | {"S-1-5-21-1-2-3-1000"}, "S-1-5-21-1-2-3-1000"),
    ],
)
def test_a_token_that_is_less_restricted_than_requested_is_refused(groups, restricting, problem):
    found = restricted_token.group_problem(groups, restricting)
    assert problem in found
    assert bool(found) == bool(problem)


def test_remaining_privileges_are_found():
    assert restricted_token.extra_privileges(["SeChangeNotifyPrivilege"]) == ""
    assert restricted_token.extra_privileges([]) == ""
    found = restricted_token.extra_privileges(
        ["SeDebugPrivilege", "SeTcbPrivilege", "SeChangeNotifyPrivilege"]
    )
    assert found == "it still has SeDebugPrivilege and 1 more"


def test_a_token_without_a_logon_is_refused():
    with pytest.raises(OSError, match="logon"):
        restricted_token.logon_sid([("S-1-1-0", 7)])


@pytest.mark.skipif(sys.platform == "win32", reason="tests other systems than Windows")
def test_restrictions_are_absent_on_other_systems(tmp_path):
    assert restricted_token.probe(str(tmp_path)).status == "absent"
    for apply in (
        restricted_token.RestrictedToken().apply,
        restricted_token.FilteredToken().apply,
        desktop.PrivateDesktop().apply,
    ):
        with pytest.raises(OSError, match="only Windows"):
            apply(Results())


# --- mitigations ----------------------------------------------------------------------------------

BITS = st.sets(st.sampled_from(mitigations.ORDER)).map(
    lambda items: sum(item.bit for item in items)
)


@given(BITS, st.booleans())
def test_every_requested_mitigation_is_verified_and_described(bits, subprocess):
    step = mitigations.plan(bits, subprocess=subprocess)
    attributes = {attribute: (value, size) for attribute, value, size in step.attributes()}
    assert attributes.get(0x20007) == ((bits, 8) if bits else None)
    assert attributes.get(0x2000E) == (None if subprocess else (1, 4))
    wanted = step.readable()
    assert len(wanted) == bits.bit_count() + (not subprocess)
    assert all(name in step.describe() for name, _, _ in wanted)


def test_an_unknown_bit_is_refused():
    with pytest.raises(ValueError, match="unknown mitigations"):
        mitigations.plan(1, subprocess=False)


# --- network --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "capabilities"),
    [
        ("none", ()),
        ("outbound", ("S-1-15-3-1",)),
        ("local", ("S-1-15-3-3",)),
        ("full", ("S-1-15-3-1", "S-1-15-3-2", "S-1-15-3-3")),
    ],
)
def test_each_network_level_gives_its_network_capabilities(level, capabilities):
    step = network_capabilities.plan(Policy(windows=Windows(network=level)))
    assert step.capabilities == capabilities
    assert not step.relay


def test_host_names_are_never_widened_to_a_network_level():
    step = network_capabilities.plan(Policy(allow=("api.example.com",)))
    assert step.relay
    assert step.capabilities == ()
    for level in ("outbound", "local", "full"):
        with pytest.raises(PolicyError, match="would open all hosts"):
            network_capabilities.plan(
                Policy(allow=("api.example.com",), windows=Windows(network=level))
            )


def test_listening_is_refused_at_every_level():
    with pytest.raises(PolicyError, match="listen"):
        network_capabilities.plan(Policy(listen=(8080,)))


def test_the_description_of_a_network_level_names_the_hosts_that_it_opens():
    assert "open" not in network_capabilities.plan(Policy()).describe()
    for level in ("outbound", "local", "full"):
        words = network_capabilities.plan(Policy(windows=Windows(network=level))).describe()
        assert "open: every host" in words
    # The description must say that private addresses are open too.
    assert "private ranges too" in network_capabilities.Network(level="outbound").describe()
