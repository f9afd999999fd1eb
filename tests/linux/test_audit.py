"""Test `run --audit FILE` and `corral audit verify FILE`.

`run` must record denials in the audit file, and `verify` must detect later changes of this file.
"""

from __future__ import annotations

import fcntl
import json
import os

import pytest

LOOK_UP = """
import socket
for name in sys.argv[1:]:
    try:
        socket.getaddrinfo(name, 80)
    except socket.gaierror:
        pass
"""


@pytest.fixture
def audit(user, scratch):
    """Return an audit file of two runs. In each run, the lookups of two names were denied."""
    file = scratch / "audit"
    for number in (1, 2):
        names = (f"a{number}.test", f"b{number}.test")
        user.inside(LOOK_UP, *names, flags=("--allow-net", "good.test", "--audit", str(file)))
    return file


def verify(user, file, *flags):
    done = user.corral("audit", *flags, "verify", str(file))
    hints = done.stderr.startswith(b"hint: ")
    assert hints == (done.returncode == 1 and "--json" not in flags)
    return done.returncode, done.stdout.decode()


def test_each_run_continues_the_chain_of_audit_records(user, audit):
    rows = [json.loads(line) for line in audit.read_text().splitlines()]
    assert audit.stat().st_mode & 0o777 == 0o600
    assert [row["destination"] for row in rows if row["kind"] == "name" and row["count"] == 1] == [
        "a1.test", "b1.test", "a2.test", "b2.test",
    ]  # fmt: skip
    assert [row["kind"] for row in rows].count("end") == 2
    code, said = verify(user, audit)
    assert (code, "unbroken" in said) == (0, True)
    code, said = verify(user, audit, "--json")
    assert json.loads(said) == {"lines": len(rows), "broken": None, "ended": True}


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0].replace(b"a1.test", b"x1.test"), *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:-1], lines[-1][:-9]],
        lambda lines: [b"\n", *lines],
        lambda lines: [*lines, b"x" * 100000],
        lambda lines: [],
    ],
    ids=[
        "edited",
        "first",
        "removed",
        "swapped",
        "repeated",
        "cut",
        "empty line",
        "garbage",
        "emptied",
    ],
)
def test_a_changed_audit_is_detected(user, audit, change):
    lines = audit.read_bytes().splitlines(keepends=True)
    audit.write_bytes(b"".join(change(lines)))
    code, said = verify(user, audit)
    assert code == 1
    assert (
        "does not match the lines before" in said or "line 1 is not the start of an audit" in said
    )


def test_verify_reports_an_audit_whose_last_line_was_cut_off(user, audit):
    """Cut off the last line, as if the run had been killed. `verify` must accept the other
    lines.
    """
    lines = audit.read_bytes().splitlines(keepends=True)
    audit.write_bytes(b"".join(lines[:-1]))
    code, said = verify(user, audit)
    assert code == 0
    assert "did not write its last line" in said


def test_an_audit_file_that_cannot_be_written_is_refused(user, audit, scratch):
    """Try as the audit file: a symlink, a directory, a missing directory, a device, a file that is
    not an audit, and an audit in use. corral must refuse each before it starts the target.
    """
    link, other = scratch / "link", scratch / "other"
    link.symlink_to(audit)
    other.write_text("not ours\n")
    for path in (link, other):
        os.chown(path, user.owner, user.owner, follow_symlinks=False)
    flags = ("--allow-net", "good.test", "--audit")
    for path in (link, other, scratch, scratch / "missing" / "audit", "/dev/null"):
        done = user.run("/bin/echo", "ran", flags=(*flags, str(path)))
        assert (done.returncode, done.stdout) == (125, b""), path
        assert b"Traceback" not in done.stderr
        assert done.stderr
    assert other.read_text() == "not ours\n"
    with audit.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = user.run("/bin/echo", "ran", flags=(*flags, str(audit)))
        assert (done.returncode, done.stdout) == (125, b"")
    done = user.run("/bin/echo", "ran", flags=(*flags, str(audit)))
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert verify(user, audit)[0] == 0


def test_the_target_cannot_write_its_audit(user, scratch):
    """Put the audit into a granted directory, which corral must refuse. Then put it next to that
    directory, where the target must not see it.
    """
    folder = scratch / "work"
    folder.mkdir()
    os.chown(folder, user.owner, user.owner)
    flags = ("--write", str(folder), "--allow-net", "good.test", "--audit")
    refused = user.run("/bin/true", flags=(*flags, str(folder / "audit")))
    assert refused.returncode == 125
    assert b"contains a file of this run" in refused.stderr
    file = scratch / "audit"
    code = """
import errno
def tried(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
folder, file = sys.argv[1:]
answer = [tried(open, folder + "/control", "w"), tried(open, file, "r+"), tried(os.truncate, file, 0),
          tried(os.unlink, file)]
"""
    held = user.inside(code, str(folder), str(file), flags=(*flags, str(file)))
    assert held == ["done", *["ENOENT"] * 3]
    assert user.outside(code, str(folder), str(file))[1:] == ["done"] * 3


def test_a_killed_run_leaves_whole_lines(user, scratch):
    file = scratch / "audit"
    code = f"import sys\n{LOOK_UP}\nprint('ready', flush=True)\nsys.stdin.read()"
    flags = ("--allow-net", "good.test", "--audit", str(file))
    argv = user.corral_argv("run", *flags, "--", user.python, "-c", code, "a.test", "b.test")
    with user.popen(argv, stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    code, said = verify(user, file, "--json")
    verdict = json.loads(said)
    assert (code, verdict["broken"], verdict["ended"]) == (0, None, False)
    assert {json.loads(line)["destination"] for line in file.read_text().splitlines()} == {
        "a.test",
        "b.test",
    }


def test_verify_does_not_wait_for_the_writer_of_a_fifo(user, audit, scratch):
    os.mkfifo(scratch / "fifo", 0o600)
    os.chown(scratch / "fifo", user.owner, user.owner)
    code, said = verify(user, scratch / "fifo")
    assert code == 1
    assert "line 1 is not the start of an audit" in said
    assert verify(user, audit)[0] == 0  # sanity check


def test_verify_names_a_file_that_it_cannot_read(ordinary):
    done = ordinary.corral("audit", "verify", "/nonexistent")
    assert done.returncode not in {0, 1}
    assert b"cannot read" in done.stderr
    assert ordinary.corral("audit").returncode not in {0, 1}
