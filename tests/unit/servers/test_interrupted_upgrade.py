"""Test that an interrupted upgrade of a server from a registry leaves either the old or the new
version.
"""

import json
import sys

import pytest

from corral.errors import SandboxError
from corral.servers import upgrade
from corral.servers.open_reference import ReadyServer
from corral.servers.reference import parse_reference
from corral.servers.registry import lookup
from corral.servers.store import store

NAME = "org.example/hello"
KEY = f"mcp:{NAME}"
PACKAGE = {"registryType": "npm", "identifier": "hello", "transport": {"type": "stdio"}}


def answer(version: str) -> bytes:
    packages = [{**PACKAGE, "version": version}]
    return json.dumps({"server": {"name": NAME, "version": version, "packages": packages}}).encode()


@pytest.mark.skipif(sys.platform == "win32", reason="the store needs POSIX modes")
@pytest.mark.parametrize("fault", [SandboxError("the disk is full"), KeyboardInterrupt()], ids=type)
def test_an_upgrade_that_fails_keeps_the_old_version(fault, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reference = parse_reference(NAME)
    entry = lookup.store_answer(KEY, reference, answer("1.0.0"))
    monkeypatch.setattr(lookup, "ask_registry", lambda _: answer("2.0.0"))
    monkeypatch.setattr(lookup, "open_answer", lambda *_: ReadyServer(command=("true",)))
    found = upgrade.find_candidate(entry, "", lambda _: None)

    def fail(*_: object, **__: object) -> None:
        raise fault

    with monkeypatch.context() as patch, pytest.raises(type(fault)):
        patch.setattr(store, "commit", fail)
        found.accept()
    assert [one.version for one in store.entries()] == ["1.0.0"]
    assert store.find(KEY) is not None
    # Sanity check: without a fault the new version replaces the old one.
    found.accept()
    assert [one.version for one in store.entries()] == ["2.0.0"]
    assert store.find(KEY) is not None
    assert not list(store.find_leftovers())
