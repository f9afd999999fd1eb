"""Test which servers get a Containerfile, what a server's lock file may contain, and which user in
the container installs the server.
"""

import os

import pytest

from corral.errors import SandboxError
from corral.export.containerfile import build_command, build_package
from corral.servers.store import store
from corral.servers.store.tree import remove_tree

HASH = f"--hash=sha256:{'0' * 64}"
LOCK = f"a-b==1.0 \\\n    {HASH} \\\n    {HASH}\n    # from https://pypi.org/simple\n"
KEYS = {"npm": "npm:thing@1", "pypi": "pypi:thing==1 python3.12"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    yield
    for name in ("cache", "home"):
        remove_tree(str(tmp_path / name))  # pytest cannot remove read-only directories


def put(kind: str, key: str, files: dict[str, str]) -> str:
    """Put a tree with these files into the store, and return its path."""
    store.make_directories()
    place = store.make_staging(key)
    for name, text in files.items():
        with open(os.path.join(place, name), "w", encoding="utf-8", newline="") as file:
            file.write(text)
    values = {"key": key, "kind": kind, "name": "thing", "version": "1", "command": []}
    return store.commit(place, values).path()


def put_python(lock: str, kind: str = "pypi", key: str = KEYS["pypi"]) -> str:
    return put(kind, key, {"requirements.lock": lock, "start.py": "pass\n"})


def put_node(kind: str = "npm", key: str = KEYS["npm"]) -> str:
    return put(kind, key, {"package.json": "{}", "package-lock.json": "{}"})


def test_a_bundle_with_the_files_of_a_package_gets_no_containerfile():
    for tree in (put_python(LOCK, "bundle", "bundle:1"), put_node("bundle", "bundle:2")):
        with pytest.raises(
            SandboxError, match="needs a server that corral installed from npm or PyPI"
        ):
            build_package(tree)
    # Sanity check: a package with the same files gets a Containerfile.
    assert "npm ci" in build_package(put_node()).text
    assert "pip install" in build_package(put_python(LOCK)).text


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://evil.example/simple",
        f"--index-url https://evil.example/simple {HASH}",
        f"evil==1.0 --config-settings=x=y {HASH}",
        f"evil==1.0 {HASH} --no-binary :all:",
        f"evil @ https://evil.example/evil.whl {HASH}",
        f"-r /etc/passwd {HASH}",
        f"evil==1.0 -r x {HASH}",
        f"evil==1.0 --hash=sha256:{'0' * 63}",
        f"evil==$(id) {HASH}",
        "evil==1.0",
    ],
)
def test_a_lock_file_with_options_is_refused(line):
    with pytest.raises(SandboxError, match=r"is not a package|came without a hash"):
        build_package(put_python(f"{LOCK}{line}\n"))
    # Sanity check: the same lock file without this line is accepted.
    build_package(put_python(LOCK))


def test_the_exported_lock_file_has_names_versions_and_hashes_only():
    lock = f"# by uv \\\n--no-binary :all:\n{LOCK}c[x]==2!1.0+local {HASH} # --pre\n"
    files = build_package(put_python(lock)).files
    assert files["requirements.lock"].decode() == (
        f"a-b==1.0 \\\n    {HASH} \\\n    {HASH}\nc==2!1.0+local \\\n    {HASH}\n"
    )
    assert files["start.py"] == b"pass\n"


@pytest.mark.parametrize("kind", ["npm", "pypi"])
def test_a_lock_file_that_a_package_may_have_written_is_refused(kind):
    key = f"{KEYS[kind]} scripts"
    tree = put_node(key=key) if kind == "npm" else put_python(LOCK, key=key)
    with pytest.raises(SandboxError, match="--allow-install-scripts"):
        build_package(tree)
    # Sanity check: the same files are accepted after an installation without scripts.
    assert tree == (put_node() if kind == "npm" else put_python(LOCK))
    assert build_package(tree).files


@pytest.mark.parametrize("kind", ["npm", "pypi"])
def test_corral_is_installed_before_the_server_and_by_another_user(kind):
    text = build_package(put_node() if kind == "npm" else put_python(LOCK)).text
    install = {"npm": "npm ci", "pypi": "-r requirements.lock"}[kind]
    steps = ("/opt/corral/bin/pip install", "USER 1001:1001", install, "USER 1000:1000")
    places = [text.index(step) for step in steps]
    assert places == sorted(places)
    assert text.count("USER ") == 2
    assert text.index("policy.json") < text.index("USER 1001:1001")


def test_the_containerfile_for_a_plain_command_leaves_a_place_for_its_program():
    text = build_command(("server", "x")).text
    assert "# Add here what this command needs: server x\n" in text
    assert text.endswith("USER 1000:1000\n")
