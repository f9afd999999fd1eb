"""Compute SIDs from names of packages and capabilities, and compare them with published values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.abi.win32_security import format_sid, parse_sid
from corral.platforms.windows.files import access_list

# SIDs of packages that come with Windows. The first SID is on Microsoft's page about loopback
# exemptions.
PACKAGES = {
    "microsoft.microsoftedge_8wekyb3d8bbwe": "S-1-15-2-3624051433-2125758914-1423191267-1740899205-1073925389-3782572162-737981194",
    "Microsoft.WindowsCalculator_8wekyb3d8bbwe": "S-1-15-2-466767348-3739614953-2700836392-1801644223-4227750657-1087833535-2488631167",
}
# SIDs of capabilities. On every Windows 10 machine, the SID of registryRead is in the access list
# of HKEY_LOCAL_MACHINE\\SOFTWARE, and the SID of lpacCom is in the access list of COM.
CAPABILITIES = {
    "registryRead": "S-1-15-3-1024-1065365936-1281604716-3511738428-1654721687-432734479-3232135806-4053264122-3456934681",
    "lpacCom": "S-1-15-3-1024-2405443489-874036122-4286035555-1823921565-1746547431-2453885448-3625952902-991631256",
}


@pytest.mark.parametrize(("name", "sid"), PACKAGES.items())
def test_package_sids_match_published_ones(name, sid):
    assert access_list.package_sid(name) == sid
    assert access_list.package_sid(name.upper()) == sid


@pytest.mark.parametrize(("name", "sid"), CAPABILITIES.items())
def test_capability_sids_match_published_ones(name, sid):
    assert access_list.capability_sid(name) == sid
    assert access_list.capability_sid(name.lower()) == sid


@pytest.mark.parametrize("name", ["", "a" * 65, "a/b", "a\\b", "ä", "a\0", "a:b"])
def test_invalid_profile_names_are_refused(name):
    with pytest.raises(ValueError):
        access_list.package_sid(name)


def test_every_root_and_access_has_its_own_capability():
    roots = ["C:\\a", "C:\\b", "C:\\a\\b"]
    sids = {access_list.grant_sid(root, access) for root in roots for access in ("read", "write")}
    assert len(sids) == 6


@pytest.mark.parametrize("spelling", ["c:\\Data", "C:/data", "C:\\DATA\\", "c:/DATA//"])
def test_one_directory_has_one_capability(spelling):
    assert access_list.grant_sid(spelling, "read") == access_list.grant_sid("C:\\data", "read")


def test_a_new_object_at_the_same_path_gets_another_capability():
    sids = {
        access_list.grant_sid("C:\\a", "read", pair) for pair in [(1, 2), (2, 1), (1, 3), (0x12, 0)]
    }
    assert len(sids) == 4


def test_two_directories_have_two_capabilities():
    assert access_list.grant_sid("C:\\stra\u00dfe", "read") != access_list.grant_sid(
        "C:\\STRASSE", "read"
    )


@given(st.lists(st.integers(0, 2**32 - 1), max_size=15), st.integers(0, 2**48 - 1))
def test_sids_become_bytes_and_text_again(words, authority):
    text = "-".join(map(str, ("S-1", authority, *words)))
    raw = parse_sid(text)
    assert len(raw) == 8 + 4 * len(words)
    assert format_sid(raw) == text


def test_a_known_sid_has_the_known_bytes():
    assert parse_sid("S-1-5-32-544").hex() == "01020000000000052000000020020000"


@pytest.mark.parametrize(
    "text", ["", "S", "S-1", "S-2-5", "S-1-5-x", "S-1-5-4294967296", "1-5-32", "S-1-5" + "-1" * 16]
)
def test_texts_that_are_not_a_sid_are_refused(text):
    with pytest.raises(ValueError):
        parse_sid(text)


@given(st.binary(max_size=80))
def test_bytes_that_are_not_a_sid_are_refused(raw):
    try:
        text = format_sid(raw)
    except ValueError:
        return
    assert parse_sid(text) == raw
