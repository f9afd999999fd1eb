"""Test packages: the syntax and the installer of each source, and that few modules are imported to
start an installed package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from corral.errors import CommandError
from corral.programs.runtimes import find_own_python
from corral.servers.packages import pypi
from corral.servers.packages.package import SOURCES, package_key
from corral.servers.packages.sources import InstallOptions
from corral.servers.reference import SCHEMES, SEPARATORS, parse_reference
from corral.servers.store import store
from corral.servers.store.tree import remove_tree


def test_every_package_source_has_a_reference_syntax_and_an_installer():
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
    key = package_key(parse_reference("npm:thing@1"), InstallOptions())
    values = {"key": key, "kind": "npm", "name": "thing", "version": "1"}
    with store.lock_key(key), store.StagingDirectory(key) as staging:
        (Path(staging) / "main.js").touch()
        made = store.commit(staging, {**values, "command": ["node", "{tree}/main.js"]})
    argv = [sys.executable, "-S", "-c", OPEN, "npm:thing@1"]
    environment["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    command, loaded = json.loads(done.stdout)
    assert command == ["node", f"{made.path()}/main.js"]
    # Make sure that the list contains imported modules.
    assert "corral.servers.packages.package" in loaded
    assert set(loaded) & HEAVY == set()
    remove_tree(store.store_path())  # pytest cannot remove read-only directories


def without_pip(tmp_path) -> str:
    """Return an interpreter without pip, like Debian's python3."""
    path = tmp_path / "python3"
    words = f'case "$*" in *"import pip"*) exit 1;; esac\nexec {find_own_python()} -S "$@"'
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="the test's interpreter is a shell script")
def test_the_pip_of_the_environment_installs_for_an_interpreter_without_pip(tmp_path):
    pytest.importorskip("pip", reason="this environment has no pip")
    base = without_pip(tmp_path)
    words, reads = pypi.find_pip(base)
    assert [os.path.dirname(words[0])] == reads
    done = subprocess.run([base, "-I", *words, "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"pip ")


@pytest.mark.skipif(sys.platform == "win32", reason="the test's interpreter is a shell script")
def test_without_any_pip_the_hint_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(pypi, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match="uv was not found") as caught:
        pypi.find_pip(without_pip(tmp_path))
    assert "apt install python3-pip" in caught.value.hint
