"""Test the exceptions to the address guard in the user's config: which entries are accepted, and
which addresses they admit.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import ManifestError, PolicyError
from corral.network.addresses import Network, format_address, parse_address
from corral.network.guard import NOT_ADMISSIBLE, find_refusal, guarded_networks
from corral.network.guard_exceptions import format_warning, parse_admitted
from corral.plan.decide import describe_control
from corral.policy import user_config
from corral.policy.model import Policy

GOOD = {
    "10.0.0.0/8": ("10.1.2.3", "11.0.0.1"),
    "10.7.0.0/16": ("10.7.0.1", "10.8.0.1"),
    "192.168.1.7": ("192.168.1.7", "192.168.1.8"),
    "100.64.0.0/10": ("100.65.0.1", "100.100.100.200"),
    "198.18.0.0/15": ("198.19.0.1", "198.51.100.1"),
    "fd00::/8": ("fd00::1", "fd00:ec2::254"),
    "127.0.0.1": ("127.0.0.1", "127.0.0.2"),
    "::1": ("::1", "127.0.0.1"),
    "169.254.7.7": ("169.254.7.7", "169.254.7.8"),
    "64:ff9b:1::/48": ("64:ff9b:1::808:808", "64:ff9b:1::a00:1"),
}
"""For each entry, an address that it admits and one that it does not admit."""


@pytest.mark.parametrize("entry", GOOD)
def test_an_exception_admits_only_the_addresses_of_its_network(entry):
    admitted, other = map(parse_address, GOOD[entry])
    assert find_refusal(admitted) is not None
    assert find_refusal(admitted, admitted=[parse_admitted(entry)]) is None
    after = find_refusal(other, admitted=[parse_admitted(entry)])
    assert (after is None) == (find_refusal(other) is None)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("0.0.0.0/0", "wider than any guarded"), ("::/0", "wider"), ("0.0.0.0/1", "wider"), ("192.0.0.0/8", "wider"),
        ("8.8.8.0/24", "is not guarded"), ("2a00::/16", "is not guarded"),
        ("127.0.0.0/8", "each address"), ("127.0.0.0/31", "each address"),
        ("169.254.0.0/16", "each address"), ("169.254.169.0/24", "each address"), ("fe80::/10", "each address"),
        ("169.254.169.254", "credentials"), ("fd00:ec2::254", "credentials"), ("100.100.100.200", "credentials"),
        ("0.0.0.0", "nothing can be reached"), ("224.0.0.0/4", "nothing can"), ("::", "nothing can"), ("ff02::1", "nothing can"),
        ("::ffff:10.0.0.1", "contains IPv4"), ("64:ff9b::/96", "contains IPv4"), ("2002::/16", "contains IPv4"),
        ("10.0.0.1/8", "not zero after its first 8 bits"), ("10.0.0.0/33", "prefix length"), ("10.0.0.0/08", "prefix length"), ("10.0.0.0/", "prefix length"),
        ("10.1", "not an IP address"), ("0x0a.0.0.1", "not an IP"), ("010.0.0.1", "not an IP"), ("167772161", "not an IP"),
        ("10.0.0.1:80", "not an IP"), ("[fd00::1]", "not an IP"), ("example.com", "not an IP"), (" 10.0.0.1", "not"), ("", "not"),
        ("*", "not an IP"), ("private", "not an IP"), ("10.0.0.0/255.0.0.0", "prefix length"), ("fe80::1%eth0", "not an IP"),
    ],
)  # fmt: skip
def test_invalid_entries_are_refused(entry, why):
    with pytest.raises(ValueError, match=why):
        parse_admitted(entry)


EXACT = {"loopback", "link-local", "metadata"}


@given(st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.data())
def test_no_range_admits_the_host_or_metadata(address, data):
    """Check that no accepted range admits loopback, link-local or metadata addresses."""
    bits = data.draw(st.integers(0, len(address) * 8 - 1))
    cut = int.from_bytes(address, "big") >> (len(address) * 8 - bits) << (len(address) * 8 - bits)
    network = Network(address=cut.to_bytes(len(address), "big"), bits=bits)
    try:
        taken = parse_admitted(str(network))
    except ValueError:
        return
    for row in guarded_networks():
        if row.why in EXACT or row.why in NOT_ADMISSIBLE:
            assert find_refusal(row.network.address, admitted=[taken]) is not None
    assert find_refusal(taken.address, host_addresses=[taken.address], admitted=[taken]) is not None


def test_admitting_addresses_of_the_host_warns():
    assert format_warning(parse_admitted("10.0.0.0/8")) == ""
    assert format_warning(parse_admitted("11.0.0.1")) == ""
    assert "127.0.0.1 (loopback)" in format_warning(parse_admitted("127.0.0.1"))
    assert "169.254.7.7 (link-local)" in format_warning(parse_admitted("169.254.7.7"))


def written(folder, text):
    path = folder / "config.toml"
    path.write_text(text)
    path.chmod(0o644)
    return str(folder)


def test_the_config_file_is_read(tmp_path):
    text = (
        '[network]\nadmit = ["10.0.0.0/8", "fd00:0::/8", "10.0.0.0/8"]\n[ceilings]\nmemory = "1G"\n'
    )
    found = user_config.load(written(tmp_path, text))
    assert found.admit == ("10.0.0.0/8", "fd00::/8")
    assert found.ceilings.limits == {"memory": 1 << 30}
    assert user_config.load(written(tmp_path, "")).admit == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[network]\nadmit = ['0.0.0.0/0']", "network.admit[0]"), ("[network]\nadmit = ['10.0.0.0/8', 5]", "network.admit[1]"),
        ("[network]\nadmit = '10.0.0.0/8'", "network.admit"), ("[network]\nallow = ['a.com']", "network.allow"),
        ("network = 1", "network"), ("[network]\nadmit = [['10.0.0.0/8']]", "network.admit[0]"),
        ("admit = ['10.0.0.0/8']", "admit"), ("[network]\nadmit = [" + "'10.0.0.0/8'," * 65 + "]", "network.admit"),
    ],
)  # fmt: skip
def test_mistakes_in_the_config_file_are_named(tmp_path, text, key):
    with pytest.raises(ManifestError) as caught:
        user_config.load(written(tmp_path, text))
    assert key in {path for _, _, path, _ in caught.value.mistakes}


@pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX modes and owners")
def test_a_config_file_that_others_can_write_admits_nothing(tmp_path):
    folder = written(tmp_path, "[network]\nadmit = ['10.0.0.0/8']\n")
    os.chmod(f"{folder}/config.toml", 0o664)
    with pytest.raises(PolicyError):
        user_config.load(folder)


def test_the_description_of_the_network_names_admitted_networks():
    policy = Policy(allow=("a.example",), admit=("10.0.0.0/8",), listen=(80,))
    assert describe_control("network", policy, "linux") == "a.example, admit 10.0.0.0/8, listen 80"


@given(st.sampled_from(guarded_networks()))
def test_every_guarded_network_can_be_admitted_or_is_refused_with_a_reason(row):
    text = f"{format_address(row.network.address)}/{row.network.bits}"
    try:
        network = parse_admitted(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - an entry may be accepted or refused
    else:
        assert network == row.network
