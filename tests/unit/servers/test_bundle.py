"""Test how corral reads a bundle's manifest.json: the parser is strict, placeholders are filled in
only once, and paths outside the bundle are refused.
"""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError, SandboxError
from corral.policy.manifest import Manifest
from corral.policy.merge import merge_environment
from corral.policy.model import Source
from corral.servers.bundles import bundle, user_values
from corral.servers.bundles.archive import Limits
from corral.servers.bundles.manifest import MAX_MANIFEST_BYTES, Bundle, parse_manifest
from corral.servers.bundles.policy import (
    build_request,
    find_warnings,
    grant_values,
    is_own_path,
    refuse_homes,
    secret_names,
)

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def manifest(**more: object) -> dict:
    server = {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {"command": "node", "args": ["${__dirname}/server/index.js"]},
    }
    return {"manifest_version": "0.3", "name": "hello", "version": "1", "server": server, **more}


def parse(data: object, platform: str = "linux") -> Bundle:
    return parse_manifest(json.dumps(data).encode(), platform)


def test_a_plain_manifest_is_read():
    made = parse(manifest())
    assert (made.name, made.type, made.command) == ("hello", "node", "node")
    assert made.arguments == ("${__dirname}/server/index.js",)
    assert parse(
        {**manifest(), "manifest_version": None, "dxt_version": "0.1"} | {"manifest_version": "0.1"}
    )


def test_the_old_name_of_the_version_is_accepted():
    data = manifest(dxt_version="0.1")
    del data["manifest_version"]
    assert parse(data).name == "hello"


def test_an_override_replaces_a_value_as_a_whole():
    data = manifest()
    start = data["server"]["mcp_config"]
    start["env"] = {"A": "1", "B": "2"}
    start["platform_overrides"] = {"win32": {"args": ["x"]}, "darwin": {"env": {"C": "3"}}}
    assert parse(data, "win32").arguments == ("x",)
    assert parse(data, "win32").environment == {"A": "1", "B": "2"}
    assert parse(data, "darwin").environment == {"C": "3"}
    assert parse(data, "linux").environment == {"A": "1", "B": "2"}


def server(**more: object) -> dict:
    return manifest(server={**manifest()["server"], **more})


BAD = {
    "no table": ([], "JSON object as its content"),
    "version": (manifest(manifest_version="9.9"), "has version '9.9'"),
    "type": (server(type="docker"), "server type 'docker'"),
    "no name": (manifest(name=""), "non-empty string without NUL characters as name"),
    "a name that moves the cursor": (manifest(name="a\x1b[2J"), "is too long or cannot be printed"),
    "a long name": (manifest(name="a" * 201), "is too long or cannot be printed"),
    "args": (server(mcp_config={"command": "x", "args": "y"}), "list as server.mcp_config.args"),
    "nul": (
        server(mcp_config={"command": "x", "args": ["a\0b"]}),
        "without NUL characters as server.mcp_config.args",
    ),
    "entry upward": (server(entry_point="../../x"), "outside of the bundle"),
    "entry absolute": (server(entry_point="/etc/passwd"), "outside of the bundle"),
    "entry on a drive": (server(entry_point="C:\\x"), "outside of the bundle"),
    "entry backward": (server(entry_point="a\\..\\..\\x"), "outside of the bundle"),
    "setting": (
        manifest(user_config={"a": {"type": "password"}}),
        "the unknown type 'password'",
    ),
    "a setting that moves the cursor": (
        manifest(user_config={"a\x1b[2J": {"type": "string"}}),
        "is too long or cannot be printed",
    ),
    "a variable whose name contains another variable": (
        server(mcp_config={"command": "x", "env": {"A=1\nB": "2"}}),
        "variable with the invalid name",
    ),
    "meta": (manifest(_meta={"io.corral": "x"}), "JSON object as _meta.io.corral"),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_in_a_manifest_are_named(case):
    data, why = BAD[case]
    with pytest.raises(SandboxError) as caught:
        parse(data)
    assert why in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(manifest()).encode().ljust(MAX_MANIFEST_BYTES + 1),
        json.dumps(manifest(user_config={"a\ud800": {}})).encode(),
    ],
    ids=range(6),
)
def test_invalid_json_is_refused(content):
    with pytest.raises(SandboxError, match=r"manifest\.json is"):
        parse_manifest(content, "linux")


@given(JSON, st.sampled_from(["server", "user_config", "_meta", "compatibility", "name"]))
def test_any_value_of_a_key_is_read_or_refused(value, key):
    try:
        parse(manifest(**{key: value}))
    except SandboxError:
        pass


SETTINGS = {
    "dir": {"type": "directory", "multiple": True, "default": ["${HOME}/Documents"]},
    "key": {"type": "string", "sensitive": True},
    "text": {"type": "string", "default": "plain"},
}


def configured(*arguments: str, **environment: str) -> Bundle:
    start = {"command": "node", "args": list(arguments), "env": environment}
    return parse(
        manifest(user_config=SETTINGS, server={**manifest()["server"], "mcp_config": start})
    )


KNOWN = user_values.known_paths("/tree", "/home/me")


