"""Test the command line: its help, errors and reports, and that `run` executes the steps that
`explain` lists.
"""

import json
import os
import re
import stat
from subprocess import DEVNULL, PIPE

import pytest

from corral.cli import COMMANDS


def succeeds(done) -> str:
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout.decode()


def explain(user, *arguments) -> dict:
    done = user.corral("explain", "--json", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_the_overview_lists_every_command(ordinary):
    text = succeeds(ordinary.corral("--help"))
    listed = re.findall(r"^  (\w+) +\S", text, re.MULTILINE)
    assert set(listed) >= set(COMMANDS)
    for words in ((), ("-h",), ("help",)):
        assert succeeds(ordinary.corral(*words)) == text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(ordinary, command):
    text = succeeds(ordinary.corral(command, "--help"))
    assert text.startswith(f"usage: corral {command}")
    assert "--help" in text
    assert succeeds(ordinary.corral(command, "-h")) == text
    assert succeeds(ordinary.corral("help", command)) == text


def test_the_overview_groups_commands_by_task(ordinary):
    text = succeeds(ordinary.corral("--help"))
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == ["Run", "Clients", "Policies", "Upkeep"]


@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_the_version_is_printed(ordinary, flag):
    text = succeeds(ordinary.corral(flag))
    assert re.fullmatch(r"corral \d+\.\d+\.\d+\n", text)
    found = json.loads(succeeds(ordinary.corral(flag, "--json")))
    assert f"corral {found['version']}\n" == text


USAGE = {
    ("rnu",): "did you mean `corral run`?",
    ("help", "rnu"): "did you mean `corral run`?",
    ("zzzzzz",): "`corral --help` lists the commands",
    ("--verbose",): "options come after the command: corral COMMAND --verbose",
    ("run", "--allow-read", "x", "--", "true"): "did you mean --read?",
    ("run", "--net", "x", "--", "true"): "did you mean --allow-net?",
    ("run", "-w", "x", "--", "true"): "did you mean --write?",
    ("run", "--quiet", "--", "true"): "`corral run --help` lists the options",
    ("status", "--quiet"): "`corral status --help` lists the options",
    ("export", "oci", "--quiet"): "`corral export --help` lists the options",
    ("RUN",): "did you mean `corral run`?",
    ("--json", "status"): "options come after the command: corral status --json",
    ("status", ""): "is a shell variable empty?",
    ("run", ""): "is a shell variable empty?",
    ("approve", "--revoke", ""): "remove all approvals of a server",
    ("approve", "--path", ""): "approve the current destination",
    ("learn", "--output", "", "--", "true"): "write the accepted proposals",
    ("wrap", "cursor:notes"): "separate a client and its servers by a space: cursor notes",
    ("wrap", "curser:notes"): "did you mean cursor?",
    ("cache", "lss"): "did you mean ls?",
    ("cache", "rm"): "corral cache --help",
    ("export", "oic"): "did you mean oci?",
    ("schema", "repor"): "did you mean report?",
    ("completion", "bsh"): "did you mean bash?",
    ("explain", "--learn-until", "x", "--", "true"): "write a time such as",
    ("explain", "--start-in", "a b", "--", "true"): "write '/",
    ("wrap", "curser"): "did you mean cursor?",
    ("status", "zed2"): "did you mean zed?",
    ("audit",): "usage: corral audit",
    ("run", "--max-memroy", "1G", "--", "true"): "did you mean --max-memory?",
    ("run", "--polcy=x", "--", "true"): "did you mean --policy?",
    ("run",): "end with `-- COMMAND ...`",
    ("run", "--"): "end with `-- COMMAND ...`",
    ("wrap",): "usage: corral wrap",
    ("grant",): "usage: corral grant",
    ("explain", "--jsn", "--", "true"): "did you mean --json?",
    ("check",): "usage: corral check",
    ("completion", "tcsh"): "usage: corral completion",
    ("completion",): "usage: corral completion",
    ("doctor", "surplus"): "usage: corral doctor",
    ("version", "--bogus"): "`corral version --help` lists the options",
    ("--version", "surplus"): "usage: corral version",
    ("schema", "surplus"): "usage: corral schema",
    ("run", "--max-memory", "5X", "--", "true"): "`corral run --help` shows",
    ("run", "--timeout", "1", "--", "true"): "`corral run --help` shows",
    ("run", "--allow-net", "https://x", "--", "true"): "`corral run --help` shows",
    ("learn", "--max-memory", "5X", "--", "true"): "`corral learn --help` shows",
    ("inspect", "--max-memory", "5X", "--", "true"): "`corral inspect --help` shows",
    ("explain", "--max-memory", "5X", "--", "true"): "`corral explain --help` shows",
    (
        "export",
        "oci",
        "-o",
        "no-such",
        "--max-memory",
        "5X",
        "--",
        "true",
    ): "`corral export --help`",
    ("run", "--profile", "nosuch", "--", "true"): "`corral profiles` lists them",
    ("profiles", "nosuch"): "`corral profiles` lists them",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_a_usage_error_exits_with_2_and_the_nearest_hint(ordinary, words):
    done = ordinary.corral(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    what, hint = done.stderr.decode().splitlines()
    assert what.startswith("corral: ")
    assert hint.startswith(f"hint: {USAGE[words]}")
    assert "\\n" not in hint


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--max-memory"),
        ("run", "--strict=yes", "--", "true"),
        ("run", "--timeout", "1s", "--timeout", "2s", "--", "true"),
    ],
    ids=" ".join,
)
def test_a_wrongly_used_flag_exits_with_2(ordinary, words):
    done = ordinary.corral(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"corral: --")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("--python", "3.12"), "pypi: packages"),
        (("--with", "numpy"), "pypi: packages"),
        (("--allow-install-scripts",), "npm: and pypi: packages"),
        (("--config", "a=b"), "bundles and registry servers"),
    ],
    ids=str,
)
def test_a_flag_that_a_command_cannot_use_is_reported(ordinary, words, kind):
    done = ordinary.corral("explain", *words, "--", "true")
    assert done.returncode == 0, done.stderr
    told = f"corral: warning: {words[0]} has no effect: it is only for {kind}\n"
    assert done.stderr.decode() == told
    assert succeeds(ordinary.corral("explain", "--", "true")) == done.stdout.decode()


