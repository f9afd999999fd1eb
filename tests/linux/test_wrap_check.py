"""Test `corral wrap --check` on a project's files, and the pre-commit hook and GitHub Action that
run it.
"""

import json
import os
import re
import subprocess

import pytest
import yaml

from corral.cli import main
from corral.policy.secret_files import CLIENTS
from users import SOURCE

ROOT = SOURCE.parent
PLAIN = {"command": "node", "args": ["server.js"]}
WRAPPED = {"command": "/usr/bin/corral", "args": ["run", "--", "node", "server.js"]}
REMOTE = {"url": "https://example.com/mcp"}


@pytest.fixture
def project(user, scratch):
    def write(name: str, **servers):
        path = scratch / name
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        path.write_text(json.dumps({"mcpServers": servers}))
        path.chmod(0o644)
        return path

    return write


def check(user, scratch, *words):
    return user.corral("wrap", "--check", *words, cwd=scratch)


def test_the_check_fails_for_a_server_that_is_not_wrapped(user, scratch, project):
    path = project(".cursor/mcp.json", bare=PLAIN, held=WRAPPED)
    before = path.read_bytes()
    done = check(user, scratch)
    assert done.returncode == 1, done.stderr
    assert b"bare: does not start through corral" in done.stdout
    assert b"held" not in done.stdout
    assert b"hint: corral wrap " in done.stdout
    assert path.read_bytes() == before


def test_the_check_accepts_wrapped_and_remote_servers(user, scratch, project):
    project(".cursor/mcp.json", held=WRAPPED, far=REMOTE)
    done = check(user, scratch)
    assert (done.returncode, done.stdout) == (0, b"files checked: 1, findings: 0\n"), done.stderr


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "sh", "args": ["-c", "node server.js"]},
        {"command": "npx", "args": ["-c", "node server.js"]},
        {"command": "uv", "args": ["run", "server.py"]},
        {"command": "./docker", "args": ["run", "image"]},
        {**PLAIN, "sandboxEnabled": True},
        {**WRAPPED, "Command": "/bin/sh", "Args": ["-c", "node server.js"]},
        {**WRAPPED, "envFile": ".env"},
        {**WRAPPED, "envFile": "${workspaceFolder}/.env"},
    ],
)
def test_the_check_fails_for_a_server_that_wrap_refuses(user, scratch, project, entry):
    """Use entries that make `wrap` refuse a project's server. Sanity check: a container and a
    wrapped server in the same file pass.
    """
    box = {"command": "docker", "args": ["run", "image"]}
    held = {**WRAPPED, "envFile": "${userHome}/.env"}
    project(".mcp.json", other=entry, box=box, held=held)
    done = check(user, scratch)
    assert done.returncode == 1, done.stderr
    assert b"other: " in done.stdout
    assert done.stdout.endswith(b"files checked: 1, findings: 1\n")


@pytest.mark.parametrize(
    "keys", [("mcp", "command"), ("MCP", "command"), ("mcp", "COMMAND"), ("Mcp", "Command")]
)
def test_the_check_finds_servers_whose_keys_have_another_case(user, scratch, keys):
    path = scratch / "crush.json"
    path.write_text(json.dumps({keys[0]: {"own": {keys[1]: "x"}, "settings": {"a": 1}}}))
    done = check(user, scratch)
    assert done.returncode == 1
    assert done.stdout.endswith(b"files checked: 1, findings: 1\n")


def test_the_check_fails_for_servers_of_the_same_name(user, scratch):
    """Use two servers of the same name. corral cannot tell which of them a client starts."""
    path = scratch / "list.json"
    for second, code in (("b", 0), ("a", 1)):
        servers = [{**WRAPPED, "name": "a"}, {**WRAPPED, "name": second}]
        path.write_text(json.dumps({"mcpServers": servers}))
        done = check(user, scratch, str(path))
        assert (done.returncode, done.stdout.count(b"same name")) == (code, 2 * code)


