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
    path.write_text(json.dumps({keys[0]: {"own": {keys[1]: "x"}, "settings": {"enabled": 1}}}))
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
    """Write a JSON file that defines a server only if it is read as YAML. The check must pass. Then
    make a symlink to this file, with the name of a YAML file. The check must now fail. It runs in
    this process, because the user's Python may have no PyYAML.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ".mcp.json"
    path.write_text('{ /* : 1, "mcpServers": [ {name: other, command: x} ], y: \n# */ "name": 1\n}')
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


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Return a function that writes a project's file, runs the check in this process, and returns
    what the check reports.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def run(name, content):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        code = main(["wrap", "--check"])
        path.unlink()
        said = capsys.readouterr().out
        assert code == int("findings: 0" not in said)
        assert "files checked: 1," in said
        return said.splitlines()[:-1]

    return run


RUN = ["run", "-i", "--rm", "-e", "TOKEN", "image"]
BOX = {"command": "docker", "args": RUN, "env": {"TOKEN": "x", "PATH": "/usr/bin:/bin"}}
ACCEPTED_ENTRIES = {
    ".mcp.json": [
        BOX,
        {"command": "podman", "args": ["run", "-it", "-v", "a:/b", "--net=none", "-p8:8", "x", "-y"]},
        {"command": "docker", "args": ["exec", "-i", "box", "server", "--runtime", "x"]},
        {"command": "podman", "args": ["run", "--userns=keep-id", "-l", "a=b", "--rm", "x"]},
        {"command": "docker", "args": ["mcp", "gateway", "run"]},
        {"type": "http", "url": "https://e.example", "headers": {"A": "Bearer ${TOKEN}"}},
        {"type": "http", "url": "https://e.example", "oauth": {"clientId": "x", "callbackPort": 1}},
        {**WRAPPED, "type": "stdio", "env": {"A": "1"}, "timeout": 5, "alwaysLoad": True},
        {**REMOTE, "oauth": {"scopes": "a b", "tokenParamName": "x", "registrationUrl": "x"}},
        {**WRAPPED, "tools": ["*"], "description": "runs `x`", "_comment": "runs `x`"},
        {**WRAPPED, "disabled": False, "autoApprove": ["read"], "watchPaths": ["dist"]},
        {**WRAPPED, "trust": False, "includeTools": ["a"], "cwd": ".", "env": {"NODE_ENV": "x"}},
    ],
    ".cursor/mcp.json": [{**REMOTE, "auth": {"CLIENT_ID": "x", "scopes": ["a"]}}],
    ".continue/mcpServers/x.json": [{**REMOTE, "type": "sse", "apiKey": "x"}],
    ".qwen/extensions/a/qwen-extension.json": [WRAPPED],
    ".agents/.mcp.json": [WRAPPED],
    ".kiro/agents/a.json": [WRAPPED],
    ".warp/.mcp.json": [{**WRAPPED, "working_directory": ".", "start_on_launch": True}],
    ".vscode/mcp.json": [
        {**PLAIN, "sandboxEnabled": True, "sandbox": {"network": {"allowedDomains": ["a.example"]}}},
        {**PLAIN, "sandboxEnabled": True, "sandbox": {"enabled": True}},
        {**WRAPPED, "dev": {"watch": "src/**"}},
        {"type": "http", "url": "https://e.example", "version": "1.0", "gallery": True},
    ],
}  # fmt: skip


def table_of(name):
    return "servers" if name.startswith(".vscode") else "mcpServers"


@pytest.mark.parametrize(
    ("name", "entry"), [(name, one) for name, found in ACCEPTED_ENTRIES.items() for one in found]
)
def test_the_check_accepts_the_entries_that_clients_write(checked, name, entry):
    assert checked(name, {table_of(name): {"x": entry}}) == []


REFUSED_ENTRIES = [
    # Variables and directories from which the program that starts the container would come.
    ({**BOX, "env": {"PATH": "bin:/usr/bin:/bin"}}, "PATH in the server's env contains bin"),
    ({**BOX, "env": {"PATH": ":/usr/bin"}}, "PATH in the server's env contains ."),
    ({**BOX, "env": {"PATH": "${X}/bin"}}, "could replace docker"),
    ({**BOX, "env": {"PATH": "{env:PWD}/bin"}}, "could replace docker"),
    ({**BOX, "env": {"LD_PRELOAD": "./evil.so"}}, "would change docker itself"),
    ({**BOX, "env": {"DOCKER_CONFIG": "./dc"}}, "would change docker itself"),
    ({**BOX, "env": {"CONTAINERS_CONF": "./c"}}, "would change docker itself"),
    ({**BOX, "env": {"STORAGE_OPTS": "mount_program=./evil"}}, "would change docker itself"),
    *(
        ({**BOX, "env": {name: "./evil"}}, f"{name} in the server's env would change docker itself")
        for name in (
            "REGISTRY_AUTH_FILE", "REGISTRIES_CONFIG_PATH", "NETCONFPATH", "CONTAINERD_ADDRESS",
            "ROOTLESSKIT_STATE_DIR", "BUILDAH_ISOLATION", "HTTPS_PROXY", "PYTHONPATH",
        )
    ),
    ({**BOX, "envFile": ".env"}, "could change docker itself"),
    ({**BOX, "command": "/proc/self/cwd/docker"}, ""),
    ({**BOX, "command": "/{env:PWD}/docker"}, "which the project itself may contain"),
    # Commands of engines that start something on this machine.
    ({**BOX, "args": ["--config", "./dc", "foo"]}, "starts only a container"),
    ({**BOX, "args": ["foo"]}, "starts only a container"),
    ({**BOX, "args": []}, "starts only a container"),
    ({**BOX, "args": ["compose", "run", "x"]}, "starts only a container"),
    ({**BOX, "args": ["mcp", "gateway", "run", "--interceptor=before:exec:./evil"]}, "container"),
    ({"command": "podman", "args": ["--runtime", "./evil", "run", "x"]}, "starts only a container"),
    ({"command": "podman", "args": ["run", "--runtime", "./evil", "x"]}, "starts only a container"),
    ({"command": "podman", "args": ["run", "--hooks-dir=h", "x"]}, "starts only a container"),
    ({"command": "podman", "args": ["run", "--pull", "--runtime=./evil", "x"]}, "only a container"),
    ({"command": "podman", "args": ["run", "${NO:---runtime=./evil}", "x"]}, "only a container"),
    ({"command": "podman", "args": ["run", "{file:option}", "x"]}, "starts only a container"),
    ({"command": "podman", "args": ["run", "-c", "x", "x"]}, "starts only a container"),
    ({"command": "podman", "args": ["exec", "-l", "--runtime=./evil", "x"]}, "only a container"),
    ({"command": "nerdctl", "args": ["run", "--log-driver", "binary:///evil", "x"]}, "container"),
    # Keys because of which a client starts something.
    ({**REMOTE, "headersHelper": "sh -c id"}, "does not know its key 'headersHelper'"),
    ({**REMOTE, "headers": {"A": "$(./evil)"}}, "its key 'headers' contains $("),
    ({**REMOTE, "headers": {"A": {"command": "./evil"}}}, "this form of its key 'headers'"),
    ({**REMOTE, "oauth": {"helper": "./evil"}}, "this form of its key 'oauth'"),
    ({**REMOTE, "requestOptions": {"proxy": "x"}}, "this form of its key 'requestOptions'"),
    ({**WRAPPED, "env": {"A": "$(./evil)"}}, "its key 'env' contains $("),
    ({**WRAPPED, "env": {"A": "`./evil`"}}, "its key 'env' contains `"),
    ({**WRAPPED, "env": {"A": "${command:x}"}}, "its key 'env' contains ${command:"),
    ({**WRAPPED, "env": ["LD_PRELOAD=./evil.so"]}, "this form of its key 'env'"),
    ({**WRAPPED, "env": {"L{env:ZZ}D_PRELOAD": "./evil.so"}}, "this form of its key 'env'"),
    ({**WRAPPED, "dev": {"debug": {"debugpyPath": "./evil"}}}, "this form of its key 'dev'"),
    ({**WRAPPED, "extends": "./evil.json"}, "does not know its key 'extends'"),
    ({**WRAPPED, "comm{env:ZZ}and": ["./evil"]}, "does not know its key 'comm{env:ZZ}and'"),
    ({**WRAPPED, "cmd": "./evil"}, "several keys of the same meaning ('command', 'cmd')"),
    ({**WRAPPED, "env": {}, "environment": {"LD_PRELOAD": "./evil.so"}}, "of the same meaning"),
    ({"command": {"path": "/usr/bin/corral", "args": WRAPPED["args"]}, "args": []}, "same meaning"),
    ({**WRAPPED, "sandbox": {"enabled": False}}, "this form of its key 'sandbox'"),
    ({"settings": {"path": "./evil"}}, "this form of its key 'settings'"),
    # Variables that make corral, or the shell script of this name on PATH, run other code.
    *(
        ({**WRAPPED, "env": {name: "./evil.sh"}}, f"{name} in the server's env would change corral")
        for name in (
            "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4", "BASH_FUNC_exec%%", "ZDOTDIR"
        )
    ),
    (
        {**WRAPPED, "command": "corral", "env": {"PYENV_HOOK_PATH": "hooks"}},
        "PYENV_HOOK_PATH in the server's env would change corral",
    ),
    ({**WRAPPED, "command": "/{env:PWD}/bin/corral"}, "which the project itself may contain"),
    # A server that is left alone for a reason that only one client knows.
    ({"type": "inline_python", "code": "import os"}, "servers of type 'inline_python'"),
    ({"uses": "file://./evil.yaml"}, "does not know its key 'uses'"),
    ("./evil", "is not a table"),
    (["./evil"], "is not a table"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "why"), REFUSED_ENTRIES)
def test_the_check_reports_an_entry_that_could_start_something_else(checked, entry, why):
    """Use entries that make some client start a program outside of corral's sandbox and of the
    container. ACCEPTED_ENTRIES contains entries that the check must accept.
    """
    said = checked(".mcp.json", {"mcpServers": {"x": entry, "box": BOX, "held": WRAPPED}})
    found = [line for line in said if line.startswith("./.mcp.json: ")]
    assert any(why in line for line in found)
    assert not any(line.startswith(("./.mcp.json: box:", "./.mcp.json: held:")) for line in found)
    assert len(said) > len(found)  # there is a hint


def test_only_vs_codes_file_makes_a_client_use_its_own_sandbox(checked):
    """Use the key `sandboxEnabled`, with which VS Code starts a server in its own sandbox. Warp
    also reads the key `servers`, but does not know `sandboxEnabled`.
    """
    boxed = {**PLAIN, "sandboxEnabled": True}
    assert checked(".vscode/mcp.json", {"servers": {"x": boxed}}) == []
    assert "only VS Code" in checked(".warp/.mcp.json", {"servers": {"x": boxed}})[0]
    for env in ({"NODE_OPTIONS": "--import ./evil.mjs"}, {"PATH": "bin"}):
        said = checked(".vscode/mcp.json", {"servers": {"x": {**boxed, "env": env}}})
        assert "the client's sandbox" in said[0]


SERVER = {"type": "local", "command": ["./evil"]}
HELD = {"type": "local", "command": ["/usr/bin/corral", "run", "--", "x"]}
PICK = {"type": "pickString", "id": "a", "options": ["a", {"label": "b", "value": "c"}]}
ACCEPTED_FILES = [
    ("opencode.json", {"mcp": {"x": {**HELD, "environment": {"A": "{env:A} {file:./a}"}}}}),
    ("opencode.json", {"mcp": {"x": {"enabled": False}}, "permission": {"my-mcp*": "ask"}}),
    ("opencode.json", '// text\n{"mcp": {}, "experimental": {"mcp_timeout": 5}}'),
    (".gemini/settings.json", {"mcp": {"allowed": ["a"]}, "allowMCPServers": ["a"], "ui": {"a": "b"}}),
    (".vscode/mcp.json", {"servers": {}, "inputs": [{"type": "promptString", "id": "a"}]}),
    (".vscode/mcp.json", {"_comment": "x", "//": "x", "inputs": [PICK]}),
    (".zed/settings.json", {"linux": {"context_servers": {"x": {"settings": {}}}, "vim_mode": 1}}),
    (".continue/mcpServers/x.json", {"mcpServers": {"x": WRAPPED}}),
    (".continue/rules/x.yaml", "name: a\nversion: 0.0.1\nschema: v1\nrules: [text]\n"),
    (".continue/models/x.yaml", "mcpServers: [{name: a, command: corral, args: [run, --, x]}]"),
    (".continuerc.json", {"allowAnonymousTelemetry": False}),
    (".qwen/extensions/a/qwen-extension.json", {"name": "a", "version": "1", "contextFileName": "a"}),
    (".kiro/agents/a.json", {"name": "a", "prompt": "x", "tools": ["read"]}),
    (".continue/mcpServers/x.yaml", "name: a\nversion: 0.0.1\nschema: v1\nmcpServers: []\n"),
    (".codex/config.toml", 'mcp_oauth_credentials_store = "keyring"\nmodel = "x"\n'),
]  # fmt: skip
REPORTED_FILES = [
    ("opencode.json", {"m{env:ZZ}cp": {"evil": SERVER}}, "a part of its key 'm{env:ZZ}cp'"),
    ("opencode.json", {"m{file:empty}cp": {"evil": SERVER}}, "a part of its key"),
    ("opencode.json", {"a": "{env:", "mcp": {"x": HELD}}, "opencode replaces this text"),
    ("opencode.json", '/* {file:x} "mcp": {} /* */ {"mcp": {}}', "opencode replaces this text"),
    (".gemini/settings.json", {"mcp": {"serverCommand": "sh -c id"}}, "mcp.serverCommand"),
    (".gemini/settings.json", {"mcpServerCommand": "id", "mcpServers": {}}, "mcpServerCommand"),
    (".gemini/settings.json", {"mcpservers": {"x": {"url": "a"}}}, "mcpservers"),
    (".warp/.mcp.json", {"x": {**REMOTE, "headersHelper": "id"}}, "x: corral does not know this key"),
    (".vscode/mcp.json", {"inputs": [{"type": "command", "command": "x"}]}, "inputs: corral does not"),
    (".continue/config.yaml", "mcpServers: [{uses: a/b}]", "in the list mcpServers has no name"),
    (".continue/config.yaml", "mcpServers: [{name: 5, command: x}]", "has no name"),
    (".continue/config.yaml", "mcpServers: [./evil.yaml]", "in the list mcpServers has no name"),
    (".continue/mcpServers/x.json", {"mcpServers": {"x": PLAIN}}, "does not start through corral"),
    (".continue/mcpServers/a/.x.json", {"mcpServers": {"x": PLAIN}}, "does not start through corral"),
    (".continue/mcpServers/x.json", {"command": "./evil"}, "command: corral does not know this key"),
    *(
        (name, "mcpServers: [{name: a, command: x}]", "a: does not start through corral")
        for name in (
            ".continue/agents/x.yaml", ".continue/models/x.yaml", ".continue/rules/a/x.yml",
            ".continue/x.yaml",
        )
    ),
    *(
        (name, {"mcpServers": {"x": PLAIN}}, "x: does not start through corral")
        for name in (
            ".continue/config.json", ".continuerc.json", ".qwen/extensions/a/qwen-extension.json",
            ".gemini/extensions/a/gemini-extension.json", ".agents/.mcp.json",
            ".kiro/agents/a.json",
        )
    ),
    (
        ".continuerc.json",
        {"experimental": {"modelContextProtocolServers": [{"transport": {"command": "x"}}]}},
        "transport: corral does not support servers in this part of a file",
    ),
    *((name, "mcp add x --type stdio --command x\n", "the file: ") for name in ("crushrc", ".crushrc")),
    (".crush/crush.json", {"mcp": {"x": PLAIN}}, "x: does not start through corral"),
    (".zed/settings.json", {"linux": {"context_servers": {"x": PLAIN}}}, "x: corral does not support"),
    (".zed/settings.json", {"linux": {"context_servers": {"x": {"command": {"path": "x"}}}}}, "x: corral"),
    ("crush.json", {"mcp": {"x": {**WRAPPED, "env": {"A": "$(./evil)"}}}}, "contains $("),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), ACCEPTED_FILES)
def test_the_check_accepts_the_other_parts_of_clients_files(checked, name, content):
    assert checked(name, content) == []


@pytest.mark.parametrize(("name", "content", "why"), REPORTED_FILES)
def test_the_check_reports_the_parts_of_a_file_that_it_does_not_know(checked, name, content, why):
    """Use files with a server that is not in a usual entry. The controls are in ACCEPTED_FILES."""
    found = [line for line in checked(name, content) if not line.startswith("hint: ")]
    assert len(found) == 1
    assert why in found[0]


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ({"mcpServers": {"x": PLAIN}}, "hint: corral wrap ./.warp/.mcp.json"),
        (
            {"mcpServers": {"x": {"command": "docker", "args": ["foo"]}}},
            "hint: x: write `docker run`, then its common options, then the image",
        ),
        ({"x": REMOTE}, "hint: x: move it into the table 'mcpServers'"),
        ({"x": {"y": 1}}, "hint: x: remove the key 'x'"),
    ],
)
def test_the_check_advises_what_makes_it_pass(checked, content, hint):
    assert hint in checked(".warp/.mcp.json", content)


def test_the_check_reports_a_link_to_a_directory_of_servers(tmp_path, monkeypatch, capsys):
    """Put a symlink to a directory where a client looks for its servers. The check must report it,
    because the client may follow it. Sanity check: a real directory is not reported.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / ".continue/mcpServers/here").mkdir(parents=True)
    assert main(["wrap", "--check"]) == 0
    (tmp_path / ".continue/mcpServers/there").symlink_to(tmp_path / "real")
    assert main(["wrap", "--check"]) == 1
    assert ".continue/mcpServers/there: the file: " in capsys.readouterr().out