@pytest.mark.parametrize(
    "words",
    [
        ("profiles", "time", "--json"),
        ("cache", "ls", "--json"),
        ("cache", "--json"),
        ("approve", "--json"),
    ],
    ids=" ".join,
)
def test_options_may_follow_other_words(ordinary, words):
    assert isinstance(json.loads(succeeds(ordinary.corral(*words))), list)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cache", "ls"), "nothing is installed"),
        (("cache", "homes"), "no server keeps a home directory"),
        (("approve", "--list"), "nothing is approved"),
        (("ps",), "no run is alive"),
    ],
    ids=str,
)
def test_commands_that_list_things_say_so_if_there_is_nothing_to_list(
    ordinary, scratch, words, told
):
    os.chown(scratch, ordinary.uid, ordinary.uid)
    places = {f"XDG_{name}_HOME": str(scratch) for name in ("CACHE", "STATE", "DATA", "CONFIG")}
    done = ordinary.corral(*words, env=ordinary.environment(**places))
    assert succeeds(done) == f"{told}\n"


def test_help_may_follow_other_words(ordinary):
    assert succeeds(ordinary.corral("completion", "bash", "--help")).startswith("usage: ")


def test_options_after_the_command_belong_to_the_command(ordinary):
    done = ordinary.corral("run", "/bin/echo", "--json", "--help")
    assert (done.returncode, done.stdout) == (0, b"--json --help\n")


def test_a_file_after_two_dashes_may_look_like_an_option(user, scratch):
    path = scratch / "--json"
    path.write_text("version = 1\n")
    path.chmod(0o644)
    assert succeeds(user.corral("check", "--", "--json", cwd=scratch)) == "--json: ok\n"


def test_wrap_without_arguments_names_the_installed_clients(user, scratch):
    (scratch / ".cursor").mkdir()
    (scratch / ".cursor").chmod(0o755)
    (scratch / ".cursor" / "mcp.json").write_text("{}")
    done = user.corral("wrap", env=user.environment(HOME=str(scratch)))
    assert done.returncode == 2
    assert done.stderr.endswith(b"; clients found here: cursor\n")


