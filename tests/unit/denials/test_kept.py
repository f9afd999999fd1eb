"""Check that stored denials are private and limited in number, and that each belongs to the right
server.
"""

import os

import pytest

from corral.denials import kept
from corral.denials.records import Denial
from corral.denials.server_id import ServerId
from corral.policy.server_identity import identify_command

COMMAND = identify_command(("npm:notes", "--x"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name in ("XDG_STATE_HOME", "LOCALAPPDATA", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def denial(name, count=1):
    return Denial(kind="name", destination=name, allow=f"--allow-net {name}", count=count)


def seen(name, time, count=1):
    return kept.SeenDenial(denial=denial(name, count), time=time)


def test_kept_denials_are_counted_across_runs():
    kept.keep(COMMAND, [denial("a", 2)], 1.0)
    kept.keep(COMMAND, [denial("a"), denial("b")], 2.0)
    kept.keep(identify_command(("other",)), [denial("c")], 3.0)
    runs = kept.load_server(COMMAND)
    assert [run.time for run in runs] == [1, 2]
    assert kept.merge(runs) == (seen("a", 2, 3), seen("b", 2))
    assert len(kept.load_all()) == 3


def test_a_run_without_denials_is_stored_only_after_a_run_with_denials():
    kept.keep(COMMAND, [], 1.0)
    assert kept.load_all() == []
    kept.keep(COMMAND, [denial("a")], 2.0)
    kept.keep(COMMAND, [], 3.0)
    assert [run.time for run in kept.load_server(COMMAND)] == [2, 3]


def test_a_failed_run_is_stored_without_denials():
    kept.keep(COMMAND, [], 1.0, failure="it ended with exit code 1")
    kept.keep(COMMAND, [], 2.0, failure="it ended with exit code 2")
    kept.keep(identify_command(("other",)), [], 3.0)
    [run] = kept.load_all()  # corral keeps only the last run without denials
    assert (run.server, run.time, run.failure) == (COMMAND, 2, "it ended with exit code 2")


def test_a_run_without_denials_does_not_hide_earlier_denials():
    kept.keep(COMMAND, [denial(str(at)) for at in range(kept.MAX_DENIALS)], 1.0)
    for second in range(2, kept.MAX_LINES + 50):
        kept.keep(COMMAND, [], float(second))
    found = kept.merge(kept.load_server(COMMAND))
    assert len(found) == kept.MAX_DENIALS
    assert {one.time for one in found} == {1}
    # corral keeps the run with denials, and only the last of the many runs without denials.
    assert len(kept.load_server(COMMAND)) == 2


def test_a_later_run_with_a_flag_removes_only_the_denials_that_the_flag_allows():
    def allows(denial, flags):
        return denial.allow.split() == list(flags)

    kept.keep(COMMAND, [denial("a"), denial("b")], 1.0)
    kept.keep(COMMAND, [], 2.0, ["--allow-net", "a"])
    kept.keep(COMMAND, [], 3.0)
    assert kept.merge(kept.load_server(COMMAND), allows) == (seen("b", 1),)
    kept.keep(COMMAND, [denial("a")], 4.0)  # this run was started without `--allow-net a`
    assert kept.merge(kept.load_server(COMMAND), allows) == (seen("b", 1), seen("a", 4))


def test_old_denials_are_removed():
    kept.keep(COMMAND, [denial("a")], 1.0)
    kept.keep(COMMAND, [denial("b")], 1000.0)
    kept.keep(COMMAND, [], kept.MAX_AGE_SECONDS + 500.0)
    assert kept.merge(kept.load_server(COMMAND)) == (seen("b", 1000),)


def test_a_denial_is_kept_before_the_run_ends(home):
    live = kept.LiveRun(COMMAND)
    live.add(denial("a"), 5.0)
    live.add(denial("b"), 6.0)
    [file] = home.rglob("*.jsonl")
    assert [run.time for run in kept.load_server(COMMAND)] == [5]
    assert kept.merge(kept.load_server(COMMAND)) == (seen("a", 5), seen("b", 5))
    with file.open("a") as text:
        text.write('{"kind": "na')  # as if the writer had been killed in the middle of a line
    assert kept.merge(kept.load_server(COMMAND)) == (seen("a", 5), seen("b", 5))
    live.end([denial("a", 7), denial("b")], 9.0)
    assert [run.time for run in kept.load_server(COMMAND)] == [9]
    assert kept.merge(kept.load_server(COMMAND)) == (seen("a", 9, 7), seen("b", 9))


def test_the_number_of_stored_denials_of_a_live_run_is_limited():
    live = kept.LiveRun(COMMAND)
    for number in range(kept.MAX_DENIALS + 50):
        live.add(denial(f"n{number}"), 1.0)
    assert len(kept.load_server(COMMAND)[0].denials) == kept.MAX_DENIALS


def test_the_oldest_runs_are_removed_first():
    for second in range(40):
        kept.keep(COMMAND, [denial(f"{second}-{at}") for at in range(20)], float(second + 1))
    runs = kept.load_server(COMMAND)
    assert runs[-1].time == 40
    assert kept.MAX_LINES - 21 < sum(1 + len(run.denials) for run in runs) <= kept.MAX_LINES
    kept.keep(COMMAND, [denial(str(at)) for at in range(1000)], 50.0)
    assert len(kept.load_server(COMMAND)[-1].denials) == kept.MAX_DENIALS


def test_the_oldest_servers_are_removed_first(monkeypatch):
    monkeypatch.setattr(kept, "MAX_SERVERS", 3)
    for number in range(5):
        server = identify_command((f"server-{number}",))
        kept.keep(server, [denial("a")], float(number + 1))
        os.utime(kept.kept_directory(server), (number, number))
    left = [run.server.command[0] for run in kept.load_all()]
    assert left == ["server-2", "server-3", "server-4"]


def test_secrets_in_the_command_are_masked(home):
    server = identify_command(("python3", "s.py", "--token", "hunter2"))
    kept.keep(server, [denial("a")], 1.0)
    [file] = home.rglob("*.jsonl")
    assert "hunter2" not in f"{file} {file.read_text()}"
    assert kept.load_server(server)


def test_servers_that_differ_only_in_their_secrets_do_not_share_denials():
    one, other = (identify_command(("s.py", "--token", word)) for word in ("hunter2", "hunter3"))
    assert one.command == other.command
    kept.keep(one, [denial("a")], 1.0)
    assert kept.load_server(other) == []
    kept.keep(other, [denial("b")], 2.0)
    assert kept.merge(kept.load_server(one)) == (seen("a", 1),)
    assert kept.merge(kept.load_server(other)) == (seen("b", 2),)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_files_of_other_users_and_broken_files_are_not_read(home):
    kept.keep(COMMAND, [denial("a")], 1.0)
    [file] = home.rglob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600
    for name, text in (("2-1.jsonl", "{"), ("3-1.jsonl", '{"command": 3}\n'), ("4-1.jsonl", "")):
        (file.parent / name).write_text(text)
        (file.parent / name).chmod(0o600)
    (file.parent / "5-1.jsonl").symlink_to(file)
    assert len(kept.load_server(COMMAND)) == 1
    file.parent.chmod(0o755)
    assert kept.load_server(COMMAND) == []
    kept.keep(COMMAND, [denial("b")], 6.0)
    file.parent.chmod(0o700)
    assert len(kept.load_server(COMMAND)) == 1


def test_placeholders_of_a_client_match_any_word():
    kept.keep(identify_command(("s.py", "/home/me/project")), [denial("a")], 1.0)
    assert kept.load_server(identify_command(("s.py", "${workspaceFolder}")))
    assert not kept.load_server(identify_command(("s.py", "${workspaceFolder}", "more")))


@pytest.mark.parametrize("secret", ["--token=${TOKEN}", "https://me:${WORD}@host.test/"])
def test_a_placeholder_in_place_of_a_secret_matches_the_secret(secret):
    run = secret.replace("${TOKEN}", "hunter2").replace("${WORD}", "hunter2")
    kept.keep(identify_command(("s.py", run)), [denial("a")], 1.0)
    assert kept.load_server(identify_command(("s.py", secret)))
    assert not kept.load_server(identify_command(("s.py", "--other=${TOKEN}", "more")))


@pytest.mark.parametrize(
    ("wanted", "started", "others"),
    [
        ("${userHome}/notes.py", "{home}/notes.py", ("/other.py", "/x{home}/notes.py", "x")),
        ("${env:HOME}/a*[b].py", "{home}/a*[b].py", ("{home}/a1b.py", "{home}/ab.py")),
        ("${workspaceFolder}/server.py", "/shop/server.py", ("/shop/other.py", "/server.py2")),
        ("--at=${input:a}/${input:b}.db", "--at=x/y.db", ("--at=x", "-at=x/y.db")),
        ("${A:-${B}}/x", "/c/x", ("/c/xx",)),
        ("sk-${input:key}", "***", ("***x",)),
        ("${input:any}", "anything", ()),
    ],
)
def test_a_command_with_variables_is_only_matched_by_words_with_its_other_text(
    home, wanted, started, others
):
    configured = identify_command(("python3", wanted))

    def is_started(word):
        ran = ServerId(digest="1", command=("python3", word.replace("{home}", str(home))))
        return ran.is_started_by(configured)

    assert is_started(started)
    assert [word for word in others if is_started(word)] == []
