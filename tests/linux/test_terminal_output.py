"""Check that commands do not print escape sequences from names that other people chose."""

import hashlib
import json
import os
import pathlib
import shlex
import subprocess
from urllib.parse import unquote

import pytest
from test_approve import on_terminal
from test_bundles import ONE_USER, manifest, packed

from corral.cli import COMMANDS
from corral.servers.registry.download import CLEAR_LINE

MARK = "mark"
NAME = (
    f"{MARK}\x1b[1A\x1b[2K\r\x1b]0;title\x07\x9b2J\x08\x7f\t\u202e\u2066\u200b\u2028\ue000"
    "\nhint: forged\ncorral: forged"
)
"""A name that would erase a line, set the title, change the direction of text, and add forged lines."""
GENERIC = (
    (NAME,), (f"--{NAME}",), ("--json", NAME), (f"./{NAME}/absent",), ("--json", f"/{NAME}"),
    (f"{NAME}.mcpb",), (f"npm:{NAME}",), (f"claude-desktop:{NAME}",), ("verify", NAME),
    ("--", NAME, NAME), (f"--read={NAME}", "--", "/bin/true"), (f"--env={NAME}", "--", "/bin/true"),
    (f"--allow={NAME}", "--", "/bin/true"), (f"--profile={NAME}", "--", "/bin/true"),
    (f"--max-memory={NAME}", "--", "/bin/true"), (f"--policy={NAME}", "--", "/bin/true"),
    ("--revoke", NAME), (f"--corral={NAME}", NAME),
)  # fmt: skip


def check_printed(done, *, marked: bool = True) -> None:
    """Check that all output is printable, and that no line begins with text from a hostile name."""
    for stream in (done.stdout, done.stderr):
        text = stream.decode()
        assert text.replace("\n", "").isprintable(), ascii(text)
        assert not [line for line in text.split("\n") if "forged" in line.partition(MARK)[0]], text
    assert not marked or MARK.encode() in done.stdout + done.stderr


