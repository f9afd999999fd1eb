"""The record of denials, and the audit file."""

import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.denials.audit import FIRST, Audit, open_audit, verify
from corral.denials.records import Denials, is_power_of_ten


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, *destinations: str) -> None:
    fd = open_audit(str(path))
    denials = Denials(audit=Audit(fd))
    for destination in destinations:
        denials.add("name", destination, allow=destination)
    denials.close()
    os.close(fd)


def test_equal_denials_are_counted():
    denials = Denials()
    for _ in range(3):
        denials.add("name", "a.example", allow="a.example")
    denials.add("port", "a.example:1", allow="a.example:1")
    assert [(row.kind, row.destination, row.allow, row.count) for row in denials.rows()] == [
        ("name", "a.example", "a.example", 3),
        ("port", "a.example:1", "a.example:1", 1),
    ]
    assert denials.rows()[0].describe() == "network: looked up a.example (3 times)"


def test_what_is_too_much_is_only_counted():
    denials = Denials(max_denials=2)
    for name in ("a", "b", "c", "d", "a"):
        denials.add("name", name, allow=name)
    assert [(row.destination, row.count) for row in denials.rows()] == [("a", 2), ("b", 1)]
    assert denials.lost == 2


def test_texts_are_bounded():
    denials = Denials()
    denials.add("name", "a" * 10_000, allow="b" * 10_000, why="c" * 10_000)
    (row,) = denials.rows()
    assert max(len(row.destination), len(row.allow), len(row.why)) == 300


@given(st.integers(1, 10**7))
def test_powers_of_ten(number):
    assert is_power_of_ten(number) == (number in {10**exponent for exponent in range(8)})


def test_the_audit_of_a_flood_is_short(tmp_path):
    path = tmp_path / "audit"
    write(path, *["a.example"] * 5000, "b.example")
    lines = written(path)
    assert [(line.get("destination"), line.get("count")) for line in lines] == [
        ("a.example", 1), ("a.example", 10), ("a.example", 100), ("a.example", 1000),
        ("b.example", 1), ("a.example", 5000), (None, None),
    ]  # fmt: skip
    assert lines[-1]["kind"] == "end"
    assert verify(str(path)).ended


def test_a_chain_goes_on_in_the_next_run(tmp_path):
    path = tmp_path / "audit"
    write(path, "a.example")
    write(path, "b.example")
    assert written(path)[0]["previous"] == FIRST
    found = verify(str(path))
    assert (found.lines, found.broken, found.ended) == (4, None, True)


@pytest.mark.parametrize("what", ["change", "remove", "insert", "swap", "cut", "first"])
def test_what_was_done_to_a_file_shows(tmp_path, what):
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
def test_another_file_is_not_appended_to(tmp_path, content):
    path = tmp_path / "audit"
    path.write_bytes(content)
    fd = open_audit(str(path))
    with pytest.raises(ValueError, match="audit"):
        Audit(fd)
    os.close(fd)
    assert path.read_bytes() == content
    assert verify(str(path)).broken == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files there")
def test_only_a_plain_file_is_opened(tmp_path):
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


@pytest.mark.skipif(sys.platform == "win32", reason="files are locked otherwise there")
def test_one_run_at_a_time(tmp_path):
    first = open_audit(str(tmp_path / "audit"))
    with pytest.raises(BlockingIOError):
        open_audit(str(tmp_path / "audit"))
    os.close(first)
    os.close(open_audit(str(tmp_path / "audit")))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full stands for a full disk")
def test_a_full_disk_does_not_end_the_run():
    fd = os.open("/dev/full", os.O_RDWR)
    audit = Audit(fd)
    Denials(audit=audit).add("name", "a.example", allow="a.example")
    os.close(fd)
    assert audit.incomplete


@given(st.text(max_size=400))
def test_any_text_is_one_line(text):
    reader, writer = os.pipe()
    audit = Audit.__new__(Audit)
    audit.fd, audit.incomplete, audit._previous = writer, False, FIRST
    Denials(audit=audit).add("name", text, allow=text)
    os.close(writer)
    with open(reader, "rb") as file:
        line = file.read()
    assert line.count(b"\n") == 1
    assert json.loads(line)["destination"] == text[:300]


def test_nothing_is_recorded_after_the_end(tmp_path):
    """A thread of a proxy may still wait for a name when the report is made."""
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