MISTAKES = """\
version = 1
[limits]
memroy = "1G"
pids = "many"
timeout = "soon"
[network]
allow = ["*"]
[filesystem]
raed = ["/tmp"]
[nonsense]
x = 1
"""


def test_check_lists_every_mistake_with_its_line(user, scratch):
    path = scratch / "policy.toml"
    path.write_text(MISTAKES)
    path.chmod(0o644)
    done = user.corral("check", str(path))
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    found = [(int(line.split(":")[1]), line.split(": ")[1]) for line in lines]
    assert found == [
        (3, "limits.memroy"),
        (4, "limits.pids"),
        (5, "limits.timeout"),
        (7, "network.allow[0]"),
        (9, "filesystem.raed"),
        (10, "nonsense"),
    ]
    assert "did you mean memory?" in lines[0]
    assert done.stderr == b"hint: `corral schema` shows every key and how its value is written\n"
    told = json.loads(user.corral("check", "--json", str(path)).stdout)
    assert [(item["line"], item["key"]) for item in told] == found
    assert {item["file"] for item in told} == {str(path)}


def test_check_accepts_a_valid_file(user, scratch):
    path = scratch / "policy.toml"
    path.write_text('version = 1\n[limits]\nmemory = "64M"\n')
    path.chmod(0o644)
    assert succeeds(user.corral("check", str(path))) == f"{path}: ok\n"
    assert user.corral("check", str(path)).stderr == b""
    assert json.loads(succeeds(user.corral("check", "--json", str(path)))) == []


RECORD = """
import json, os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.cli import main
from corral.platforms import steps
told = int(sys.argv.pop(1))
real = steps.apply
def apply(planned, stage, results):
    for step in planned:
        if step.stage == stage:
            os.write(told, (json.dumps([step.name, stage, step.describe()]) + "\\n").encode())
    real(planned, stage, results)
steps.apply = apply
sys.exit(main())
"""


def test_run_executes_exactly_the_steps_that_explain_prints(user, scratch):
    arguments = [
        "--write",
        str(scratch),
        "--timeout",
        "1m",
        "--allow-subprocess",
        "--",
        "/bin/true",
    ]
    planned = explain(user, *arguments)["steps"]
    read, write = os.pipe()
    argv = [user.python, "-c", RECORD, str(user.package), str(write), "run", *arguments]
    process = user.popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, pass_fds=(write,))
    os.close(write)
    with open(read) as told:
        applied = [json.loads(line) for line in told]
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    order = dict.fromkeys(stage for _, stage, _ in applied)
    assert set(order) == {step["stage"] for step in planned}
    expected = [
        [step["step"], step["stage"], step["does"]]
        for stage in order
        for step in planned
        if step["stage"] == stage
    ]
    assert [_without_run(step) for step in applied] == [_without_run(step) for step in expected]
    text = user.corral("explain", "-v", *arguments).stdout.decode()
    described = [line.strip() for step in expected for line in step[2].splitlines()]
    assert not [line for line in described if _mask(line) not in _mask(text)]


def _without_run(step: list[str]) -> list[str]:
    return [*step[:2], _mask(step[2])]


def _mask(text: str) -> str:
    """Replace the hexadecimal names that corral makes up for each run, so that texts of different
    runs can be compared.
    """
    return re.sub(r"[0-9a-f]{6,}(-[0-9a-z]+)?", "*", text)


def test_explain_begins_with_the_targets_permissions(user, scratch):
    words = ("--read", str(scratch), "--allow-subprocess", "--max-fds", "99", "--", "/bin/true")
    first, second, third, fourth = succeeds(user.corral("explain", *words)).splitlines()[:4]
    assert first == f"/bin/true may use, besides its own program: read {scratch}"
    assert second == "It cannot use the network, and may start other programs."
    assert third.startswith("Its limits: memory 1G, pids 128, fds 99, disk 1G")
    assert fourth == "Program"
    flags = (
        "--allow-net",
        "a.example.com",
        "--allow-net",
        "[2001:db8::/64]:5432",
        "--listen",
        "8080",
    )
    second = succeeds(user.corral("explain", *flags, "--", "/bin/true")).splitlines()[1]
    reach = "It may reach a.example.com on ports 80 and 443, [2001:db8::/64]:5432, listen 8080,"
    assert second == f"{reach} and cannot start other programs."
    plain = succeeds(user.corral("explain", "--", "/bin/true"))
    assert "target: " not in plain
    assert "\n  target: rlimits: " in succeeds(user.corral("explain", "-v", "--", "/bin/true"))


