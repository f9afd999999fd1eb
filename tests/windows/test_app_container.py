"""Test AppContainer profiles: computed SIDs, the tokens of processes, and what is reported if
support is missing.
"""

from __future__ import annotations

import os

import pytest

from corral.abi import win32, win32_security, win32_token
from corral.abi.win32_security import format_sid, parse_sid
from corral.plan.model import Results
from corral.platforms.windows.files.access_list import capability_sid, grant_sid, package_sid
from corral.platforms.windows.mechanisms import (
    app_container,
    network_capabilities,
    restricted_token,
)
from windows.conftest import results_of_this_process, wine

only_wine = pytest.mark.skipif(not wine(), reason="tests a host without AppContainers")
DIGEST = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_handle_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


@pytest.fixture
def profile():
    name = app_container.profile_name(DIGEST, os.urandom(8).hex())
    home = app_container.profile_folder(os.path.expanduser("~"), name)
    capabilities = (network_capabilities.INTERNET_CLIENT, grant_sid("C:\\data", "read"))
    yield app_container.Profile(profile=name, capabilities=capabilities, home=home)
    try:
        win32_security.DeleteAppContainerProfile(name)
    except OSError:
        assert wine()


@only_wine
def test_the_probe_reports_missing_app_containers():
    found = app_container.probe()
    assert found.status == "absent"
    assert found.evidence == "this version of Windows has no AppContainers"
    assert "WSL2" in found.hint


@only_wine
def test_a_run_reports_missing_app_containers(profile):
    with pytest.raises(OSError, match=r"no AppContainers.*WSL2") as caught:
        profile.apply(Results())
    assert caught.value.filename == profile.profile


def test_a_process_that_is_not_in_an_app_container_fails_verification(profile):
    with pytest.raises(OSError, match="not in an AppContainer"):
        profile.verify(results_of_this_process())


def test_a_process_with_dangerous_privileges_fails_verification(profile, monkeypatch):
    """Call `verify` for this process: first with one of its privileges marked as dangerous, and
    then with no privilege marked. Only the first call must fail.
    """
    with win32_token.own_token(win32_security.TOKEN_QUERY) as own:
        held = win32_token.token_privileges(own.value)
    having = tuple(
        (parse_sid(sid), win32_security.SE_GROUP_ENABLED) for sid in profile.capabilities
    )
    monkeypatch.setattr(win32_security, "is_app_container", lambda _: True)
    monkeypatch.setattr(win32_security, "app_container_sid", lambda _: parse_sid(profile.package))
    monkeypatch.setattr(win32_security, "token_capabilities", lambda _: having)
    results = results_of_this_process()
    profile.verify(results)
    step = restricted_token.FilteredToken()
    monkeypatch.setattr(restricted_token, "ADMINISTRATORS", "")
    monkeypatch.setattr(restricted_token, "DANGEROUS", frozenset({held[0], "SeDebugPrivilege"}))
    with pytest.raises(OSError, match=f"the target's token has .*{held[0]}"):
        step.verify(results)
    monkeypatch.setattr(restricted_token, "DANGEROUS", frozenset())
    step.verify(results)  # Sanity check: without a dangerous privilege the step succeeds


@pytest.mark.parametrize(
    ("code", "text", "hint"),
    [
        (win32.ERROR_ACCESS_DENIED, "not allowed to create", "outside any sandbox"),
        (win32.ERROR_NOT_SUPPORTED, "no AppContainers", "WSL2"),
        (win32.E_NOTIMPL, "no AppContainers", "WSL2"),
        (win32.ERROR_INVALID_PARAMETER, "CreateAppContainerProfile: ", ""),
    ],
)
def test_each_error_of_creating_an_app_container_profile_is_explained(code, text, hint):
    why, advice = app_container.explain(win32.windows_error(code, "CreateAppContainerProfile"))
    assert text in why
    assert hint in advice


