"""Test how denials are recorded, and how the audit file is written."""

import json
import os
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.denials.audit import FIRST, Audit, open_audit, verify
from corral.denials.records import Denials, allow_net, is_power_of_ten


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, *destinations: str) -> None:
    fd = open_audit(str(path))
    denials = Denials(audit=Audit(fd))
    for destination in destinations:
        denials.add("name", destination, allow=destination)
    denials.close()
    os.close(fd)


def hide(text: str, secret: str) -> tuple[str, str]:
    return text.replace(secret, "***"), "PASSWORD" if secret in text else ""


def test_equal_denials_are_counted():
    denials = Denials()
    for _ in range(3):
        denials.add("name", "a.example", allow="a.example")
    denials.add("port", "a.example:1", allow="a.example:1")
    assert [(row.kind, row.destination, row.allow, row.count) for row in denials.rows()] == [
        ("name", "a.example", "a.example", 3),
        ("port", "a.example:1", "a.example:1", 1),
    ]
    assert denials.rows()[0].describe() == "denied: name a.example (3 times); a.example"


def test_a_flag_that_is_too_long_is_left_out():
    """Check that a long flag is left out instead of shortened. A shortened flag would allow a
    different path, or end in the middle of a quoted word.
    """
    denials = Denials()
    for name in ("a b" * 50, "a b" * 200):
        denials.add("path", f"/{name}", allow=f"--write {shlex.quote(f'/{name}')}")
    whole, cut = denials.rows()
    assert shlex.split(whole.allow) == ["--write", whole.destination]
    assert (cut.allow, len(cut.destination)) == ("", 300)


def test_denials_beyond_the_limit_are_counted_but_not_kept():
    denials = Denials(max_denials=2)
    for name in ("a", "b", "c", "d", "a"):
        denials.add("name", name, allow=name)
    assert [(row.destination, row.count) for row in denials.rows()] == [("a", 2), ("b", 1)]
    assert denials.lost == 2


def test_each_denial_is_announced_once_up_to_twenty():
    said: list[str] = []
    denials = Denials(announce=said.append)
    for number in range(30):
        denials.add("name", f"{number}.example", allow=allow_net(f"{number}.example"))
        denials.add("name", "0.example", allow=allow_net("0.example"))
    assert said[0] == "denied: name 0.example; --allow-net 0.example"
    assert said[20] == "further denials are listed only in the --report file"
    assert len(said) == 21
    assert len(denials.rows()) == 30


def test_a_denial_with_a_guessed_cause_is_marked_and_names_a_flag():
    denials = Denials()
    denials.add("start", "git", allow="--allow-subprocess", guessed=True)
    (row,) = denials.rows()
    assert row.guessed
    assert row.describe() == "denied: start of git; --allow-subprocess"


def test_a_flag_is_quoted_as_one_word_for_a_shell():
    assert allow_net("") == ""
    assert shlex.split(allow_net("[::1]:80")) == ["--allow-net", "[::1]:80"]


@pytest.mark.parametrize(("name", "whole"), [("x" * 300, False), ("hunter2", False), ("x", True)])
def test_a_command_in_a_reason_is_whole_or_left_out(name, whole):
    """Add denials whose reason contains a command with a path. If the path is too long or contains
    a secret, corral would print another path, so the reason must leave the command out. With an
    ordinary path, the command is kept.
    """
    denials = Denials()
    denials.hide_secrets(lambda: lambda text: hide(text, "hunter2"))
    denials.add("own_files", name, why=f"read-only; first `touch /srv/{name}`")
    [row] = denials.rows()
    reason = f"read-only; first `touch /srv/{name}`" if whole else "read-only"
    assert row.why.removesuffix(", with the value of PASSWORD") == reason


def test_long_texts_of_a_denial_are_cut_and_a_long_flag_is_left_out():
    denials = Denials()
    denials.add("name", "a" * 10_000, allow="b" * 10_000, why="c" * 10_000)
    (row,) = denials.rows()
    assert max(len(row.destination), len(row.why)) == 300
    assert row.allow == ""  # a shortened flag would allow a different path


def test_a_path_with_odd_characters_is_quoted():
    denials = Denials()
    denials.add("path", "/a (learned); --read /b", why="secret")
    (row,) = denials.rows()
    assert row.describe() == "denied: access to '/a (learned); --read /b' (secret)"


@given(st.integers(1, 10**7))
def test_powers_of_ten_are_recognized(number):
    assert is_power_of_ten(number) == (number in {10**exponent for exponent in range(8)})