def test_the_check_reads_a_file_in_each_format_in_which_clients_read_it(
    tmp_path, monkeypatch, capsys
):
    """Write a file that defines a server only if it is read as YAML, and then make a symlink with
    the name of a YAML file to it. The check must fail only after that. It runs in this process,
    because the user's Python may have no PyYAML.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".mcp.json"
    path.write_text('{ /* : 1, "mcpServers": [ {name: other, command: x} ], y: \n# */ "z": 1\n}')
    assert main(["wrap", "--check"]) == 0
    assert "files checked: 1, findings: 0\n" in capsys.readouterr().out
    (tmp_path / ".continue").mkdir()
    (tmp_path / ".continue/config.yaml").symlink_to(path)
    assert main(["wrap", "--check"]) == 1
    said = capsys.readouterr().out
    assert ".continue/config.yaml: other: does not start through corral" in said


@pytest.mark.parametrize("place", ["", "tools"])
def test_the_check_refuses_a_project_with_a_program_that_windows_would_start(
    user, scratch, project, place
):
    """Put a program named corral into the directory in which the server starts. The check must fail
    for `Corral.exe`, because Windows searches this directory first if a command has no path.
    """
    project(".mcp.json", held={**WRAPPED, "command": "corral", "cwd": place})
    (scratch / place).mkdir(exist_ok=True, mode=0o755)
    for name, code in (("corral", 0), ("Corral.exe", 1)):
        (scratch / place / name).write_text("")
        assert check(user, scratch).returncode == code


@pytest.mark.parametrize(
    "program",
    ["./bin/corral", "bin/corral", "{project}/bin/corral", "${{CLAUDE_PROJECT_DIR}}/bin/corral",
     "${{SOMEWHERE}}/corral", "/proc/self/cwd/bin/corral", ".\\bin\\corral.exe",
     "//proc/self/cwd/bin/corral", "//host/share/corral.exe", "\\\\host\\share\\corral.exe"],
)  # fmt: skip
def test_the_check_refuses_a_program_named_corral_in_the_project(user, scratch, project, program):
    own = {**WRAPPED, "command": program.format(project=scratch)}
    project(".mcp.json", own=own, held=WRAPPED)
    done = check(user, scratch)
    assert done.returncode == 1, done.stderr
    assert b"own: it is started by " in done.stdout
    assert b"which the project itself may contain" in done.stdout
    # The only finding is `own`; the wrapped server `held` passes.
    assert done.stdout.endswith(b"files checked: 1, findings: 1\n")


@pytest.mark.parametrize(
    "program", ["corral", "/home/another/.local/bin/corral", "${userHome}/.local/bin/corral", "C:\\Tools\\corral.exe"],
)  # fmt: skip
def test_the_check_accepts_a_corral_outside_of_the_project(user, scratch, project, program):
    project(".mcp.json", held={**WRAPPED, "command": program})
    assert check(user, scratch).returncode == 0


def test_the_check_accepts_a_corral_in_a_home_that_has_a_projects_file(user, scratch, project):
    held = {**WRAPPED, "command": str(scratch / ".local/bin/corral")}
    path = project(".mcp.json", held=held)
    for home, code in ((scratch, 0), (user.home, 1)):
        env = user.environment(HOME=str(home))
        assert user.corral("wrap", "--check", str(path), env=env).returncode == code


def test_the_check_reads_the_files_that_are_named(user, scratch, project):
    good, bad = project("good.json", held=WRAPPED), project("bad.json", bare=PLAIN)
    assert check(user, scratch, str(good)).returncode == 0
    assert check(user, scratch, str(good), str(bad)).returncode == 1
    broken = project("broken.json")
    broken.write_text("{")
    assert check(user, scratch, str(broken)).returncode == 1


def test_the_hook_runs_the_check_on_clients_files():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"] == "corral wrap --check"
    files = re.compile(hook["files"])
    known = {path for client in CLIENTS for path in client.project}
    assert len(known) > 20
    for path in known:
        assert files.search(path), path
        assert files.search(f"packages/one/{path}"), path
        assert not files.search(f"{path}.bak"), path
    for other in ("package.json", "settings.json", ".vscode/settings.json", "xmcp.json"):
        assert not files.search(other), other


def test_the_action_runs_the_check(tmp_path):
    """Run the last step of the action as a runner would."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    programs = tmp_path / "corral" / "bin"
    programs.mkdir(parents=True)
    told = programs / "corral"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    told.chmod(0o755)
    for files, words in (("", []), ("a b.json\nc.json\n", ["a b.json", "c.json"])):
        env = {**os.environ, "FILES": files, "RUNNER_TEMP": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-euc", steps[-1]["run"]], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ["wrap", "--check", "--", *words]


@pytest.mark.rig("packaging")
def test_the_action_installs_corral_and_fails_for_a_bare_server(tmp_path):
    """Run every step of the action with bash, as a runner does. Sanity check: the check passes
    when the server is wrapped.
    """
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert len(steps) == 2
    env = {**os.environ, "RUNNER_TEMP": str(tmp_path), "SOURCE": str(ROOT), "FILES": ""}
    place = tmp_path / "repository"
    place.mkdir()

    def run(step):
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(
            words, env=env, cwd=place, capture_output=True, text=True, check=False
        )

    installed = run(steps[0])
    assert installed.returncode == 0, installed.stderr
    for server, code in ((PLAIN, 1), (WRAPPED, 0)):
        (place / ".mcp.json").write_text(json.dumps({"mcpServers": {"one": server}}))
        done = run(steps[1])
        assert done.returncode == code, done.stdout + done.stderr
    (place / ".continue").mkdir()
    (place / ".continue" / "config.yaml").write_text(
        "mcpServers:\n  - name: one\n    command: node\n    args: [server.js]\n"
    )
    assert run(steps[1]).returncode == 1  # YAML files are checked as well


def test_the_workflows_have_minimal_permissions():
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert "password" not in json.dumps(publish)
