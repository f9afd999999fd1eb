"""Test server.json: the package, its arguments, and whether the user or the publisher chose each
value.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import SandboxError
from corral.network.host_proxy import VARIABLES
from corral.programs.scope import MANAGED_BY_VARIABLE
from corral.servers.bundles.user_values import parse_config
from corral.servers.reference import Reference, parse_reference
from corral.servers.registry import lookup, server_json
from corral.supervisor.prepare import CERTIFICATES

DIGEST = "a" * 64
NAME = Reference(kind="registry", text="org.example/x@1", name="org.example/x", version="1")


def npm(**more: object) -> dict:
    return {
        "registryType": "npm",
        "identifier": "x",
        "version": "1.0.0",
        "transport": {"type": "stdio"},
        **more,
    }


def read(**more: object) -> server_json.Package:
    return server_json.choose_package({"packages": [npm(**more)]}, "x")


def test_the_first_package_that_corral_can_run_is_taken():
    image = {"registryType": "oci", "identifier": "docker.io/x", "transport": {"type": "stdio"}}
    http = npm(transport={"type": "streamable-http", "url": "http://localhost"})
    chosen = server_json.choose_package({"packages": [image, http, npm(identifier="y")]}, "x")
    assert (chosen.kind, chosen.identifier) == ("npm", "y")
    with pytest.raises(
        SandboxError, match="'oci' packages are not supported; 'streamable-http' is not"
    ):
        server_json.choose_package({"packages": [image, http]}, "x")
    with pytest.raises(SandboxError, match="reached over the network"):
        server_json.choose_package({"remotes": [{"type": "sse", "url": "https://x"}]}, "x")
    with pytest.raises(SandboxError, match="names no package"):
        server_json.choose_package({}, "x")


BAD = {
    "another registry": ({"registryBaseUrl": "https://evil.example.com"}, "another registry"),
    "no version": ({"version": ""}, "no version"),
    "no identifier": ({"identifier": 7}, "names no package"),
    "a bundle without a digest": ({"registryType": "mcpb"}, "cannot be verified"),
    "a bundle with a short digest": (
        {"registryType": "mcpb", "fileSha256": "ab"},
        "cannot be verified",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unsafe_package_entry_is_refused(case):
    more, why = BAD[case]
    with pytest.raises(SandboxError, match=why):
        read(**more)
    assert read(registryBaseUrl="https://registry.npmjs.org").identifier == "x"
    assert read(registryType="mcpb", fileSha256=DIGEST).sha256 == DIGEST


def test_package_arguments_are_built_from_values_defaults_and_variables():
    package = read(
        packageArguments=[
            {"type": "positional", "value": "fixed"},
            {"type": "named", "name": "--verbose"},
            {"type": "named", "name": "--port", "default": "80"},
            {"type": "named", "name": "--mode", "value": "{a}-{b}-{c}", "variables": {"a": {"default": "1"}, "b": {}}},
            {"type": "named", "name": "--left-out", "valueHint": "v"},
        ]
    )  # fmt: skip
    words, paths = server_json.build_arguments(package, {"b": "two"}, complete=True)
    assert words == ["fixed", "--verbose", "--port", "80", "--mode", "1-two-{c}"]
    assert paths == []


def test_a_value_must_be_one_of_the_choices():
    mode = {"type": "named", "name": "--mode", "choices": ["fast", "slow"]}
    package = read(packageArguments=[mode])
    assert server_json.build_arguments(package, {"mode": "fast"}, complete=True)[0] == [
        "--mode",
        "fast",
    ]
    with pytest.raises(SandboxError, match="'mode' must be one of 'fast', 'slow'"):
        server_json.build_arguments(package, {"mode": "other"}, complete=True)
    with pytest.raises(SandboxError, match="has no value"):
        parse_config(["mode"])


def test_paths_are_granted_only_if_the_user_named_them(tmp_path):
    file = {
        "type": "positional",
        "valueHint": "file",
        "format": "filepath",
        "default": "/etc/passwd",
    }
    package = read(packageArguments=[file])
    assert server_json.build_arguments(package, {}, complete=True) == (["/etc/passwd"], [])
    own = str(tmp_path)
    assert server_json.build_arguments(package, {"file": own}, complete=True) == ([own], [own])


@pytest.mark.parametrize(("value", "own"), [("{dir}", True), ("{dir}/../.ssh", False)])
def test_a_path_built_around_a_users_value_belongs_to_the_publisher(value, own, tmp_path):
    """Build a path from a user's value. If the publisher adds anything to the value, the path can
    lead to a directory that the user did not choose, so it does not count as the user's choice.
    """
    item = {"type": "positional", "format": "filepath", "value": value, "variables": {"dir": {}}}
    place = str(tmp_path)
    words, paths = server_json.build_arguments(
        read(packageArguments=[item]), {"dir": place}, complete=True
    )
    assert words == [value.format(dir=place)]
    assert paths == ([place] if own else [])


def test_a_missing_required_value_is_an_error_with_a_hint(monkeypatch):
    needed = {"type": "named", "name": "--key", "isRequired": True, "valueHint": "k"}
    package = read(
        packageArguments=[needed], environmentVariables=[{"name": "T_A", "isRequired": True}]
    )
    with pytest.raises(SandboxError) as caught:
        server_json.build_arguments(package, {}, complete=True)
    assert "--config key=VALUE" in caught.value.hint
    assert server_json.build_arguments(package, {"key": "v"}, complete=True) == (["--key", "v"], [])
    assert server_json.build_arguments(package, {}, complete=False) == ([], [])
    monkeypatch.delenv("T_A", raising=False)
    with pytest.raises(SandboxError, match="T_A has no value"):
        server_json.collect_variables(package, {}, (), complete=True)
    assert server_json.collect_variables(package, {}, (), complete=False).asked.pass_names == (
        "T_A",
    )


def test_each_variable_belongs_to_the_user_or_the_publisher():
    package = read(
        environmentVariables=[
            {"name": "T_FIXED", "value": "theirs"},
            {"name": "T_OWN", "default": "theirs"},
            {"name": "T_SECRET", "isSecret": True, "isRequired": True},
            {"name": "T_FREE"},
            {"name": "T_PASSED", "isRequired": True, "isSecret": True},
        ]
    )
    given_values = {"T_OWN": "mine", "T_SECRET": "s3cret"}
    found = server_json.collect_variables(package, given_values, ("T_PASSED",), complete=True)
    assert found.asked.set_values == (("T_FIXED", "theirs"),)
    assert found.granted.set_values == (("T_OWN", "mine"),)
    assert found.granted.secret_names == ("T_SECRET",)
    assert found.secrets == {"T_SECRET": "s3cret"}
    assert (found.asked.secret_names, found.asked.pass_names) == (None, None)
    assert server_json.find_given_secrets(given_values, found) == ("s3cret",)


STEERING = (
    "LD_PRELOAD", "PATH", "HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "HOSTALIASES",
    "LOCALDOMAIN", "RES_OPTIONS", "SSLKEYLOGFILE", *CERTIFICATES, *VARIABLES, *MANAGED_BY_VARIABLE,
)  # fmt: skip
"""Environment variables that would change how corral itself works."""


@pytest.mark.parametrize("name", STEERING)
def test_a_secret_cannot_change_corral_itself(name):
    package = read(environmentVariables=[{"name": name, "isSecret": True}])
    with pytest.raises(SandboxError, match="may not set"):
        server_json.collect_variables(package, {name: "x"}, (), complete=True)


@pytest.mark.parametrize("name", ["", "A=B", "A B", "1A", None, "Ä"])
def test_names_of_variables_are_checked(name):
    with pytest.raises(SandboxError, match="names a variable"):
        server_json.collect_variables(
            read(environmentVariables=[{"name": name}]), {}, (), complete=True
        )


ANSWERS = {
    "another name": {"server": {"name": "org.example/y", "version": "1"}},
    "another version": {"server": {"name": "org.example/x", "version": "2"}},
    "no version": {"server": {"name": "org.example/x"}},
    "a list": [],
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_for_another_server_is_refused(case):
    with pytest.raises(SandboxError, match=r"registry answered with|answer is not about"):
        lookup.parse_answer(json.dumps(ANSWERS[case]).encode(), NAME)
    good = {"server": {"name": "org.example/x", "version": "1"}}
    assert lookup.parse_answer(json.dumps(good).encode(), NAME) == good["server"]


def test_a_version_from_the_registry_is_safe_to_print():
    """Use hostile strings as versions. If the user gives no version, the version comes from the
    registry, and corral prints it on a terminal.
    """
    newest = parse_reference("org.example/x")
    good = {"server": {"name": "org.example/x", "version": "1.0.0-rc.1+b"}}
    assert lookup.parse_answer(json.dumps(good).encode(), newest)["version"] == "1.0.0-rc.1+b"
    for version in ("1\u001b[2J", "", "../1", 1):
        bad = {"server": {"name": "org.example/x", "version": version}}
        with pytest.raises(SandboxError, match="a different version"):
            lookup.parse_answer(json.dumps(bad).encode(), newest)


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=6,
    )
)
def test_any_answer_of_a_registry_is_read_or_refused(data):
    try:
        found = lookup.parse_answer(json.dumps(data).encode(), NAME)
        server_json.choose_package(found, "x")
    except SandboxError:
        pass


def test_a_publisher_cannot_name_a_loopback_address(monkeypatch, tmp_path):
    """Refuse a loopback address, because services on this machine's loopback trust local clients."""
    from registries import Registries

    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    made = Registries()
    try:
        package = server_json.Package(
            kind="mcpb", identifier=f"{made.url}/a.mcpb", version="1", sha256="0" * 64
        )
        reference = Reference(kind="registry", text="a.b/c", name="a.b/c")
        monkeypatch.setenv("CORRAL_REGISTRY", "https://registry.example.com")
        with pytest.raises(SandboxError, match="is not https"):
            lookup.fetch_bundle(package, reference)
        assert made.asked == []
        # Sanity check: a registry on loopback may name another loopback address.
        monkeypatch.setenv("CORRAL_REGISTRY", made.url)
        with pytest.raises(SandboxError, match="does not exist"):
            lookup.fetch_bundle(package, reference)
        assert made.asked == ["/a.mcpb"]
    finally:
        made.close()