def test_the_audit_of_many_denials_is_short(tmp_path):
    path = tmp_path / "audit"
    write(path, *["a.example"] * 5000, "b.example")
    lines = written(path)
    assert [(line.get("destination"), line.get("count")) for line in lines] == [
        ("a.example", 1), ("a.example", 10), ("a.example", 100), ("a.example", 1000),
        ("b.example", 1), ("a.example", 5000), (None, None),
    ]  # fmt: skip
    assert lines[-1]["kind"] == "end"
    assert verify(str(path)).ended


def test_the_next_run_continues_the_chain(tmp_path):
    path = tmp_path / "audit"
    write(path, "a.example")
    write(path, "b.example")
    assert written(path)[0]["previous"] == FIRST
    found = verify(str(path))
    assert (found.lines, found.broken, found.ended) == (4, None, True)


@pytest.mark.parametrize("what", ["change", "remove", "insert", "swap", "cut", "first"])
def test_verification_finds_changes_of_an_audit_file(tmp_path, what):
    path = tmp_path / "audit"
    write(path, "a.example", "b.example", "c.example")
    assert verify(str(path)).broken is None
    lines = path.read_bytes().splitlines(keepends=True)
    match what:
        case "change":
            lines[1] = lines[1].replace(b"b.example", b"x.example")
        case "remove":
            del lines[1]
        case "insert":
            lines.insert(1, lines[0])
        case "swap":
            lines[1], lines[2] = lines[2], lines[1]
        case "cut":
            lines[3] = lines[3][:-5]
        case "first":
            del lines[0]
    path.write_bytes(b"".join(lines))
    assert verify(str(path)).broken is not None


def test_a_run_that_was_killed_has_no_last_line(tmp_path):
    path = tmp_path / "audit"
    fd = open_audit(str(path))
    Denials(audit=Audit(fd)).add("name", "a.example", allow="a.example")
    os.close(fd)
    found = verify(str(path))
    assert (found.lines, found.broken, found.ended) == (1, None, False)


@pytest.mark.parametrize(
    "content", [b"text\n", b'{"previous": 1}\n', b'{"previous": "0"}', b"[]\n", b"\n", b"[" * 9000]
)
def test_a_file_that_is_not_an_audit_is_not_appended_to(tmp_path, content):
    path = tmp_path / "audit"
    path.write_bytes(content)
    fd = open_audit(str(path))
    with pytest.raises(ValueError, match="audit"):
        Audit(fd)
    os.close(fd)
    assert path.read_bytes() == content
    assert verify(str(path)).broken == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_only_a_regular_file_is_opened(tmp_path):
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "."):
        with pytest.raises(OSError):
            open_audit(str(tmp_path / name))
    fd = open_audit(str(tmp_path / "new"))
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks files differently")
def test_a_second_run_cannot_open_the_same_audit_file(tmp_path):
    first = open_audit(str(tmp_path / "audit"))
    with pytest.raises(BlockingIOError):
        open_audit(str(tmp_path / "audit"))
    os.close(first)
    os.close(open_audit(str(tmp_path / "audit")))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_does_not_end_the_run():
    fd = os.open("/dev/full", os.O_RDWR)
    audit = Audit(fd)
    Denials(audit=audit).add("name", "a.example", allow="a.example")
    os.close(fd)
    assert audit.incomplete


@given(st.text(max_size=400))
def test_any_text_becomes_one_line(text):
    reader, writer = os.pipe()
    audit = Audit.__new__(Audit)
    audit.fd, audit.incomplete, audit._previous = writer, False, FIRST
    Denials(audit=audit).add("name", text, allow=text)
    os.close(writer)
    with open(reader, "rb") as file:
        line = file.read()
    assert line.count(b"\n") == 1
    assert json.loads(line)["destination"] == text[:300]


def test_denials_after_the_report_was_made_are_not_recorded(tmp_path):
    """Add a denial after the report was made. This happens if a proxy's name lookup is slow."""
    path = tmp_path / "audit"
    fd = open_audit(str(path))
    denials = Denials(audit=Audit(fd))
    denials.add("name", "a.example", allow="a.example")
    denials.close()
    denials.add("name", "late.example", allow="late.example")
    denials.close()
    os.close(fd)
    assert [row.destination for row in denials.rows()] == ["a.example"]
    assert [row["kind"] for row in written(path)] == ["name", "end"]


@pytest.mark.parametrize("kind", ["start", "own_files", "unix_socket", "tool", "request"])
def test_a_destination_cannot_look_like_a_suggested_flag(kind):
    denials = Denials()
    denials.add(kind, "git; --write ~")
    denials.add(kind, "git (granted since)")
    denials.add(kind, "git")
    first, second, plain = [row.describe() for row in denials.rows()]
    assert first.endswith(" 'git; --write ~'")
    assert second.endswith(" 'git (granted since)'")
    assert plain.endswith(" git")