DeriveCapabilitySidsFromName = win32.function(
    "kernelbase", "DeriveCapabilitySidsFromName", win32.BOOL, win32.LPCWSTR, *([win32.LPVOID] * 4)
)


def derived_capability_sids(name):
    """Return the SIDs that Windows derives from a capability's name. Windows allocates the SIDs, so
    this function copies and frees them.
    """
    groups, group_count, capabilities, count = (
        win32.LPVOID(), win32.DWORD(), win32.LPVOID(), win32.DWORD(),
    )  # fmt: skip
    arguments = (groups, group_count, capabilities, count)
    DeriveCapabilitySidsFromName(name, *map(win32.ctypes.byref, arguments))
    freed_sids(groups, group_count.value)
    return freed_sids(capabilities, count.value)


def freed_sids(array, count):
    addresses = list((win32.PSID * count).from_address(array.value)) if count else []
    copies = [win32_security.copy_sid(address) for address in addresses]
    for address in (*addresses, array):
        win32.LocalFree(address)
    return copies


@pytest.mark.real_windows
@pytest.mark.parametrize("name", ["corral-0123456789abcdef-1", "Some.Name_x", "a" * 64])
def test_package_sids_are_what_windows_derives(name):
    assert format_sid(win32_security.derive_package_sid(name)) == package_sid(name)


@pytest.mark.real_windows
@pytest.mark.parametrize(
    "name", ["registryRead", "lpacCom", "corral.read.0123", "corral.write.abc"]
)
def test_capability_sids_are_what_windows_derives(name):
    assert parse_sid(capability_sid(name)) in derived_capability_sids(name)


@pytest.mark.real_windows
@pytest.mark.parametrize(
    ("name", "sid"),
    [
        ("internetClient", network_capabilities.INTERNET_CLIENT),
        ("internetClientServer", network_capabilities.INTERNET_CLIENT_SERVER),
        ("privateNetworkClientServer", network_capabilities.PRIVATE_NETWORK),
    ],
)
def test_network_capabilities_are_what_windows_derives(name, sid):
    assert parse_sid(sid) in derived_capability_sids(name)


@pytest.mark.real_windows
def test_a_profile_is_created_and_deleted(profile):
    results = Results()
    profile.apply(results)
    assert os.path.isdir(profile.home)
    assert results.get(win32_security.Capabilities).value.CapabilityCount == 2
    win32_security.DeleteAppContainerProfile(profile.profile)
    assert not os.path.isdir(profile.home)


@pytest.mark.real_windows
def test_an_existing_profile_is_kept_or_replaced(profile):
    """Check that a kept profile is used again with its content, and that a profile for a single run
    starts empty.
    """
    profile.apply(Results())
    left = os.path.join(profile.home, "left")
    with open(left, "w") as file:
        file.write("x")
    kept = app_container.Profile(
        profile=profile.profile, capabilities=(), home=profile.home, keep=True
    )
    kept.apply(Results())
    assert os.path.exists(left)
    profile.apply(Results())
    assert not os.path.exists(left)


@pytest.mark.real_windows
def test_the_probe_succeeds_on_real_windows():
    assert app_container.probe().status == "proven"


TOKEN = """
import ctypes
kernel, advapi = ctypes.WinDLL("kernel32"), ctypes.WinDLL("advapi32")
kernel.GetCurrentProcess.restype = ctypes.c_void_p
token, value, size = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_uint32()
advapi.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), 8, ctypes.byref(token))
advapi.GetTokenInformation(token, 29, ctypes.byref(value), 4, ctypes.byref(size))
answer = value.value
"""


@pytest.mark.real_windows
def test_a_target_is_in_an_app_container(corral):
    """Check the token of a target. Run this test as an administrator too, because only an
    administrator's target could keep privileges. corral refuses to run a target that keeps them.
    """
    assert corral.outside(TOKEN) == 0
    assert corral.inside(TOKEN) == 1
