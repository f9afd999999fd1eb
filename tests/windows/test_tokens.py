"""Test restricted tokens on Windows: corral reads their properties back, and fails if a restriction
has no effect.
"""

from __future__ import annotations

import os

import pytest

from corral.abi import win32
from corral.abi import win32_token as abi
from corral.abi.win32_security import format_sid, parse_sid, token_groups
from corral.plan.model import Results
from corral.platforms.windows.mechanisms import desktop, restricted_token
from windows.conftest import results_of_this_process, wine

only_wine = pytest.mark.skipif(not wine(), reason="tests a host that ignores restricted tokens")
TOKEN = restricted_token.RestrictedToken()
LOW = restricted_token.LowIntegrity()


@pytest.fixture(autouse=True)
def no_handle_is_left():
    before = win32.open_handles()
    yield
    assert win32.open_handles() == before


def test_the_callers_own_token_is_read():
    """Check that an ordinary token has the rights that a restricted token must not have. Otherwise
    the tests of restricted tokens would pass even if nothing was restricted.
    """
    with abi.own_token(restricted_token.ACCESS) as own:
        assert "SeChangeNotifyPrivilege" in abi.token_privileges(own.value)
        assert restricted_token.extra_privileges(abi.token_privileges(own.value))
        assert format_sid(abi.token_user(own.value)).startswith("S-1-5-")
        found = token_groups(own.value, abi.TokenGroups)
        groups = [(format_sid(sid), bits) for sid, bits in found]
        assert "S-1-1-0" in dict(groups)
        assert restricted_token.logon_sid(groups).startswith("S-1-5-5-")
        assert format_sid(abi.token_integrity(own.value)) in {"S-1-16-8192", "S-1-16-12288"}


@pytest.mark.parametrize("text", ["S-1-1-0", "S-1-16-4096", "S-1-15-3-1", "S-1-5-32-544"])
def test_sids_survive_conversion_in_both_directions(text):
    assert format_sid(parse_sid(text)) == text


@only_wine
def test_a_restricted_token_that_keeps_privileges_is_an_error():
    with pytest.raises(OSError, match="still has Se"):
        TOKEN.apply(Results())


@only_wine
def test_a_token_whose_integrity_level_was_not_lowered_is_an_error():
    with abi.own_token(restricted_token.ACCESS) as own:
        made = abi.create_restricted_token(own.value, restricted_token.FLAGS, ())
    with made, pytest.raises(OSError, match="reads back as S-1-16-12288"):
        restricted_token.set_low(made.value)


@only_wine
def test_a_window_station_without_access_control_is_a_failure():
    with pytest.raises(OSError, match="window station of this logon: it has no access list"):
        desktop.PrivateDesktop().apply(Results())


@only_wine
def test_the_probe_reports_a_token_that_restricts_nothing_as_absent(tmp_path):
    found = restricted_token.probe(str(tmp_path))
    assert found.status == "absent"
    assert "still has" in found.evidence
    assert os.listdir(tmp_path) == []


def test_an_unrestricted_token_fails_verification():
    with abi.own_token(restricted_token.ACCESS) as own:
        with pytest.raises(OSError, match="reads back differently"):
            restricted_token.check_restricted(own.value)
        with pytest.raises(OSError, match="reads back as"):
            restricted_token.check_low(own.value)


@pytest.mark.parametrize("step", [TOKEN, LOW], ids=["token", "integrity"])
def test_a_process_without_the_restricted_token_fails_verification(step):
    """Verify a process without the restricted token. `verify` must fail, because it must read the
    token of the process, and not the token that corral made.
    """
    with pytest.raises(OSError, match="reads back"):
        step.verify(results_of_this_process())


@pytest.mark.real_windows(reason="it ignores the restrictions of tokens")
def test_a_restricted_token_has_the_planned_properties():
    results = Results()
    TOKEN.apply(results)
    token = results.get(restricted_token.PrimaryToken).handle
    assert set(abi.token_privileges(token.value)) <= {"SeChangeNotifyPrivilege"}
    LOW.apply(results)
    restricted_token.check_low(token.value)
    restricted_token.check_restricted(token.value)
    results.release()


@pytest.mark.real_windows(reason="it ignores the restrictions of tokens")
def test_the_probe_proves_that_a_restricted_token_restricts_its_process(tmp_path):
    found = restricted_token.probe(str(tmp_path))
    assert found.status == "proven", found.evidence
    assert os.listdir(tmp_path) == []


@pytest.mark.real_windows(reason="its desktops have no labels")
def test_a_private_desktop_is_made():
    made = desktop.create("S-1-15-2-1")
    station, _, name = made.path.partition("\\")
    assert station
    assert name.startswith("corral-")
    made.release()
    made.release()
