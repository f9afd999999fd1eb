"""Test the curated profiles. Each profile can be loaded, gives a reason for every grant, and grants
none of the user's own paths.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import corral
from corral.cli import main
from corral.errors import ManifestError, PolicyError, SandboxError
from corral.mcp import command_line, sandboxed, select_variables
from corral.policy import profiles
from corral.policy.manifest import parse_toml
from corral.policy.requests import describe_requests
from corral.policy.secret_files import MAKES_GIT_RUN
from corral.policy.variables import is_secret_name
from corral.servers.reference import parse_reference
from servers.profile_starts import NOT_STARTED, STARTED
from servers.published import SERVERS

NAMES = profiles.names()
GRANTS = {
    "allow": "network.allow",
    "state": "filesystem.state",
    "subprocess": "subprocess.allow",
    "pass_names": "environment.pass",
    "set_values": "environment.set",
    "secret_names": "environment.secrets",
}


def test_each_profiles_server_is_started_or_a_reason_is_listed():
    """Check that each profile's server is started by a test with the `servers` rig, or is listed in
    NOT_STARTED with a reason.
    """
    called = {one.profile for one in SERVERS}
    assert set(NAMES) == {*called, *STARTED, *NOT_STARTED}
    assert not set(NOT_STARTED) & {*called, *STARTED}
    assert all(len(reason.split()) > 3 for reason in NOT_STARTED.values())


def test_corral_has_more_than_thirty_profiles():
    """Count the profiles. Without profiles, the other tests would pass without testing anything."""
    assert len(NAMES) > 30
    assert {"filesystem", "github", "time", "git"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_grant_has_a_reason(name):
    profile = profiles.load(name)
    manifest = profile.manifest
    granted = {key for field, key in GRANTS.items() if getattr(manifest, field)}
    granted |= {f"limits.{limit}" for limit in manifest.limits}
    granted |= {
        f"profile.{key}" for key in ("arguments", "beside", "below") if getattr(profile, key)
    }
    assert granted == dict(profile.reasons).keys()
    assert all(reason.strip() for _, reason in profile.reasons)


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_grants_a_path_or_degrades(name):
    manifest = profiles.load(name).manifest
    fields = ("read", "write", "unix_sockets", "listen", "degrade", "best_effort", "command")
    assert {name: getattr(manifest, name) for name in fields} == dict.fromkeys(fields)


@pytest.mark.parametrize("name", NAMES)
def test_profiles_allow_only_encrypted_connections_to_named_hosts(name):
    for destination in profiles.load(name).manifest.allow or ():
        assert destination.endswith(":443")
        assert not destination[0].isdigit()


@pytest.mark.parametrize("name", NAMES)
def test_profiles_name_packages_that_can_be_run(name):
    packages = profiles.load(name).packages
    assert packages
    assert all(parse_reference(package) is not None for package in packages)


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_profile_is_a_complete_policy(name, capsys):
    assert main(["profiles", "--json", name]) == 0
    shown = json.loads(capsys.readouterr().out)[0]["policy"]
    copy = parse_toml(shown, f"profile {name}")
    original = profiles.load(name).manifest
    assert copy.limits == original.limits
    for field in GRANTS:
        assert getattr(copy, field) == getattr(original, field)


def test_only_secrets_that_are_set_are_passed():
    profile = profiles.load("github")
    secret = "GITHUB_PERSONAL_ACCESS_TOKEN"
    assert profiles.source(profile, [], {secret: "x"}).manifest.secret_names == (secret,)
    assert profiles.source(profile, [], {}).manifest.secret_names == ()


def test_paths_in_arguments_are_granted_if_the_profile_says_so(tmp_path, monkeypatch):
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    here, option = str(tmp_path / "notes"), f"--repository={tmp_path}"
    arguments = [here, option, "./notes", "notes", "--verbose", "/absent/path", "-x"]
    wanted = (here, str(tmp_path), "./notes")
    assert profiles.source(profiles.load("filesystem"), arguments, {}).manifest.write == wanted
    assert profiles.source(profiles.load("filesystem-read"), arguments, {}).manifest.read == wanted
    assert profiles.source(profiles.load("time"), arguments, {}).manifest.write is None


def test_the_git_profile_grants_the_git_directory(tmp_path):
    for name in ("one/.git", "two"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "two/.git").symlink_to("../one/.git")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    profile = profiles.load("git")
    manifest = profiles.source(profile, ["--repository", one, two], {}).manifest
    assert manifest.write == (one, two, f"{one}/.git")
    assert MAKES_GIT_RUN in dict(profile.reasons)["profile.below"]
    assert f"read and write {one}/.git: {MAKES_GIT_RUN}" in describe_requests(manifest)


def test_a_package_finds_its_profile():
    assert profiles.fitting("pypi:mcp-server-time").name == "time"
    assert profiles.fitting("npm:@modelcontextprotocol/server-filesystem").name == "filesystem"
    assert profiles.fitting("npm:left-pad") is None


def test_an_error_for_a_wrong_name_suggests_the_right_one():
    with pytest.raises(PolicyError) as caught:
        profiles.load("gihub")
    assert "github" in caught.value.hint
    for name in ("../github", "github.toml", ""):
        with pytest.raises(PolicyError):
            profiles.load(name)


def test_parameters_for_an_sdk_name_every_variable_once(tmp_path):
    policy = {"environment": {"pass": ["LANG"], "secrets": ["A_TOKEN"]}}
    env = {"LANG": "C", "A_TOKEN": "1", "B_TOKEN": "2", "MODE": "x"}
    line = command_line("node", ["server.js", "--flag"], env, policy, "time")
    flags = line[line.index("run") + 1 : line.index("--")]
    assert flags[:2] == ["--profile", "time"]
    assert json.loads(flags[flags.index("--policy") + 1]) == {"version": 1, **policy}
    assert flags[4:] == ["--secret", "B_TOKEN", "--env", "MODE"]
    assert line[line.index("--") + 1 :] == ["node", "server.js", "--flag"]
    file = tmp_path / "policy.toml"
    file.write_text('version = 1\n[environment]\npass = ["MODE"]\n')
    line = command_line("node", [], {"MODE": "x"}, file)
    assert line[line.index("run") + 1 : line.index("--")] == ["--policy", str(file)]


def test_mistakes_in_a_policy_are_raised_before_anything_starts():
    with pytest.raises(PolicyError):
        command_line("node", [], {}, None, "no-such-profile")
    with pytest.raises(ManifestError, match="unknown"):
        command_line("node", [], {}, {"limits": {"memroy": "1G"}})


def inner(server: dict) -> list[str]:
    """Return the arguments after `corral run` in a server entry that `sandboxed` made."""
    assert server["command"] == sys.executable
    return server["args"][server["args"].index("run") + 1 :]


def test_sandboxed_keeps_the_other_keys_of_a_servers_dict():
    given = {"command": "npx", "args": ["-y", "x"], "env": {"A_TOKEN": "1"}, "cwd": "/w"}
    made = sandboxed(given, {"limits": {"pids": 8}})
    assert inner(made)[2:] == ["--secret", "A_TOKEN", "--", "npx", "-y", "x"]
    assert {**made, "command": "npx", "args": ["-y", "x"]} == given
    assert inner(sandboxed({"command": "node"})) == ["--", "node"]


@pytest.mark.parametrize("key", ["mcpServers", ""])
def test_every_server_of_a_dict_runs_in_a_sandbox(key):
    remote = {"url": "https://example.com/mcp"}
    servers = {"a": {"command": "node", "args": ["a.js"]}, "b": {"command": "b"}, "c": remote}
    made = sandboxed({key: servers, "more": 1} if key else servers)
    found = made[key] if key else made
    assert inner(found["a"]) == ["--", "node", "a.js"]
    assert inner(found["b"]) == ["--", "b"]
    assert found["c"] == remote
    assert not key or made["more"] == 1


@pytest.mark.parametrize(
    "given",
    [
        {"url": "https://example.com/mcp"},
        {"mcpServers": ["node"]},
        {"a": {"args": []}},
        {"a": "node"},
        {"command": ["node", "a.js"]},
        {"command": "node", "args": "a.js"},
        {"command": "node", "env": ["A=1"]},
        {"mcpServers": {"a": {"command": "node"}, "b": {"cmd": "node"}}},
    ],
)
def test_a_dict_with_an_unknown_server_is_an_error(given):
    with pytest.raises(SandboxError) as refused:
        sandboxed(given)
    assert refused.value.hint


@pytest.mark.parametrize("given", ["npx foo", ["npx", "foo"], 5, None])
def test_a_server_of_a_wrong_type_is_the_callers_error(given):
    with pytest.raises(TypeError, match="server must be a dict or an SDK's parameters, not"):
        sandboxed(given)


def test_a_copy_of_the_whole_environment_is_not_passed_on():
    host = {"PATH": "/bin", "A_TOKEN": "1", "MODE": "x"}
    assert select_variables({**host, "MODE": "y", "NEW": "1"}, host) == {"MODE": "y", "NEW": "1"}
    chosen = {"A_TOKEN": "1", "NEW": "1"}
    assert select_variables(chosen, host) == chosen


GIVEN = """
import sys
sys.path.insert(0, sys.argv[1])
from corral.mcp import sandboxed