# All commands of a test run as forks of one interpreter, because starting an interpreter takes most
# of a command's time.
EACH = """
import json, os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.cli import main
for words in json.loads(sys.argv.pop()):
    ends = [os.pipe(), os.pipe()]
    if os.fork() == 0:
        for number, (_, writer) in enumerate(ends, 1):
            os.dup2(writer, number)
        for pipe in ends:
            os.closerange(min(pipe), max(pipe) + 1)
        sys.argv[1:] = words
        sys.exit(main())
    for _, writer in ends:
        os.close(writer)
    said = [open(reader, "rb").read().decode("latin-1") for reader, _ in ends]
    print(json.dumps([*said, os.waitstatus_to_exitcode(os.wait()[1])]), flush=True)
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_arguments_are_printed_as_text(ordinary, command):
    lines = [(command, *words) for words in GENERIC]
    if command == "cache":
        lines.append(("cache", "rm", NAME))
    argv = [ordinary.python, "-c", EACH, str(ordinary.package), json.dumps(lines)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = ordinary.popen(argv, **pipes)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, b"")
    printed = b""
    for line, row in zip(lines, out.splitlines(), strict=True):
        *said, code = json.loads(row)
        streams = [text.encode("latin-1") for text in said]
        check_printed(subprocess.CompletedProcess(line, code, *streams), marked=False)
        printed += b"".join(streams)
    assert MARK.encode() in printed


@pytest.fixture
def place(user, scratch):
    """Create a directory with a hostile name."""
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
def test_explain_prints_hostile_names_as_text(user, place, json_flag):
    done = user.corral("explain", *json_flag, "--read", place, "--", "/bin/echo", NAME)
    assert done.returncode == 0, done.stderr
    check_printed(done)
    if json_flag:
        data = json.loads(done.stdout)
        assert data["program"]["argv"][1] == NAME  # JSON contains the original name


def test_files_that_a_run_created_are_printed_as_text(user, place):
    code = "import os, sys; os.chdir(sys.argv[1]); os.mkdir('.vscode'); open('.envrc', 'w').close()"
    done = user.corral("run", "--write", place, "--", user.python, "-ISc", code, place)
    assert done.returncode == 0, done.stderr
    assert b"created" in done.stderr
    check_printed(done)


@pytest.mark.parametrize("closed", ["", ".", ".github"])
def test_a_closed_directory_does_not_hide_what_a_run_created(ordinary, closed):
    """Create a file and then make its directory unreadable. corral has to warn that it could not
    search the directory. Root could search it, so the test runs as an ordinary user.
    """
    place, report = ordinary.home / NAME, ordinary.home / "report.json"
    place.mkdir()
    os.chown(place, ordinary.uid, ordinary.uid)
    code = "import os, sys; os.chdir(sys.argv[1]); os.mkdir('.github'); open('.github/mcp.json', 'w').close()"
    code += "; os.chmod(sys.argv[2], 0) if sys.argv[2] else None"
    flags = ("--report", report, "--write", place)
    done = ordinary.corral("run", *flags, "--", ordinary.python, "-ISc", code, place, closed)
    assert done.returncode == 0, done.stderr
    check_printed(done)
    found = json.loads(report.read_text())
    assert found["created"] == ([] if closed else [f"{place}/.github/mcp.json"])
    begin = f"{place / closed} cannot be searched"
    told = [line for line in found["warnings"] if line.startswith(begin)]
    assert len(told) == bool(closed)
    assert (b"may have created" in done.stderr) == bool(closed)


def test_program_names_are_printed_as_text(user, place):
    """Give a program a hostile name. Errors and the output of `explain` contain this name."""
    script = write(user, f"{place}/{NAME}", "#!/bin/sh\n")
    check_printed(user.corral("run", "--", script))
    os.chmod(script, 0o755)
    check_printed(user.corral("explain", "--", script))
    assert user.corral("run", "--", script).returncode == 0


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_ps_prints_hostile_names_as_text(user, json_flag):
    argv = user.corral_argv("run", "--", "/bin/sh", "-c", "echo ready; read word", NAME)
    with user.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"ready\n"
        done = user.corral("ps", *json_flag)
        running.stdin.close()
    check_printed(done)


@pytest.mark.parametrize("command", ["wrap", "status", "unwrap"])
def test_clients_files_are_printed_as_text(user, place, command):
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


def test_approve_prints_hostile_names_as_text(user, place):
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


def test_check_prints_hostile_names_as_text(user, place):
    bad = write(user, f"{place}/bad.toml", f'version = 1\n"{NAME!a}" = 1\n[filesystem]\nread = 1\n')
    good = write(user, f"{place}/good.toml", "version = 1\n")
    for words in ((bad,), (good,), ("--json", bad)):
        check_printed(user.corral("check", *words), marked="--json" not in words)
    check_printed(user.corral("run", "--policy", bad, "--", "/bin/true"))


def offer(registry, path: str) -> None:
    """Publish a server whose bundle has this path in the registry."""
    content = packed(manifest())
    registry.files[unquote(path)] = content
    package = {
        "registryType": "mcpb",
        "identifier": registry.url + path,
        "fileSha256": hashlib.sha256(content).hexdigest(),
        "transport": {"type": "stdio"},
    }
    registry.publish_server("org.example/hello", "1.0.0", packages=[package])


@ONE_USER
def test_installed_names_are_printed_as_text(user, env, registry):
    """Plant hostile names in the cache. corral must print them safely, although installers already
    refuse such names.
    """
    offer(registry, "/hello.mcpb")
    assert user.corral("run", "org.example/hello", env=env).returncode == 0
    for path in pathlib.Path(env["XDG_CACHE_HOME"]).glob("corral/store/entries/*"):
        hostile = dict.fromkeys(("key", "name", "version", "origin", "created"), NAME)
        path.write_text(json.dumps({**json.loads(path.read_text()), **hostile}))
    for words in (("ls",), ("ls", "--json"), ("verify", "--json"), ("rm", NAME)):
        done = user.corral("cache", *words, env=env)
        assert done.returncode == 0, done.stderr
        check_printed(done, marked="verify" not in words)


@ONE_USER
def test_download_progress_is_printed_as_text(user, env, registry):
    """Download from a hostile address on a terminal. corral's progress line contains the end of the
    address, and must print it safely.
    """
    offer(registry, "/%1b%0amark%e2%80%ae'.mcpb")
    env = {**env, "NO_COLOR": "1"}
    code, _, text = on_terminal(user, env, b"", "run", "org.example/hello")
    assert code == 0, text
    check_progress(text)


@ONE_USER
def test_progress_with_any_name_is_printed_as_text(user):
    """Print a progress line with hostile names. corral refuses such addresses and packages earlier,
    but the line must be safe anyway.
    """
    code = "import sys\nfrom corral.servers.registry.download import show_progress\n"
    code += "show_progress(f'fetching {sys.argv[1]}')\nshow_progress('')\n"
    terminal, own = os.openpty()
    env = user.environment(PYTHONPATH=str(user.package))
    with user.popen([user.python, "-c", code, NAME], env=env, stderr=own) as running:
        os.close(own)
        assert running.wait(60) == 0
    check_progress(os.read(terminal, 4096).decode())
    os.close(terminal)


def check_progress(text: str) -> None:
    assert f"{CLEAR_LINE}corral: fetching" in text
    left = text.replace(CLEAR_LINE, "").replace("\r\n", "")
    assert left.isprintable(), ascii(left)
    assert MARK in left


@ONE_USER
@pytest.mark.parametrize(
    "url", ["/\x9bmark\u202e", "/mark\u2028forged", "//mark\u202e.example/", f"/{NAME}"]
)
def test_a_registrys_addresses_are_printed_as_text(user, env, registry, url):
    package = {
        "registryType": "mcpb", "identifier": registry.url + url, "fileSha256": "0" * 64,
        "transport": {"type": "stdio"},
    }  # fmt: skip
    registry.publish_server("org.example/hello", "1.0.0", packages=[package])
    done = user.corral("run", "org.example/hello", env=env)
    assert done.returncode == 125, done.stderr
    assert b"Traceback" not in done.stderr
    check_printed(done)


@ONE_USER
def test_names_of_kept_homes_are_printed_as_text(user):
    done = user.corral("run", "--state", "--", "/bin/echo", NAME)
    assert done.returncode == 0, done.stderr
    for words in (("homes",), ("homes", "--json"), ("rm-home", "/bin/echo")):
        check_printed(user.corral("cache", *words), marked=words[0] == "homes")


@ONE_USER
def test_a_server_with_words_that_are_not_utf8_keeps_its_home(user):
    done = user.corral("run", "--state", "--", "/bin/echo", "caf\udce9")
    assert (done.returncode, done.stdout) == (0, b"caf\xe9\n"), done.stderr
    assert rb"caf\udce9" in user.corral("cache", "homes").stdout
    assert user.corral("cache", "rm-home", "/bin/echo").returncode == 0


def test_on_a_terminal_only_corrals_own_colours_are_escapes(user, place):
    """Run corral on a terminal that `script` provides. The only escape sequences in the output may
    be those for corral's own bold text.
    """
    line = shlex.join(user.corral_argv("explain", "--read", place, "--", "/bin/echo", NAME))
    with user.popen(
        ["script", "-qec", line, "/dev/null"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        text = running.communicate()[0].decode()
    assert "\x1b[1mProgram\x1b[0m" in text
    left = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r\n", "")
    assert left.isprintable(), ascii(left)
    assert MARK in left
