"""Test pins, which are stored definitions of the tools and prompts that a server offered. Each
server has its own pins, and corral ignores pins that another user could have written.
"""

import hashlib
import json
import os
import sys

import pytest

from corral.errors import PolicyError, SandboxError
from corral.policy import pins

PINS = [("tool", "a", '{"name":"a"}'), ("instructions", "", '"be brief"')]


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    for name in ("XDG_CONFIG_HOME", "APPDATA", "HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    pins.keep_pins(["npm:x", "--token=abcdef"], PINS)
    (found,) = tmp_path.rglob("pins/*")
    return found


def test_pins_are_found_for_their_server_only():
    assert pins.load_pins(["npm:x", "--token=abcdef"], required=True) == tuple(sorted(PINS))
    assert pins.find_pinned(["npm:x"]) is None
    assert pins.load_pins(["npm:x"], required=False) == ()
    with pytest.raises(PolicyError, match="nothing is pinned for npm:x") as caught:
        pins.load_pins(["npm:x"], required=True)
    assert "corral inspect --pin npm:x" in caught.value.hint
    with pytest.raises(PolicyError, match=r"for npm:x '--token=\*\*\*'") as caught:
        pins.load_pins(["npm:x", "--token=other"], required=True)
    assert "***" not in caught.value.hint


def test_secrets_are_not_stored_with_pins(store):
    assert "abcdef" not in store.read_text()
    (listed,) = pins.list_pinned()
    assert listed.server[0] == "npm:x"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pins": [[1]], "server": [], "pinned": ""}'])
def test_damaged_pins_are_ignored(store, text):
    store.write_text(text)
    assert pins.find_pinned(["npm:x", "--token=abcdef"]) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_pins_that_other_users_could_have_written_are_ignored(store):
    for path in (store, store.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o022)
        assert pins.find_pinned(["npm:x", "--token=abcdef"]) is None
        path.chmod(mode)
    assert pins.find_pinned(["npm:x", "--token=abcdef"]) is not None
    data = json.loads(store.read_text())
    os.rename(store, store.with_name("elsewhere"))
    store.symlink_to("elsewhere")
    assert data["pins"]
    assert pins.find_pinned(["npm:x", "--token=abcdef"]) is None


def test_an_inspection_stores_the_names_of_tools_and_pins_nothing():
    pins.keep_inspected(["npm:y"], PINS)
    found = pins.find_inspected(["npm:y"])
    assert found.pins == (("tool", "a", ""),)
    assert pins.find_pinned(["npm:y"]) is None
    assert [one.server[0] for one in pins.list_pinned()] == ["npm:x"]
    assert pins.find_inspected(["npm:x", "--token=abcdef"]) is None


def test_servers_whose_words_look_like_keys_have_their_own_pins():
    pins.keep_pins(["pypi-publish-server"], PINS)
    pins.keep_inspected(["pypi-publish-server"], PINS)
    for other in (["hf_mcp_server_main_x"], ["***"]):
        assert pins.find_pinned(other) is None
        assert pins.find_inspected(other) is None
    # Sanity check: the command with pins is found.
    assert pins.find_pinned(["pypi-publish-server"]) is not None
    assert pins.find_inspected(["pypi-publish-server"]) is not None


def test_the_pins_of_a_command_without_secrets_are_in_a_file_named_by_its_digest(store):
    pins.keep_pins(["npm:y", "--x"], PINS)
    name = hashlib.sha256(b"npm:y\0--x").hexdigest()
    assert (store.parent / name).exists()


def test_the_pins_of_other_servers_are_listed_by_identity():
    pins.keep_pins(["npm:x", "--token=other"], PINS)
    (listed,) = pins.list_pinned(besides=["npm:x", "--token=abcdef"])
    assert listed.path == pins.find_pinned(["npm:x", "--token=other"]).path
    assert len(list(pins.list_pinned())) == 2


def test_replacing_pins_keeps_them_in_the_file_of_their_server(store):
    pins.replace_pins(pins.find_pinned(["npm:x", "--token=abcdef"]), PINS[:1])
    assert pins.load_pins(["npm:x", "--token=abcdef"], required=True) == tuple(PINS[:1])
    assert list(store.parent.iterdir()) == [store]


def test_definitions_that_corral_could_not_read_again_are_not_pinned():
    large = [("tool", "a", '{"name":"' + "a" * (1 << 20) + '"}')]
    with pytest.raises(SandboxError, match="cannot be pinned"):
        pins.keep_pins(["npm:big"], large)
    pins.keep_pins(["npm:small"], PINS)  # Sanity check
    assert pins.find_pinned(["npm:small"]) is not None