class Server:
    command, args, env = "node", ["server.js"], None
    def model_copy(self, update):
        return update

made = sandboxed(Server(), {"limits": {"pids": 8}})
assert (made["command"], made["args"][-2:]) == (sys.executable, ["node", "server.js"]), made
print(*{name.partition(".")[0] for name in sys.modules} & {"mcp", "fastmcp", "pydantic", "anyio"})
"""


def test_no_sdk_is_imported_and_corral_runs_with_the_same_python():
    source = str(pathlib.Path(corral.__file__).parents[1])
    argv = [sys.executable, "-c", GIVEN, source]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    "name",
    ["GITHUB_TOKEN", "API_KEY", "apikey", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "SLACK_COOKIE"],
)
def test_names_of_secrets_are_recognized(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["LANG", "LOG_LEVEL", "KEYBOARD", "MONKEY", "PATH", "NODE_ENV", "TZ"]
)
def test_other_names_are_not_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux backend")
def test_a_policy_can_be_text_on_the_command_line(capsys):
    text = json.dumps({"version": 1, "limits": {"pids": 77}})
    assert (
        main(["explain", "--json", "--policy", text, "--", os.path.realpath(sys.executable)]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert {held["control"]: held["asked"] for held in shown["controls"]}["pids"] == "77"