def test_explain_starts_nothing(user, scratch):
    done = user.corral("explain", "--write", str(scratch), "--", "/bin/touch", str(scratch / "ran"))
    assert done.returncode == 0
    assert not (scratch / "ran").exists()


SECRET = "a-value-that-nobody-may-see"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_secret_is_never_printed(user, scratch, flags):
    env = user.environment(TOKEN=SECRET)
    done = user.corral("explain", *flags, "--secret", "TOKEN", "--", "/bin/true", env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert b"TOKEN" in done.stdout
    assert SECRET.encode() not in done.stdout + done.stderr


def test_a_secret_is_passed_and_is_not_in_the_report(user, scratch):
    report = scratch / "report.json"
    flags = ("--secret", "TOKEN", "--report", str(report))
    env = user.environment(TOKEN=SECRET)
    done = user.run("/bin/sh", "-c", 'echo "$TOKEN"', flags=flags, env=env)
    assert done.stdout.decode() == f"{SECRET}\n"
    assert SECRET.encode() not in done.stderr + report.read_bytes()
    assert user.run("/bin/sh", "-c", 'echo "$TOKEN"', env=env).stdout == b"\n"


def test_a_secret_that_is_not_set_is_refused(user):
    done = user.run("/bin/true", flags=("--secret", "NOT_SET_ANYWHERE"))
    assert done.returncode == 125
    assert b"NOT_SET_ANYWHERE" in done.stderr


def test_the_report_has_the_documented_fields(user, scratch):
    path = scratch / "report.json"
    done = user.run("/bin/sh", "-c", "exit 3", flags=("--report", str(path)))
    report = json.loads(path.read_text())
    assert done.returncode == 3
    assert report["outcome"]["kind"] == "exited"
    assert report["outcome"]["exit_code"] == 3
    assert report["command"] == ["/bin/sh", "-c", "exit 3"]
    assert isinstance(report["denials"], list)
    assert all(isinstance(value, int) for value in report["usage"].values())
    keys = {"control", "asked", "stated", "mechanism", "status"}
    assert all(keys <= set(held) for held in report["controls"])
    planned = explain(user, "--", "/bin/sh", "-c", "exit 3")["controls"]
    assert [held["control"] for held in report["controls"]] == [h["control"] for h in planned]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (("--", "/bin/sh", "-c", "kill -9 $$"), "signalled", 137),
        (("--", "no-such-program"), "refused", 127),
        (("--secret", "NOT_SET_ANYWHERE", "--", "/bin/true"), "refused", 125),
        (("--max-pids", "many", "--", "/bin/true"), "refused", None),
    ],
)
def test_the_report_names_the_outcome(user, scratch, arguments, kind, code):
    path = scratch / "report.json"
    done = user.corral("run", "--report", str(path), *arguments)
    outcome = json.loads(path.read_text())["outcome"]
    assert outcome["kind"] == kind
    assert outcome["exit_code"] == done.returncode
    assert code in {None, done.returncode}


def test_a_report_is_not_written_through_a_link(user, scratch):
    victim, link = scratch / "victim", scratch / "report.json"
    victim.write_text("precious")
    os.chown(victim, user.uid, user.uid)
    link.symlink_to(victim)
    done = user.run("/bin/echo", "ran", flags=("--report", str(link)))
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"hint: " in done.stderr
    assert victim.read_text() == "precious"


def test_an_unwritable_report_does_not_change_the_exit_code(user):
    done = user.run("/bin/sh", "-c", "exit 4", flags=("--report", "/dev/full"))
    assert done.returncode == 4
    assert b"report could not be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_report_in_a_missing_directory_is_refused_before_the_start(user, scratch):
    done = user.run("/bin/echo", "ran", flags=("--report", str(scratch / "no" / "report")))
    assert (done.returncode, done.stdout) == (125, b"")