def test_several_values_become_several_arguments(tmp_path):
    made = configured("${user_config.dir}", "in ${user_config.text}", "${user_config.key}")
    two = [tmp_path / "a", tmp_path / "b"]
    for path in two:
        path.mkdir()
    values = user_values.collect(made, [f"dir={path}" for path in two], {})
    words = user_values.expand(made.arguments, KNOWN, values)
    assert words == [*map(str, two), "in plain"]


VALUES = {
    "text": "has no value",
    "unknown=1": "has no setting 'unknown'",
    "dir=/nowhere/at/all": "is not a directory",
    "dir=/etc/passwd": "is not a directory",
}


@pytest.mark.parametrize("word", VALUES)
def test_a_value_of_another_type_is_refused(word):
    with pytest.raises(SandboxError, match=VALUES[word]):
        user_values.collect(configured(), [word], {})


def test_a_setting_for_one_value_refuses_a_second_one():
    with pytest.raises(SandboxError, match="takes only one value"):
        user_values.collect(configured(), ["text=a", "text=b"], {})
    kept = user_values.collect(configured(), ["text=flag"], {"text": "kept", "key": "kept"})
    assert (kept.texts["text"], kept.texts["key"]) == (("flag",), ("kept",))


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        ("number", "3", "9"),
        ("number", "1.5", "x"),
        ("number", "5", "nan"),
        ("boolean", "true", "1"),
    ],
)
def test_numbers_and_booleans_are_checked(shape, good, bad):
    made = parse(manifest(user_config={"x": {"type": shape, "min": 1, "max": 5}}))
    assert user_values.collect(made, [f"x={good}"], {}).texts["x"] == (good,)
    with pytest.raises(SandboxError):
        user_values.collect(made, [f"x={bad}"], {})


def test_placeholders_inside_a_users_value_are_not_filled_in():
    """Check that placeholders in a user's value are not filled in. Otherwise the value could refer
    to another value, or to a path that the user did not mean.
    """
    made = configured("x${user_config.text}")
    values = user_values.collect(made, ["text=${HOME} ${user_config.key}", "key=s3cret"], {})
    words = user_values.expand(made.arguments, KNOWN, values)
    assert words == ["x${HOME} ${user_config.key}"]


@POSIX
def test_placeholders_for_directories_are_filled_in():
    made = configured(
        "${__dirname}${/}a", "${HOME}", "${DESKTOP}", "${DOWNLOADS}", "${pathSeparator}"
    )
    values = user_values.defaults(made)
    expected = ["/tree/a", "/home/me", "/home/me/Desktop", "/home/me/Downloads", "/"]
    assert user_values.expand(made.arguments, KNOWN, values) == expected
    with pytest.raises(SandboxError, match="corral does not know"):
        user_values.expand(["${PATH}"], KNOWN, values)


@POSIX
def test_a_home_directory_is_refused_as_a_value(tmp_path):
    home = tmp_path / "me"
    (home / "notes").mkdir(parents=True)
    known = user_values.known_paths("/tree", str(home))
    data = manifest(user_config={"dir": {"type": "directory", "default": "${HOME}"}})
    made = parse(data)
    for flags in ([], [f"dir={home}"], [f"dir={tmp_path}"], [f"dir={home}/notes/.."]):
        values = user_values.collect(made, flags, {})
        with pytest.raises(PolicyError, match="a home directory, which is never granted") as error:
            refuse_homes(made, values, known)
        assert str(error.value.hint).endswith("--config dir=~/notes")
    refuse_homes(made, user_values.collect(made, [f"dir={home}/notes"], {}), known)


