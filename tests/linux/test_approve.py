"""Test `corral approve` and `corral run DIRECTORY`: a server gets what its manifest asks for only
after the user's approval.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib

REFUSED = 125
# corral reads the answer from its controlling terminal, so this program gives it one.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
SERVER = """
import sys
open(sys.argv[1], "a").write("written")
print("served")
"""
TIGHTENING = "[limits]\npids = 20\n[network]\nallow = []\n"
CLOSE_STDOUT = ("/bin/sh", "-c", 'exec "$@" >&-', "sh")
WRITING = '[filesystem]\nwrite = ["data"]\n'


@pytest.fixture
def server(user, scratch) -> pathlib.Path:
    """Create a server that writes a file into its directory `data`."""
    directory = scratch / "server"
    for made in (directory, directory / "data"):
        made.mkdir()
        os.chown(made, user.uid, user.uid)
    put(user, directory / "main.py", SERVER)
    return directory


def test_without_a_terminal_the_request_comes_before_the_error(user, server, env):
    ask(user, server, WRITING)
    process = user.popen(
        user.corral_argv("approve", str(server)), env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    shown = process.communicate()[0].decode()
    assert process.returncode == REFUSED
    assert "asks to:" in shown.partition("there is no terminal to ask for your approval")[0]
    assert shown.endswith(f"read the request above, then: corral approve --yes {server}\n")


@pytest.fixture
def env(user, scratch) -> dict[str, str]:
    """Return an environment without approvals. It has the user's cached findings, because probing
    the host again is slow.
    """
    config = scratch / "config"
    return user.environment(XDG_CONFIG_HOME=str(config), XDG_CACHE_HOME=str(user.home / ".cache"))


def put(user, path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    os.chown(path, user.uid, user.uid)


def ask(user, server: pathlib.Path, policy: str, *command: str) -> None:
    words = command or ("python3", "main.py", f"{server}/data/file")
    put(
        user,
        server / "corral.toml",
        f"version = 1\n[server]\ncommand = {json.dumps(words)}\n{policy}",
    )


def on_terminal(
    user, env, answer: bytes, *arguments: str, wrapper: tuple[str, ...] = ()
) -> tuple[int, bytes, str]:
    """Run corral on a terminal, and type `answer` as soon as corral asks. A `wrapper` is a command
    that starts corral. Return (exit code, stdout, terminal output).
    """
    terminal, own = os.openpty()
    process = user.popen(
        [user.python, "-c", TAKE_TERMINAL, *wrapper, *user.corral_argv(*arguments)],
        env=env,
        stdin=own,
        stdout=subprocess.PIPE,
        stderr=own,
    )
    os.close(own)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # EIO: the other end of the terminal is closed
            break
        shown += part
        if part and answer and shown.rstrip().endswith(b"[y/N]"):
            os.write(terminal, answer)
            answer = b""
    out, _ = process.communicate(timeout=60)
    os.close(terminal)
    return process.returncode, out, shown.decode()


def test_a_request_counts_only_if_its_exact_content_is_approved(user, server, env):
    ask(user, server, WRITING)
    refused = user.corral("run", str(server), env=env)
    assert refused.returncode == REFUSED
    assert f"read and write {server}/data" in refused.stderr.decode()
    assert f"corral approve {server}" in refused.stderr.decode()
    assert not (server / "data/file").exists()

    approved = user.corral("approve", "--yes", str(server), env=env)
    assert approved.returncode == 0, approved.stderr
    assert f"read and write {server}/data" in approved.stdout.decode()
    done = user.corral("run", str(server), env=env)
    assert (done.returncode, done.stdout) == (0, b"served\n"), done.stderr
    assert (server / "data/file").read_text() == "written"

    put(user, server / "corral.toml", (server / "corral.toml").read_text() + " ")
    assert user.corral("run", str(server), env=env).returncode == REFUSED
    # With its approved content again, the manifest needs no new approval.
    ask(user, server, WRITING)
    assert user.corral("run", str(server), env=env).returncode == 0


def test_explain_and_approve_start_nothing(user, server, env):
    ask(user, server, WRITING)
    assert user.corral("approve", "--yes", str(server), env=env).returncode == 0
    explained = user.corral("explain", str(server), env=env)
    assert (explained.returncode, b"data" in explained.stdout) == (0, True), explained.stderr
    assert not (server / "data/file").exists()
    assert user.corral("run", str(server), env=env).returncode == 0
    assert (server / "data/file").exists()  # Sanity check: a run writes the file


def test_a_request_that_only_tightens_needs_no_approval(user, server, env):
    put(
        user,
        server / "main.py",
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])",
    )
    ask(user, server, "[limits]\nfds = 200\n" + TIGHTENING.replace("[limits]\n", ""))
    done = user.corral("run", str(server), env=env, cwd="/")
    assert (done.returncode, done.stdout) == (0, b"200\n"), done.stderr
    said = user.corral("approve", str(server), env=env)
    assert (said.returncode, b"needs no approval" in said.stdout) == (0, True)


def test_a_server_starts_in_its_own_directory(user, server, env):
    put(user, server / "main.py", "import os; print(os.getcwd(), os.path.exists('main.py'))")
    ask(user, server, "")
    done = user.corral("run", str(server), env=env, cwd="/")
    assert (done.returncode, done.stdout.decode()) == (0, f"{server} True\n"), done.stderr


def test_the_users_own_flags_need_no_approval(user, server, env):
    ask(user, server, WRITING)
    done = user.corral("run", "--write", str(server / "data"), str(server), env=env)
    assert (done.returncode, done.stdout) == (0, b"served\n"), done.stderr


def test_without_a_terminal_approval_needs_the_flag(user, server, env):
    ask(user, server, WRITING)
    refused = user.corral("approve", str(server), env=env, input=b"y\n")
    assert refused.returncode == REFUSED
    assert b"--yes" in refused.stderr
    assert user.corral("run", str(server), env=env).returncode == REFUSED


def test_approvals_are_listed_and_revoked(user, server, env):
    ask(user, server, WRITING)
    shown = json.loads(user.corral("approve", "--json", str(server), env=env).stdout)
    assert (shown["approved"], shown["asks"]) == (False, [f"read and write {server}/data"])
    user.corral("approve", "--yes", str(server), env=env)
    (listed,) = json.loads(user.corral("approve", "--list", "--json", env=env).stdout)
    assert (listed["digest"], listed["directory"]) == (shown["digest"], str(server))
    assert shown["digest"] in user.corral("approve", "--list", env=env).stdout.decode()
    for what in (str(server), shown["digest"]):
        assert user.corral("approve", "--yes", str(server), env=env).returncode == 0
        assert user.corral("run", str(server), env=env).returncode == 0
        assert user.corral("approve", "--revoke", what, env=env).returncode == 0
        assert user.corral("run", str(server), env=env).returncode == REFUSED
    assert user.corral("approve", "--revoke", str(server), env=env).returncode == REFUSED
    assert user.corral("approve", "--list", env=env).stdout == b"nothing is approved\n"


def test_approve_asks_on_a_terminal(user, server, env):
    ask(user, server, WRITING)
    assert on_terminal(user, env, b"n\n", "approve", str(server))[0] == 1
    assert user.corral("run", str(server), env=env).returncode == REFUSED
    assert on_terminal(user, env, b"y\n", "approve", str(server))[0] == 0
    assert user.corral("run", str(server), env=env).returncode == 0


def test_approve_asks_if_stdout_is_closed(user, server, env):
    ask(user, server, WRITING)
    words = ("approve", str(server))
    code, _, shown = on_terminal(user, env, b"n\n", *words, wrapper=CLOSE_STDOUT)
    assert (code, shown.count("[y/N]")) == (1, 1), shown
    assert user.corral("run", str(server), env=env).returncode == REFUSED
    code, _, shown = on_terminal(user, env, b"y\n", *words, wrapper=CLOSE_STDOUT)
    assert code == 0, shown
    assert user.corral("run", str(server), env=env).returncode == 0


def test_ctrl_c_at_a_question_is_reported_and_approves_nothing(user, server, env):
    ask(user, server, WRITING)
    code, _, shown = on_terminal(user, env, b"\x03", "approve", str(server))
    assert (code, shown.splitlines()[-1]) == (130, "corral: interrupted")
    assert user.corral("run", str(server), env=env).returncode == REFUSED
    # Sanity check: the answer `y` approves.
    code, _, shown = on_terminal(user, env, b"y\n", "approve", str(server))
    assert (code, "interrupted" in shown) == (0, False)
    assert user.corral("run", str(server), env=env).returncode == 0


def test_run_asks_on_a_terminal(user, server, env):
    ask(user, server, WRITING)
    code, out, shown = on_terminal(user, env, b"\n", "run", str(server))
    assert (code, out) == (REFUSED, b"")
    assert f"read and write {server}/data" in shown
    code, out, shown = on_terminal(user, env, b"y\n", "run", str(server))
    assert (code, out) == (0, b"served\n"), shown
    code, out, shown = on_terminal(user, env, b"", "run", str(server))
    assert (code, out, "[y/N]" in shown) == (0, b"served\n", False)


@pytest.mark.parametrize("text", ["", "version = 1\n"])
def test_a_directory_without_a_command_names_the_missing_part(user, server, env, text):
    if text:
        put(user, server / "corral.toml", text)
    done = user.corral("run", str(server), env=env)
    assert done.returncode == REFUSED
    assert b"command" in done.stderr
    assert b"hint:" in done.stderr


def test_a_servers_command_cannot_open_other_files_of_the_user(user, server, scratch, env):
    """Use commands that lead to a program in a private directory: by its path, through a symlink,
    or through a `#!` line. corral must refuse them, because otherwise the server could read the
    directory.
    """
    private = scratch / "private"
    private.mkdir()
    put(user, private / "package.json", "{}")
    put(user, private / "tool", "#!/bin/sh\necho tool\n")
    for path in (private, private / "tool"):
        path.chmod(0o755)
        os.chown(path, user.uid, user.uid)
    (server / "link.py").symlink_to(private / "tool")
    (server / "node").symlink_to(private / "tool")
    put(user, server / "own", f"#!{private}/tool\n")
    put(user, server / "fine", "#!/bin/sh\necho fine\n")
    for name in ("own", "fine"):
        (server / name).chmod(0o755)
    for command in (
        ["python3", f"{private}/tool"],
        ["python3", "../private/tool"],
        ["python3", "link.py"],
        ["./node"],
        ["./own"],
    ):
        ask(user, server, "", *command)
        done = user.corral("run", str(server), env=env)
        assert (done.returncode, str(private) in done.stderr.decode()) == (REFUSED, True), command
    ask(user, server, "", "./fine")
    assert user.corral("run", str(server), env=env).stdout == b"fine\n"


def plant(user, scratch) -> tuple[pathlib.Path, pathlib.Path]:
    """Create a directory in a project, which a server may read, and a private directory with a
    file. Return both directories.
    """
    part, private = scratch / "project/part", scratch / "private"
    for made in (part.parent, part, private):
        made.mkdir()
        os.chown(made, user.owner, user.owner)
    put(user, private / "file", "private")
    os.chown(private / "file", user.owner, user.owner)
    return part, private


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_link_of_one_server_grants_nothing_to_another(user, scratch, env):
    part, private = plant(user, scratch)
    env = {**env, "XDG_STATE_HOME": str(user.home / "state")}
    read = "answer = os.path.exists(sys.argv[1]) and os.listdir(sys.argv[1])"
    flags = ("--read", str(part))
    assert user.inside(read, str(part), flags=flags, env=env) == []
    replace = "import os, sys; os.rmdir(sys.argv[1]); os.symlink(sys.argv[2], sys.argv[1])"
    done = user.run(
        user.python, "-c", replace, str(part), str(private),
        flags=("--write", str(part.parent)), env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = user.run("/bin/true", flags=flags, env=env)
    assert done.returncode == REFUSED
    first, second = done.stderr.decode().splitlines()
    assert f"is now a link to '{private}'" in first
    line = second.partition("corral ")[2].split()
    done = user.corral(*line, env=env)
    # corral needs the user's approval, but has no terminal to ask for it.
    assert done.returncode == REFUSED
    line = done.stderr.decode().splitlines()[-1].partition("corral ")[2].split()
    done = user.corral(*line, env=env)
    assert done.returncode == 0, done.stderr
    # Sanity check: after the approval, the server can list the private directory.
    assert user.inside(read, str(private), flags=flags, env=env) == ["file"]


def test_approve_distinguishes_a_missing_directory_from_one_without_a_request(user, scratch, env):
    for path, why in ((scratch / "none", "does not exist"), (scratch, "has no corral.toml")):
        done = user.corral("approve", str(path), env=env)
        assert done.returncode == REFUSED
        assert done.stderr.decode().startswith(f"corral: {path} {why}")


@pytest.mark.parametrize("answer", [b"y\n", b"n\n"])
def test_a_changed_link_is_asked_about_on_a_terminal(user, scratch, env, answer):
    part, private = plant(user, scratch)
    env = {**env, "XDG_STATE_HOME": str(scratch / "state")}
    words = ("run", "--read", str(part), "--", "/bin/echo", "ran")
    assert user.corral(*words, env=env).returncode == 0
    part.rmdir()
    part.symlink_to(private)
    code, out, shown = on_terminal(user, env, answer, *words)
    assert "grant its current destination? [y/N]" in shown
    assert (code, out) == ((0, b"ran\n") if answer == b"y\n" else (REFUSED, b""))
    assert user.corral(*words, env=env).returncode == code


TOOLS = """
import json, sys
def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}
tools = [tool(name) for name in open("tools").read().split()]
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"tools": tools, "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "a", "version": "1"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
LIST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n'
PINNED = '[mcp]\npins = "refuse"\n'


