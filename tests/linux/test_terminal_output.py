"""Names that others choose reach the terminal as text: no command prints an escape sequence of theirs."""

import json
import os
import shlex
from subprocess import PIPE

import pytest

from corral.cli import COMMANDS

MARK = "mark"
NAME = (
    f"{MARK}\x1b[1A\x1b[2K\r\x1b]0;title\x07\x9b2J\x08\x7f\t\u202e\u2066\u200b\u2028\ue000"
    "\nhint: forged\ncorral: forged"
)
"""Erase the line before, set the title, C1 controls, right to left, private use, and forged lines."""
GENERIC = (
    (NAME,), (f"--{NAME}",), ("--json", NAME), (f"./{NAME}/absent",), ("--json", f"/{NAME}"),
    (f"{NAME}.mcpb",), (f"npm:{NAME}",), (f"claude-desktop:{NAME}",), ("verify", NAME),
    ("--", NAME, NAME), (f"--read={NAME}", "--", "/bin/true"), (f"--env={NAME}", "--", "/bin/true"),
    (f"--allow={NAME}", "--", "/bin/true"), (f"--profile={NAME}", "--", "/bin/true"),
    (f"--max-memory={NAME}", "--", "/bin/true"), (f"--policy={NAME}", "--", "/bin/true"),
    ("--revoke", NAME), (f"--corral={NAME}", NAME),
)  # fmt: skip


def check_printed(done, *, marked: bool = True) -> None:
    """What reached a terminal is text, in lines that corral began."""
    for stream in (done.stdout, done.stderr):
        text = stream.decode()
        assert text.replace("\n", "").isprintable(), ascii(text)
        assert not [line for line in text.split("\n") if "forged" in line.partition(MARK)[0]], text
    assert not marked or MARK.encode() in done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_words_are_printed_as_text(ordinary, command):
    printed = b""
    for words in (*GENERIC, *((("rm", NAME),) if command == "cache" else ())):
        done = ordinary.corral(command, *words)
        check_printed(done, marked=False)
        printed += done.stdout + done.stderr
    assert MARK.encode() in printed


@pytest.fixture
def place(user, scratch):
    """A directory with a hostile name."""
    path = scratch / NAME
    path.mkdir()
    os.chown(path, user.owner, user.owner)
    return str(path)


def write(user, path: str, text: str) -> str:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chown(path, user.owner, user.owner)
    return path


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_explain(user, place, json_flag):
    done = user.corral("explain", *json_flag, "--read", place, "--", "/bin/echo", NAME)
    assert done.returncode == 0, done.stderr
    check_printed(done)
    if json_flag:
        data = json.loads(done.stdout)
        assert data["program"]["argv"][1] == NAME  # JSON stays JSON: nothing is lost


def test_what_a_run_created(user, place):
    code = "import os, sys; os.chdir(sys.argv[1]); os.mkdir('.vscode'); open('.envrc', 'w').close()"
    done = user.corral("run", "--write", place, "--", user.python, "-ISc", code, place)
    assert done.returncode == 0, done.stderr
    assert b"created" in done.stderr
    check_printed(done)


def test_programs(user, place):
    """The program's own name is hostile, in the error and in what `explain` lists."""
    script = write(user, f"{place}/{NAME}", "#!/bin/sh\n")
    check_printed(user.corral("run", "--", script))
    os.chmod(script, 0o755)
    check_printed(user.corral("explain", "--", script))
    assert user.corral("run", "--", script).returncode == 0


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_ps(user, json_flag):
    argv = user.corral_argv("run", "--", "/bin/sh", "-c", "echo ready; read word", NAME)
    with user.popen(argv, stdin=PIPE, stdout=PIPE) as running:
        assert running.stdout.readline() == b"ready\n"
        done = user.corral("ps", *json_flag)
        running.stdin.close()
    check_printed(done)


@pytest.mark.parametrize("command", ["wrap", "status", "unwrap"])
def test_clients(user, place, command):
    servers = {NAME: {"command": "/bin/cat", "args": [NAME, place], "env": {NAME: "1"}}}
    servers["plain"] = {"command": "/bin/cat", "args": [place]}
    path = write(user, f"{place}/{NAME}.json", json.dumps({"mcpServers": servers}))
    code = f"#!{user.python}\nimport sys\nsys.path.insert(0, {str(user.package)!r})\n"
    corral = write(
        user, f"{place}/corral", f"{code}from corral.cli import main\nsys.exit(main())\n"
    )
    os.chmod(corral, 0o755)
    if command == "wrap":
        words = ("wrap", "--corral", corral)
    else:
        assert b"wrapped" in user.corral("wrap", "--corral", corral, path).stdout
        words = (command,)
    for more in ((), ("--json",), *([] if command == "status" else [("--dry-run",)])):
        check_printed(user.corral(*words, *more, path))


def test_approve(user, place):
    quoted = json.dumps(NAME).replace("\x7f", "\\u007f")
    text = f'version = 1\n[server]\ncommand = ["/bin/cat", {quoted}]\n[filesystem]\nread = [{quoted}]\n'
    write(user, f"{place}/corral.toml", text)
    asked = user.corral("approve", place)
    check_printed(asked)
    assert b"asks to" in asked.stdout
    check_printed(user.corral("approve", "--json", place))
    check_printed(user.corral("run", place))
    check_printed(user.corral("approve", "--yes", place))
    check_printed(user.corral("approve", "--list"))
    check_printed(user.corral("approve", "--list", "--json"))
    check_printed(user.corral("approve", "--revoke", place), marked=False)


def test_check(user, place):
    bad = write(user, f"{place}/bad.toml", f'version = 1\n"{NAME!a}" = 1\n[filesystem]\nread = 1\n')
    good = write(user, f"{place}/good.toml", "version = 1\n")
    for words in ((bad,), (good,), ("--json", bad)):
        check_printed(user.corral("check", *words), marked="--json" not in words)
    check_printed(user.corral("run", "--policy", bad, "--", "/bin/true"))


def test_on_a_terminal_only_corrals_own_colours_are_escapes(user, place):
    """`script` gives corral a terminal; each escape sequence in it is one of `Painted`."""
    line = shlex.join(user.corral_argv("explain", "--read", place, "--", "/bin/echo", NAME))
    with user.popen(["script", "-qec", line, "/dev/null"], stdin=PIPE, stdout=PIPE) as running:
        text = running.communicate()[0].decode()
    assert "\x1b[1mProgram\x1b[0m" in text
    left = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r\n", "")
    assert left.isprintable(), ascii(left)
    assert MARK in left