LOADS_CODE = {"NODE_OPTIONS": "--import=data:text/javascript,evil()"}


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize(
    ("env", "flags"),
    [
        (LOADS_CODE, ["--env", "NODE_OPTIONS"]),
        ({}, ["--with", "pypi-evil"]),
        ({}, ["--python", "/opt/evil/bin/python3"]),
    ],
)
def test_a_project_cannot_run_its_code_in_the_home_of_a_package(
    user, scratch, project, env, flags, state
):
    """Use an entry that starts a package with code that the project chooses. With `--state` the
    package has a home directory that all projects share, so the check must fail. Sanity check:
    without `--state` the entry is accepted.
    """
    kept = ["--state"] if state else []
    args = ["run", *flags, *kept, "--", "npm:some-notes-mcp"]
    entry = {"command": "/usr/bin/corral", "args": args, "env": env}
    path = project(".mcp.json", notes=entry)
    done = check(user, scratch)
    assert (done.returncode, b"home" in done.stdout) == (int(state), state), done.stdout
    path.write_text(json.dumps({"mcpServers": {"notes": {"command": "npx", "args": ["-y", "some-notes-mcp"], "env": LOADS_CODE}}}))  # fmt: skip
    words = ["--corral", user.python, "--no-install", *([] if state else ["--no-state"]), str(path)]
    wrapped = user.corral("wrap", "--dry-run", *words, cwd=scratch)
    assert (b"refused" in wrapped.stdout) == state, wrapped.stdout


@pytest.mark.parametrize(("name", "code"), [(".mcp.json", 0), ("crushrc", 1), (".crushrc", 1)])
def test_the_check_refuses_a_script_that_is_a_link_to_json(tmp_path, monkeypatch, name, code):
    """Make a symlink to a file whose text is valid in JSON, but is also a Bash command. The check
    must fail if the symlink has the name of a script that Crush runs. Sanity check: it passes if
    the symlink has the name of a JSON file of servers.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.json").write_text('"./evil"')
    (tmp_path / name).symlink_to("data.json")
    assert main(["wrap", "--check"]) == code


def test_status_and_wrap_report_the_entries_that_the_check_reports(user, scratch, project):
    path = project(".mcp.json", x={**REMOTE, "headersHelper": "id"}, far=REMOTE)
    for words in (["status"], ["wrap", "--dry-run", "--corral", user.python]):
        done = user.corral(*words, str(path), cwd=scratch)
        assert done.returncode == 1, done.stderr
        assert b"does not know its key 'headersHelper'" in done.stdout
        assert done.stdout.count(b"does not know") == 1


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
    assert files.search(".continue/mcpServers/a/x.yml")
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