def offered(user, server, env, *flags: str) -> list[str]:
    done = user.corral("run", *flags, str(server), env=env, input=LIST)
    assert done.returncode == 0, done.stderr
    return [one["name"] for one in json.loads(done.stdout)["result"]["tools"]]


@pytest.mark.parametrize(("policy", "flags"), [(PINNED, ()), (WRITING, ("--pin-tools",))])
def test_approve_pins_tools_if_the_manifest_or_the_user_asks(user, server, env, policy, flags):
    """Approve a server whose tools are pinned by its manifest or a flag. A tool that the server
    adds later must not be offered.
    """
    put(user, server / "main.py", TOOLS)
    put(user, server / "tools", "add")
    ask(user, server, policy, "python3", "main.py")
    done = user.corral("approve", "--yes", *flags, str(server), env=env)
    assert done.returncode == 0, done.stderr
    assert b"pinned 1 definitions" in done.stderr
    put(user, server / "tools", "add steal")
    assert offered(user, server, env, "--pins", "refuse") == ["add"]
    # Sanity check: with `--pins off` both tools are offered.
    assert offered(user, server, env, "--pins", "off") == ["add", "steal"]
    again = user.corral("approve", "--pin-tools", str(server), env=env)
    assert again.returncode == 1
    assert b"steal" in again.stderr
    assert offered(user, server, env, "--pins", "refuse") == ["add"]


def test_approve_pins_nothing_without_being_asked(user, server, env):
    put(user, server / "main.py", TOOLS)
    put(user, server / "tools", "add")
    ask(user, server, WRITING, "python3", "main.py")
    assert user.corral("approve", "--yes", str(server), env=env).returncode == 0
    refused = user.corral("run", "--pins", "refuse", str(server), env=env, input=LIST)
    assert refused.returncode == REFUSED
    assert b"nothing is pinned" in refused.stderr


@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_approve_quotes_the_words_of_a_servers_command(user, server, env):
    text = """version = 1
[server]
command = ["python3", "main.py", "--data a --safe", "x;y"]
[network]
allow = ["example.com"]
"""
    (server / "corral.toml").write_text(text)
    (server / "main.py").write_text("")
    shown = user.corral("approve", "--json", str(server), env=env)
    assert shown.returncode == 0, shown.stderr
    lines = user.corral("approve", "--yes", str(server), env=env).stdout.decode().splitlines()
    assert "it starts: python3 main.py '--data a --safe' 'x;y'" in lines