BAD = [
    ("run", "--policy", "/no/such/file", "--", "/bin/true"),
    ("run", "--policy", "/", "--", "/bin/true"),
    ("run", "--policy", "/dev/null/x", "--", "/bin/true"),
    ("run", "--policy", "", "--", "/bin/true"),
    ("run", "--max-memory", "lots", "--", "/bin/true"),
    ("run", "--max-memory", "", "--", "/bin/true"),
    ("run", "--max-memory", "-1", "--", "/bin/true"),
    ("run", "--max-cpu", "nan", "--", "/bin/true"),
    ("run", "--timeout", "1e999s", "--", "/bin/true"),
    ("run", "--read", "", "--", "/bin/true"),
    ("run", "--read", "/no/such/path", "--", "/bin/true"),
    ("run", "--write", "/", "--", "/bin/true"),
    ("run", "--write", "/proc/self/mem", "--", "/bin/true"),
    ("run", "--allow-net", "*", "--", "/bin/true"),
    ("run", "--allow-net", "http://x/", "--", "/bin/true"),
    ("run", "--listen", "99999", "--", "/bin/true"),
    ("run", "--env", "=x", "--", "/bin/true"),
    ("run", "--env", "", "--", "/bin/true"),
    ("run", "--report", "", "--", "/bin/true"),
    ("run", "--report", "/", "--", "/bin/true"),
    ("run", "--", ""),
    ("run", "--", "/"),
    ("run", "--", "/etc/passwd"),
    ("run", "--", "/no/such/program"),
    ("run", "--", "./x\udcff"),
    ("run", "--", "a\nb"),
    ("explain", "--", "no-such-program"),
    ("explain", "--read", "/no/such/\udcff", "--", "/bin/true"),
    ("check", "/no/such/file"),
    ("check", "/"),
    ("check", "/bin/true"),
    ("approve", "/no/such/directory"),
    ("\udcff",),
    ("",),
]


@pytest.mark.parametrize(
    "words", BAD, ids=lambda words: " ".join(words).encode(errors="replace").decode()
)
def test_bad_input_is_reported_in_two_lines_without_a_stack_trace(ordinary, words):
    done = ordinary.corral(*words)
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert 1 <= done.returncode <= 127, text
    assert "Traceback" not in text
    assert 'File "' not in text
    if words[0] == "check":
        assert done.stdout  # `check` lists mistakes on stdout
        return
    what, hint = done.stderr.decode(errors="replace").splitlines()
    assert what.startswith("corral: ")
    assert hint.removeprefix("hint: ")
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[", b"version = 2", b"\0", b"version = 1\n" * 2, b"{", b"[]", b"null"],
)
@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_broken_policy_is_reported_without_a_stack_trace(
    ordinary, tmp_path_factory, content, suffix
):
    path = ordinary.home / f"broken.{suffix}"
    path.write_bytes(content)
    path.chmod(0o644)
    done = ordinary.run("/bin/echo", "ran", flags=("--policy", str(path)))
    path.unlink()
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.splitlines()[-1].startswith(b"hint: ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version = 1\n[server\n", "corral.toml:2: not valid TOML: "),
        ("version = 1\nserver = 1\n", "corral.toml:2: server: "),
    ],
)
def test_a_broken_request_is_reported_with_its_place_and_a_hint(user, scratch, text, told):
    path = scratch / "corral.toml"
    path.write_text(text)
    os.chown(path, user.uid, user.uid)
    done = user.corral("run", str(scratch))
    assert (done.returncode, done.stdout) == (125, b"")
    what, hint = done.stderr.decode().splitlines()
    assert what.startswith(f"corral: {scratch}/{told}")
    assert hint.startswith("hint: ")


FEW = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_an_error_of_the_system_is_reported_with_a_hint(ordinary):
    """Make corral run out of descriptors before the target starts."""
    assert ordinary.run("/bin/true").returncode == 0
    argv = [ordinary.python, "-c", FEW, *ordinary.corral_argv("run", "--", "/bin/echo", "ran")]
    process = ordinary.popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (125, b"")
    *_, what, hint = err.decode().splitlines()
    assert what.startswith("corral: ")
    assert what.endswith("Too many open files")
    assert hint == "hint: raise `ulimit -n` where corral is started"


