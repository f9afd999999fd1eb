"""Test `corral learn`: it proposes the paths and hosts that a target asked for, and the target
works once they are granted.
"""

from __future__ import annotations

import json
import os
import signal
from subprocess import PIPE

import pytest

from users import SYSTEM_PYTHON

SCRIPT = """
import json, os, sys
answer = []
for path, mode in json.loads(sys.argv[1]):
    try:
        with open(os.path.expanduser(path), mode) as file:
            answer.append(file.read() if mode == "r" else file.write("x"))
    except OSError as error:
        answer.append(type(error).__name__)
try:
    os.posix_spawn("/bin/true", ["true"], {})
    answer.append("started")
except OSError as error:
    answer.append(type(error).__name__)
print(json.dumps(answer))
"""


@pytest.fixture
def project(user):
    """Create three directories of the user. One of them is .ssh."""
    for name in ("notes", "results", ".ssh"):
        (user.home / name).mkdir(exist_ok=True)
        (user.home / name / "a").write_text("hello")
        for path in (user.home / name, user.home / name / "a"):
            os.chown(path, user.owner, user.owner)
    return user.home


def learn(user, *flags, asked):
    done = user.corral(
        "learn", *flags, "--", user.python, "-c", SCRIPT, json.dumps(asked), timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_name_of_a_new_file_cannot_look_like_a_question(user, project):
    """Use file names that look like the end of corral's own message and contain a flag. corral must
    put quotes around these names.
    """
    fake = f"{project}/results/a: allow --read notes?"
    secret = f"{project}/.ssh/a; --read x"
    asked = [[fake, "w"], [secret, "w"], [f"{project}/notes/new", "w"]]
    lines = learn(user, asked=asked).stderr.decode().splitlines()
    assert f"corral: the server asked to change '{fake}'; --write {project}/results" in lines
    assert any(
        line.startswith(f"corral: the target asked for '{secret}': never proposed")
        for line in lines
    )
    assert (
        f"corral: the server asked to change {project}/notes/new; --write {project}/notes" in lines
    )


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_policy_that_learn_wrote_allows_what_it_proposed(user, project, scratch):
    policy = scratch / "policy.toml"
    asked = [
        [f"{project}/notes/a", "r"],
        ["~/notes/a", "r"],
        [f"{project}/results/new", "w"],
        [f"{project}/.ssh/a", "r"],
        [f"{project}/nowhere", "r"],
    ]
    walled = ["FileNotFoundError"] * 5 + ["PermissionError"]
    bare = ["PermissionError", "FileNotFoundError", *["PermissionError"] * 2, *walled[-2:]]
    denied = walled if user.tier == "walled" else bare
    done = learn(user, "--accept", "--output", str(policy), asked=asked)
    assert json.loads(done.stdout) == denied
    # `learn` prints no command that keeps the grants, because it has written them to the policy.
    assert b"to keep this" not in done.stderr
    text = policy.read_text()
    assert f'"{project}/notes/a",  # the server asked to read {project}/notes/a' in text
    assert "allow = true  # start of true" in text
    assert ".ssh" not in text
    assert "nowhere" not in text
    assert f"the target asked for {project}/.ssh/a: never proposed".encode() in done.stderr
    run = user.run(user.python, "-c", SCRIPT, json.dumps(asked), flags=("--policy", str(policy)))
    found = json.loads(run.stdout)
    assert found == ["hello", "hello", 1, *denied[3:5], "started"]
    assert (project / "results" / "new").read_text() == "x"


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
@pytest.mark.parametrize(
    ("address", "proposed"),
    [("169.254.169.254", False), ("::ffff:169.254.169.254", False), ("192.0.2.7", True)],
)
def test_the_address_of_a_metadata_service_is_never_proposed(user, address, proposed):
    """Connect to an address of a metadata service. `learn` must not propose it, because a hostile
    server could connect to it in order to get the machine's credentials after the user has
    accepted. Sanity check: an ordinary address is proposed.
    """
    code = (
        f"import socket\ntry: socket.create_connection(({address!r}, 80), 5)\nexcept OSError: pass"
    )
    said = user.corral("learn", "--", user.python, "-c", code, timeout=120).stderr.decode()
    assert ("--allow-net" in said) == proposed, said
    assert ("a metadata service, which gives out the machine's credentials" in said) != proposed, (
        said
    )


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_missing_script_is_named_and_its_directory_is_not_proposed(user, project):
    place = project / "notes"
    command = ("--", user.python, "server.py")
    for words in (("learn", *command), ("run", *command)):
        said = user.corral(*words, cwd=place, timeout=120).stderr.decode()
        assert f"corral: server.py does not exist in {place}\n" in said
        assert "--read" not in said
        assert "everything that it asked for" not in said
        assert "ended with an error" not in said
    script = place / "server.py"
    # Sanity check: a script that exists but fails is not reported as missing.
    script.write_text("raise SystemExit(1)")
    script.chmod(0o644)
    said = user.corral("run", *command, cwd=place, timeout=120).stderr.decode()
    assert "does not exist" not in said
    assert "ended with an error" in said


def test_no_policy_is_written_without_approval(user, project, scratch):
    policy = scratch / "policy.toml"
    done = learn(user, "--output", str(policy), asked=[[f"{project}/notes/a", "r"]])
    assert f"--read {project}/notes/a".encode() in done.stderr
    assert (
        b"nothing was accepted: there is no terminal to ask for confirmation; --accept accepts all"
        in done.stderr
    )
    assert not policy.exists()


def test_a_policy_that_cannot_be_written_is_refused_before_the_run(user, project, scratch):
    policy = scratch / "policy.toml"
    policy.write_text("mine")
    for path in (policy, scratch / "nowhere" / "policy.toml"):
        done = user.corral("learn", "--output", str(path), "--", "/bin/echo", "ran")
        assert done.returncode == 125
        assert done.stdout == b""
        assert f"cannot write the policy to {path}".encode() in done.stderr
    assert policy.read_text() == "mine"
    # Sanity check: without `--output` the target runs.
    assert user.corral("learn", "--", "/bin/echo", "ran").stdout == b"ran\n"


def test_the_json_output_lists_the_files_that_the_target_asked_for(user, project):
    done = learn(user, "--json", asked=[[f"{project}/notes/a", "r"]])
    found = json.loads(done.stdout.decode().partition("\n")[2])
    rows = [row for row in found["asked_for"] if row["path"] == f"{project}/notes/a"]
    assert [(row["access"], row["times"]) for row in rows] == [("read", 1)]


def test_a_huge_path_with_control_characters_is_not_printed(user, project):
    hostile = f"{project}/notes/" + "\x1b[31m" + "a" * 1_000_00
    done = learn(user, asked=[[hostile, "r"], [f"{project}/notes/a", "r"]])
    assert b"\x1b" not in done.stderr
    assert f"--read {project}/notes/a".encode() in done.stderr


LISTENS = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
    try:
        listener.bind(f"{os.environ['HOME']}/own.sock")
        listener.listen()
        client.connect(f"{os.environ['HOME']}/own.sock")
        print("connected")
    except OSError:
        print("denied")
"""


def test_a_targets_own_unix_socket_is_proposed(user, scratch):
    policy = scratch / "policy.toml"
    # Use the system's Python. corral would refuse `own_unix_sockets` for another Python, because
    # its directory may contain sockets.
    words = (SYSTEM_PYTHON, "-c", LISTENS)
    done = user.corral("learn", "--json", "--accept", "--output", str(policy), "--", *words)
    said, _, text = done.stdout.decode().partition("\n")
    assert said == "denied", done.stderr
    assert b"the server asked to create the unix socket " in done.stderr
    assert "own_unix_sockets = true  # the server asked to create" in policy.read_text()
    # `learn` must not propose the files below /.corral, because corral itself uses them.
    assert "/.corral" not in text
    run = user.run(*words, flags=("--policy", str(policy)))
    assert run.stdout == b"connected\n", run.stderr


BINDS_ABSTRACT_NAME = """
import socket
name = "corral-test-of-a-name"
with socket.socket(socket.AF_UNIX) as given, open("/proc/net/unix") as names:
    before = name in names.read()
    given.bind("\\0" + name)
    names.seek(0)
    print(before, name in names.read())
"""


def test_sockets_of_a_target_under_learn_are_not_in_the_hosts_network(user):
    """Check that a watched target's sockets are in the sandbox's network namespace. In the host's
    namespace it could see the host's addresses and take abstract names.
    """
    done = user.corral("learn", "--", SYSTEM_PYTHON, "-c", BINDS_ABSTRACT_NAME)
    assert done.stdout == b"False True\n", done.stderr
    # Sanity check: `learn` saw that the target tried to bind the abstract name.
    assert b"the server asked to create the unix socket an abstract name" in done.stderr


ASKS_THE_NETWORK = """
import socket
for act in (
    lambda: socket.getaddrinfo("api.example.test", 443),
    lambda: socket.create_connection(("11.0.0.9", 4433), timeout=20),
):
    try:
        act()
        print("reached")
    except OSError:
        print("denied")
"""


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_host_names_and_addresses_are_proposed_with_and_without_namespaces(user):
    done = user.corral("learn", "--", user.python, "-c", ASKS_THE_NETWORK, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"denied\ndenied\n"), done.stderr
    assert b"; --allow-net api.example.test\n" in done.stderr
    assert b"; --allow-net 11.0.0.9:4433\n" in done.stderr
    assert b"learn.invalid" not in done.stderr


def closing_lines(user, code: str, *flags: str, **variables: str) -> list[str]:
    env = user.environment(**variables)
    words = ("learn", *flags, "--", user.python, "-c", code)
    # Give the target a line on stdin. With an empty stdin, `learn` would say that a client's
    # messages are missing.
    done = user.corral(*words, env=env, input=b"{}\n")
    assert done.returncode == 0, done.stderr
    return read_closing_lines(done.stderr)


def read_closing_lines(said: bytes) -> list[str]:
    lines = said.decode().splitlines()
    watched = next(at for at, line in enumerate(lines) if line.startswith("corral: watched "))
    return [line.removeprefix("corral: ") for line in lines[watched + 1 :]]


UNUSED = "no MCP client used the target, so it may ask for more later; to watch that: pipe the messages of a client into `corral learn`"


@pytest.mark.parametrize("stdin", ["nothing", "an empty file", "a closed pipe", "a message"])
def test_learn_says_that_no_client_used_the_target(user, scratch, stdin):
    (scratch / "empty").touch()
    reader, writer = os.pipe()
    os.write(writer, b"{}\n" if stdin == "a message" else b"")
    os.close(writer)
    files = {"nothing": "/dev/null", "an empty file": scratch / "empty"}
    with open(files.get(stdin, reader), "rb") as file:
        argv = user.corral_argv("learn", "--", user.python, "-c", "pass")
        with user.popen(argv, stdin=file, stdout=-1, stderr=-1) as process:
            lines = read_closing_lines(process.communicate(timeout=60)[1])
    if stdin in files:
        os.close(reader)
    if stdin == "a message":  # sanity check
        assert lines == ["the target got everything that it asked for"]
    else:
        assert lines == [
            "the target got everything that it asked for while it started",
            UNUSED,
        ]


WAITS = b"""\
corral: the server waits for a client's messages on its standard input, which is open
corral: add `</dev/null` to watch only its start; Ctrl-C ends it
"""


def test_learn_says_that_the_target_waits_for_messages(user):
    """Send SIGINT, as Ctrl-C does, while the target reads from a pipe that stays empty. `learn`
    must say that the target waits for messages.
    """
    code = "import sys; print('reads', flush=True); sys.stdin.read()"
    argv = user.corral_argv(
        "learn", "--", user.python, "-c", f"try:\n {code}\nexcept KeyboardInterrupt: pass"
    )
    with user.popen(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"reads\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.startswith(WAITS)
    assert b"Traceback" not in said
    assert b"corral: the target ended: " in said
    # Sanity check: `learn` does not say this about a target that does not wait.
    done = user.corral("learn", "--", user.python, "-c", "pass", input=b"{}\n")
    assert b"waits for" not in done.stderr


REFUSED = "import socket; socket.socket().connect_ex(('127.0.0.1', 5432))"


def test_learn_says_that_the_target_did_not_get_unproposed_files(user, project):
    code = f"import os; os.access('{project}/.ssh/a', 4) or open('{project}/.ssh/a')"
    lines = closing_lines(user, f"try:\n    {code}\nexcept OSError:\n    pass")
    assert lines[0].startswith(f"the target asked for {project}/.ssh/a: never proposed")
    assert lines[1:] == ["there is nothing to propose; the target did not get what is listed above"]
    assert closing_lines(user, "pass") == ["the target got everything that it asked for"]


def test_the_reason_of_a_proposal_is_a_whole_sentence(user):
    line, accepted = closing_lines(user, REFUSED)
    assert accepted.startswith("nothing was accepted")
    assert line == (
        "connection to 127.0.0.1:5432 (nothing in the sandbox listens there; the sandbox does not"
        " share the host's loopback); --allow-net 127.0.0.1:5432"
    )


def test_learn_lists_denials_that_no_flag_allows(user):
    """Look up a name that contains the value of a secret. `learn` must not suggest a flag, because
    the flag would contain the value.
    """
    code = "import os, socket\ntry:\n    socket.getaddrinfo(os.environ['TOK'] + '.example', 80)\n"
    code += "except OSError:\n    pass"
    lines = closing_lines(user, code, "--secret", "TOK", TOK="s3cr3tvalue42")
    assert any(
        line.startswith("denied: name ***.example (with the value of TOK)") for line in lines
    )
    assert not any("s3cr3t" in line or "everything" in line for line in lines)