def test_the_users_directories_are_granted_and_the_bundles_own_need_approval(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (tmp_path / "Documents").mkdir()
    known = user_values.known_paths("/tree", str(tmp_path))
    made = configured("${user_config.dir}")
    nothing = user_values.collect(made, [], {})
    assert build_request(made, nothing, known, origin="x").read == (f"{tmp_path}/Documents",)
    assert grant_values(made, nothing, known).manifest.read is None
    said = user_values.collect(made, [f"dir={own}"], {})
    assert build_request(made, said, known, origin="x").read is None
    assert grant_values(made, said, known).manifest.read == (str(own),)


def test_sensitive_values_are_secrets_and_cannot_change_corral():
    made = configured(T_KEY="Bearer ${user_config.key}", T_TEXT="${user_config.text}")
    values = user_values.collect(made, ["key=x"], {})
    assert secret_names(made, values) == ["T_KEY"]
    assert build_request(made, values, KNOWN, origin="x").set_values == (("T_TEXT", "plain"),)
    assert grant_values(made, values, KNOWN).manifest.secret_names == ("T_KEY",)
    evil = configured(LD_PRELOAD="/tree/${user_config.key}")
    with pytest.raises(SandboxError, match="may not set"):
        secret_names(evil, user_values.collect(evil, ["key=x"], {}))


def test_only_the_users_values_are_masked():
    """Check that only the user's own value is masked in corral's messages. A default and the text
    around the value come from the bundle. If they were masked too, a bundle could use a host name
    there, and the reports of denials would not show this host.
    """
    settings = {**SETTINGS, "host": {"type": "string", "sensitive": True, "default": "c2.example"}}
    start = {"command": "node", "env": {"A_TOKEN": "c2server.${user_config.key}"}}
    made = parse(
        manifest(user_config=settings, server={**manifest()["server"], "mcp_config": start})
    )
    values = user_values.collect(made, ["key=s3cret"], {})
    source = grant_values(made, values, KNOWN)
    assert source.given_values == ("s3cret",)
    found = merge_environment([source])
    assert (found["requested_names"], found["given_values"]) == (("A_TOKEN",), ("s3cret",))
    # Sanity check: `requested_names` does not include a variable that the user's own policy passes.
    user = Source(manifest=Manifest(origin="", secret_names=("A_TOKEN",)))
    assert merge_environment([user])["requested_names"] == ()


def test_a_secret_in_an_argument_causes_a_warning():
    assert "'key' as an argument" in find_warnings(configured("--key=${user_config.key}"))[0]
    assert find_warnings(configured("${user_config.text}")) == []


@POSIX
@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("PYTHONPATH", "/tree/lib", True),
        ("PYTHONPATH", "/tree/lib:/tree", True),
        ("PYTHONPATH", "/tree/lib:/home/me", False),
        ("PYTHONPATH", "/tree/../home", False),
        ("PYTHONPATH", "/treehouse", False),
        ("PYTHONPATH", "lib", False),
        ("PYTHONPATH", "", False),
        ("LD_PRELOAD", "/tree/lib", False),
    ],
)
def test_search_paths_may_only_lead_into_the_bundle(name, value, own):
    assert is_own_path(name, value, "/tree") is own


@POSIX
def test_paths_in_the_corral_table_start_in_the_bundle():
    meta = {"io.corral": {"filesystem": {"read": ["data", "~/x", "/abs"], "unix_sockets": ["s"]}}}
    made = parse(manifest(_meta=meta))
    asked = build_request(made, user_values.defaults(made), KNOWN, origin="x")
    assert asked.read == ("/tree/data", "~/x", "/abs")
    assert asked.unix_sockets == ("/tree/s",)
    wrong = parse(manifest(_meta={"io.corral": {"filesystem": {"reed": []}}}))
    with pytest.raises(SandboxError, match="reed"):
        build_request(wrong, user_values.defaults(wrong), KNOWN, origin="x")


def test_huge_numbers_do_not_crash_the_parser():
    for bound in ("min", "max"):
        setting = {"n": {"type": "number", bound: 10**400}}
        with pytest.raises(SandboxError, match="too large"):
            parse(manifest(user_config=setting))
    assert parse(manifest(user_config={"n": {"type": "number", "min": 10**40}})).settings["n"].low


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("mcp", True),
        ("mcp[cli]>=1.2,<2; python_version >= '3.10' and (extra == \"x\")", True),
        ("a~=1.0.*", True),
        ("a @ https://example.com/a.whl", False),
        ("a\r--no-binary=:all:", False),
        ("a\x0b--no-binary=:all:", False),
        ("a\u2028-e .", False),
        ("a --config-settings=x", False),
        ("${PIP_INDEX_URL}", False),
        ("a==${TOKEN}", False),
        ("a\\", False),
        ("-e .", False),
        ("./a", False),
        ("", False),
    ],
)
def test_valid_requirements_are_recognized(text, good):
    from corral.servers.bundles.uv_dependencies import is_requirement

    assert is_requirement(text) is good


def test_a_bundle_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    """Append to the file after corral has opened it, as another process could."""
    path = tmp_path / "a.mcpb"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(bundle, "CHUNK_BYTES", 60)
    monkeypatch.setattr(bundle, "Limits", lambda: Limits(max_packed_bytes=110))
    assert b"".join(bundle._read_bundle(str(path))) == b"x" * 100
    reading = bundle._read_bundle(str(path))
    next(reading)
    with path.open("ab") as file:
        file.write(b"x" * 20)
    with pytest.raises(SandboxError, match="larger than a bundle may be"):
        list(reading)


def test_a_bundle_that_is_replaced_by_a_large_file_is_not_copied(tmp_path, monkeypatch):
    """Replace the file with a larger file after corral has computed its digest."""
    path, staging = tmp_path / "a.mcpb", tmp_path / "staging"
    path.write_bytes(b"content")
    digest = bundle.bundle_digest(str(path))
    staging.mkdir()
    path.write_bytes(b"x" * 200)
    monkeypatch.setattr(bundle, "CHUNK_BYTES", 60)
    monkeypatch.setattr(bundle, "Limits", lambda: Limits(max_packed_bytes=110))
    with pytest.raises(SandboxError, match="larger than a bundle may be"):
        bundle._unpack(str(path), digest, str(staging), origin="")
    assert (staging / "archive").stat().st_size <= 110


@POSIX
def test_a_bundle_that_is_a_device_is_not_read(tmp_path):
    path = tmp_path / "a.mcpb"
    path.symlink_to("/dev/zero")
    with pytest.raises(SandboxError, match="is not a file"):
        bundle.bundle_digest(str(path))
