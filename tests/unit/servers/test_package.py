"""Packages: one table of sources, and a cheap start of what is installed already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from corral.servers.packages.package import SOURCES, package_key
from corral.servers.reference import SCHEMES, SEPARATORS, parse_reference
from corral.servers.store import store
from corral.servers.store.tree import remove_tree


def test_every_source_has_a_syntax_and_an_installer():
    assert set(SOURCES) == set(SEPARATORS)
    assert set(SOURCES) <= set(SCHEMES)
    for kind in SOURCES:
        assert callable(import_module(f"corral.servers.packages.{kind}").install)


OPEN = """
import json, sys
before = set(sys.modules)
from corral.servers.open_reference import Choices, open_reference
from corral.servers.reference import parse_reference
opened = open_reference(parse_reference(sys.argv[1]), [], Choices())
print(json.dumps([opened.command, sorted(set(sys.modules) - before)]))
"""
HEAVY = {
    "typing", "dataclasses", "subprocess", "socket", "shutil", "tempfile", "configparser", "urllib",
    "corral.api.launch", "corral.servers.packages.npm", "corral.servers.packages.pypi",
    "corral.servers.packages.sandboxed_install",
}  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="packages are not installed on Windows yet")
def test_an_installed_package_is_opened_with_few_imports(tmp_path, monkeypatch):
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.write_bytes(b"\x7fELF")
    node.chmod(0o755)
    environment = {"HOME": str(tmp_path), "PATH": str(node.parent)}
    monkeypatch.setattr(os, "environ", environment)
    key = package_key(parse_reference("npm:thing@1"), scripts=False, extra=())
    values = {"key": key, "kind": "npm", "name": "thing", "version": "1"}
    with store.lock_key(key), store.staging_directory(key) as staging:
        (Path(staging) / "main.js").touch()
        made = store.commit(staging, {**values, "command": ["node", "{tree}/main.js"]})
    argv = [sys.executable, "-S", "-c", OPEN, "npm:thing@1"]
    environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    command, loaded = json.loads(done.stdout)
    assert command == ["node", f"{made.path()}/main.js"]
    assert "corral.servers.packages.package" in loaded  # the control
    assert set(loaded) & HEAVY == set()
    remove_tree(store.store_path())  # read-only directories are in pytest's way