def test_an_unreadable_policy_is_refused(ordinary):
    path = ordinary.home / "unreadable.toml"
    path.write_text("version = 1\n")
    os.chown(path, 0 if os.geteuid() == 0 else -1, -1)
    path.chmod(0)
    done = ordinary.run("/bin/echo", "ran", flags=("--policy", str(path)))
    path.unlink()
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"unreadable.toml" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_removed_directory_gives_no_stack_trace(user, scratch):
    code = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    argv = [user.python, "-c", code, *user.corral_argv("run", "--", "/bin/true")]
    process = user.popen(argv, cwd=scratch, stdout=PIPE, stderr=PIPE)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 125
    assert b"current directory" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize(
    "words", [("doctor",), ("--help",), ("schema",), ("explain", "--", "/bin/true")]
)
def test_a_reader_that_has_ended_is_not_an_error(ordinary, words):
    read, write = os.pipe()
    os.close(read)
    process = ordinary.popen(ordinary.corral_argv(*words), stdin=DEVNULL, stdout=write, stderr=PIPE)
    os.close(write)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("command", ["schema", "doctor"])
def test_a_full_disk_is_reported(ordinary, command):
    with open("/dev/full", "wb") as full:
        process = ordinary.popen(
            ordinary.corral_argv(command), stdin=DEVNULL, stdout=full, stderr=PIPE
        )
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"No space left" in err
    assert b"Traceback" not in err


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_gives_no_stack_trace(ordinary, closed):
    code = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    argv = [ordinary.python, "-c", code, str(closed), *ordinary.corral_argv("doctor")]
    process = ordinary.popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in out + err


def test_characters_that_a_terminal_lacks_give_no_stack_trace(ordinary):
    env = ordinary.environment(PYTHONIOENCODING="ascii")
    done = ordinary.corral("doctor", env=env)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"OS: linux" in done.stdout


def test_colour_is_printed_to_terminals_or_on_request(ordinary):
    def doctor(**extra: str) -> bytes:
        master, slave = os.openpty()
        process = ordinary.popen(
            ordinary.corral_argv("doctor"),
            env=ordinary.environment(**extra),
            stdin=DEVNULL,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        found = b""
        try:
            while chunk := os.read(master, 4096):
                found += chunk
        except OSError:
            pass  # the other end of the terminal is closed
        os.close(master)
        assert process.wait(60) == 0
        return found

    assert b"\x1b[" in doctor()
    assert b"\x1b[" in doctor(NO_COLOR="")  # https://no-color.org: an empty value does not count
    assert b"\x1b[" not in doctor(NO_COLOR="1")
    assert b"\x1b[" not in doctor(TERM="dumb")
    assert b"\x1b[" not in ordinary.corral("doctor").stdout


def memory(user, *flags: str) -> dict | None:
    """Return what `explain` reports about the memory limit, or None if corral refuses the run."""
    done = user.corral("explain", "--json", *flags, "--", "/bin/true")
    if done.returncode:
        assert done.returncode == 125
        return None
    return next(h for h in json.loads(done.stdout)["controls"] if h["control"] == "memory")


def test_a_default_limit_that_cannot_be_enforced_is_a_warning(user, scratch):
    """Check that corral prints such a warning at the first run with an empty cache, as after a
    boot, and then only with -v. The report must always contain the warning.
    """
    path = scratch / "report.json"
    env = user.environment(HOME=str(scratch))
    first, second = (user.run("/bin/echo", "ran", env=env) for _ in range(2))
    verbose = user.run("/bin/echo", "ran", flags=("-v", "--report", str(path)), env=env)
    assert {done.stdout for done in (first, second, verbose)} == {b"ran\n"}
    degraded = memory(user)["status"] == "degraded"
    for done in (first, verbose):
        assert (b"warning: memory is enforced only in part" in done.stderr) == degraded
    assert second.stderr == b""
    warned = [line for line in json.loads(path.read_text())["warnings"] if "memory" in line]
    assert bool(warned) == degraded


def test_the_memory_limit_of_one_process_in_the_warning_is_enforced(user):
    """Check that a process cannot allocate more memory than the default limit, which the warning
    names.
    """
    code = "try: bytearray(1100 << 20)\nexcept MemoryError: print('refused')"
    done = user.run(user.python, "-ISc", code)
    assert done.stdout == b"refused\n" or done.returncode == 137
    # Sanity check: below the limit a process can allocate memory.
    code = "bytearray(600 << 20); print('given')"
    assert user.run(user.python, "-ISc", code).stdout == b"given\n"


def test_a_variable_that_is_not_set_is_a_warning(user):
    flags = ("--env", "NOT_SET_ANYWHERE", "--env", "LANG", "--env", "A=1")
    done = user.run("/bin/true", flags=flags)
    warned = [line for line in done.stderr.decode().splitlines() if "--env" in line]
    assert len(warned) == 1
    assert "--env NOT_SET_ANYWHERE: this variable is not set" in warned[0]


def test_a_run_with_too_few_descriptors_is_refused_with_the_reason(user):
    done = user.run("/bin/true", flags=("--max-fds", "3"))
    assert done.returncode == 125
    assert b"Too many open files" in done.stderr
    assert b"hint: raise `--max-fds` and `ulimit -n`" in done.stderr
    assert user.run("/bin/true", flags=("--max-fds", "64")).returncode == 0


def test_explain_does_not_say_that_a_cpu_share_kills(user):
    done = user.corral("explain", "--json", "--max-cpu", "0.5", "--", "true")
    (held,) = [one for one in json.loads(done.stdout)["controls"] if one["control"] == "cpu"]
    assert "killed" not in held["why"]


def test_strict_turns_a_warning_into_a_refusal(user):
    done = user.run("/bin/echo", "ran", flags=("--strict",))
    if memory(user)["status"] == "degraded":
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"memory" in done.stderr
        assert memory(user, "--strict") is None
    else:
        assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr.decode()


def test_a_requested_limit_is_enforced_or_refused(user):
    held = memory(user, "--max-memory", "64M")
    done = user.run("/bin/echo", "ran", flags=("--max-memory", "64M"))
    if held is None:
        assert (done.returncode, done.stdout) == (125, b"")
        assert b"memory" in done.stderr
    else:
        assert held["status"] in {"verified", "applied", "cooperative"}
        assert held["stated"]
        assert held["asked"] == "64M"
        assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr.decode()


@pytest.fixture
def impossible(user, scratch):
    """Return a function that writes a policy with a limit that this host cannot enforce. The
    function appends its argument to the policy.
    """

    def write(more: str = "") -> tuple[str, str]:
        path = scratch / "policy.toml"
        path.write_text(f'version = 1\n[limits]\nio = "1M"\n{more}')
        path.chmod(0o644)
        return "--policy", str(path)

    if user.run("/bin/true", flags=write()).returncode == 0:
        pytest.skip("this host enforces the io limit")
    return write


def test_a_refusal_names_the_requested_limit_that_the_host_cannot_enforce(user, impossible):
    done = user.run("/bin/echo", "ran", flags=impossible())
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"io" in done.stderr
    assert b"hint: " in done.stderr


def test_best_effort_drops_a_missing_control_with_a_warning(user, impossible):
    done = user.run("/bin/echo", "ran", flags=(*impossible(), "--best-effort"))
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert b"warning: io is not enforced" in done.stderr


def test_a_control_that_the_users_policy_lists_under_degrade_is_dropped_with_a_warning(
    user, impossible
):
    done = user.run("/bin/echo", "ran", flags=impossible('[degrade]\nallow = ["io"]\n'))
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr.decode()
    assert b"warning: io is not enforced" in done.stderr
    done = user.run("/bin/echo", "ran", flags=impossible('[degrade]\nallow = ["cpu"]\n'))
    assert (done.returncode, done.stdout) == (125, b"")


def test_the_schema_is_json(ordinary):
    schema = json.loads(succeeds(ordinary.corral("schema")))
    assert schema["type"] == "object"
