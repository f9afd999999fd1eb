"""Test archives: each kind of malicious archive is refused with its reason, and a similar harmless
archive is unpacked.
"""

from __future__ import annotations

import io
import stat
import struct
import sys
import warnings
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.servers.bundles.archive import ArchiveError, Limits, check_name, extract_archive

SMALL = Limits(max_packed_bytes=1 << 20, max_bytes=1 << 20, max_entries=50)
GOOD = (("manifest.json", b"{}"), ("server/main.py", b"print()"))
END = b"PK\x05\x06"


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    mode = mode or (stat.S_IFDIR | 0o755 if name.endswith("/") else stat.S_IFREG | 0o644)
    made.filename = name  # the constructor of ZipInfo changes some names
    made.external_attr = mode << 16
    made.create_system = 3
    made.compress_type = zipfile.ZIP_DEFLATED
    return made


def archive(*entries: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    held = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(held, "w") as made:
        warnings.simplefilter("ignore")  # some tests write the same name twice
        for one, content in entries:
            made.writestr(entry(one) if isinstance(one, str) else one, content)
    return held.getvalue()


def refusal(data: bytes, tmp_path, limits: Limits = SMALL) -> str:
    """Check that the archive is refused and that nothing was written outside the directory. Return
    the error's message.
    """
    place = tmp_path / "deep" / "place"
    place.mkdir(parents=True)
    with pytest.raises(ArchiveError) as caught:
        extract_archive(io.BytesIO(data), str(place), limits=limits)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["place"]
    return caught.value.message


def test_a_good_archive_is_unpacked_with_its_executable_bits(tmp_path):
    data = archive(*GOOD, (entry("bin/tool", stat.S_IFREG | 0o755), b"#!"), ("empty/", b""))
    extract_archive(io.BytesIO(data), str(tmp_path), limits=SMALL)
    assert (tmp_path / "server" / "main.py").read_bytes() == b"print()"
    if sys.platform != "win32":  # Windows has no executable bits
        assert (tmp_path / "bin" / "tool").stat().st_mode & 0o111
    assert not (tmp_path / "manifest.json").stat().st_mode & 0o111
    assert (tmp_path / "empty").is_dir()


NAMES = {
    "../out": "leads out of",
    "a/../../out": "leads out of",
    "a/..": "leads out of",
    "/etc/passwd": "absolute path",
    "\\\\host\\share": "absolute path",
    "a\\..\\b": "backslash",
    "C:/windows": "drive or a stream",
    "file.txt:stream": "drive or a stream",
    "a//b": "a part that is empty or ends in a dot or a space",
    "./a": "a part that is empty or ends in a dot or a space",
    "a/.": "a part that is empty or ends in a dot or a space",
    "name.": "a part that is empty or ends in a dot or a space",
    "name ": "a part that is empty or ends in a dot or a space",
    "": "a part that is empty or ends in a dot or a space",
    "a\nb": "cannot be printed",
    "a\u202eb": "cannot be printed",
    "con": "Windows",
    "a/NUL.txt": "Windows",
    "lpt1.log": "Windows",
    "what?": "Windows",
    "n" * 256: "too long",
    "a/" * 41 + "b": "too long",
}


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_lead_out_of_the_archive_are_refused(name, tmp_path):
    assert NAMES[name] in refusal(archive(*GOOD, (name, b"x")), tmp_path)


def test_a_name_with_a_nul_is_refused(tmp_path):
    """Refuse a name that contains a NUL. For some parsers, such as Python's, the name ends at the
    NUL, and for others it does not.
    """
    data = archive(*GOOD, ("good.txtX..evil", b"x")).replace(b"good.txtX", b"good.txt\0")
    assert "cannot be printed" in refusal(data, tmp_path)


KINDS = {
    stat.S_IFLNK | 0o777: "is a link",
    stat.S_IFCHR | 0o666: "is a device",
    stat.S_IFBLK | 0o666: "is a device",
    stat.S_IFIFO | 0o666: "is a device, a pipe",
    stat.S_IFSOCK | 0o666: "socket",
    stat.S_IFDIR | 0o755: "is declared as a file and as a directory",
}


@pytest.mark.parametrize("mode", KINDS, ids=oct)
def test_entries_other_than_files_and_directories_are_refused(mode, tmp_path):
    assert KINDS[mode] in refusal(archive(*GOOD, (entry("odd", mode), b"/etc/passwd")), tmp_path)


def test_a_directory_entry_that_contains_data_is_refused(tmp_path):
    assert "with content" in refusal(archive(*GOOD, ("odd/", b"x")), tmp_path)


TWICE = [
    ("a.py", "a.py"),
    ("a.py", "A.PY"),
    ("caf\u00e9", "cafe\u0301"),
    ("ﬁle", "file"),
    ("stra\u00dfe", "STRASSE"),
    ("d/", "D/"),
    ("d/a", "D"),
    ("d", "D/a"),
]


@pytest.mark.parametrize(("first", "second"), TWICE, ids=repr)
def test_two_names_for_one_file_are_refused(first, second, tmp_path):
    data = archive(
        *((name, b"" if name.endswith("/") else name.encode()) for name in (first, second))
    )
    said = refusal(data, tmp_path)
    assert "occurs twice" in said or "is below a file" in said


def test_a_directory_may_be_listed_after_its_files(tmp_path):
    """List a directory after one of its files, as some zip tools do. corral must accept this
    archive.
    """
    extract_archive(io.BytesIO(archive(("d/a", b"1"), ("d/", b""), ("d/b", b"2"))), str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["a", "b"]


def test_an_archive_beyond_the_limits_is_refused_before_anything_is_written(tmp_path):
    data = archive(*GOOD, ("zeros", bytes(SMALL.max_bytes + 1)))
    assert len(data) < 10_000
    assert "unpacks to more than" in refusal(data, tmp_path)
    assert list((tmp_path / "deep" / "place").iterdir()) == []


def test_a_stated_size_of_four_gigabytes_is_refused(tmp_path):
    """Declare a size of four gigabytes for an entry of a few bytes. corral must refuse the archive
    before anything is unpacked.
    """
    data = bytearray(archive(("zeros", bytes(1000))))
    central = data.index(b"PK\x01\x02")
    data[central + 24 : central + 28] = struct.pack("<I", 0xFFFFFFF0)
    assert "unpacks to more than" in refusal(bytes(data), tmp_path, Limits())


def test_a_false_size_is_found_while_unpacking(tmp_path):
    """Declare a size of 5 bytes for an entry of half a megabyte. corral must stop after 5 bytes and
    find that the checksum is wrong.
    """
    data = bytearray(archive(("zeros", bytes(1 << 19))))
    for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(mark) + at
        data[place : place + 4] = struct.pack("<I", 5)
    assert "damaged" in refusal(bytes(data), tmp_path)
    written = [path for path in (tmp_path / "deep" / "place").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in written) <= 1 << 16


def test_an_entry_shorter_than_its_size_is_refused(tmp_path):
    """Declare a size that is one byte larger than the entry. The checksum still matches, so only
    the size shows that the entry is too short.
    """
    data = bytearray(archive(("short", b"12345678")))
    for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = data.index(mark) + at
        data[place : place + 4] = struct.pack("<I", 9)
    assert "shorter than declared" in refusal(bytes(data), tmp_path)


def test_too_many_entries_are_refused(tmp_path):
    data = archive(*((f"f{at}", b"") for at in range(SMALL.max_entries + 1)))
    assert "more than 50 files and directories" in refusal(data, tmp_path)
    # Sanity check: the default limits allow this archive.
    extract_archive(io.BytesIO(data), str(tmp_path / "deep" / "place"))


@pytest.mark.parametrize("depth", [4, 5])
def test_directories_that_are_not_listed_count_as_entries(depth, tmp_path):
    """Unpack ten files, each in its own nested directories. The archive lists only the files, but
    the directories must count as entries too.
    """
    data = archive(*((f"{at}/" + "d/" * (depth - 2) + "f", b"") for at in range(10)), ("g", b""))
    if depth == 4:
        extract_archive(io.BytesIO(data), str(tmp_path), limits=SMALL)
        assert (tmp_path / "9" / "d" / "d" / "f").is_file()
    else:
        assert "more than 50 files and directories" in refusal(data, tmp_path)
        assert not list((tmp_path / "deep" / "place").iterdir())


def test_a_list_of_entries_beyond_its_limit_is_refused(tmp_path):
    data = archive(*GOOD)
    size = struct.unpack("<I", data[-10:-6])[0]
    extract_archive(io.BytesIO(data), str(tmp_path), limits=Limits(max_list_bytes=size))
    assert "list of entries is larger" in refusal(
        data, tmp_path / "other", Limits(max_list_bytes=size - 1)
    )


def test_the_entries_are_counted_before_zipfile_reads_them(tmp_path, monkeypatch):
    """Declare one entry in an archive with a long list of entries. corral must refuse the archive
    before zipfile makes an object for each entry.
    """
    data = archive(*((f"f{at}", b"") for at in range(40)))
    monkeypatch.setattr(zipfile, "ZipFile", None)
    lying = data.replace(struct.pack("<HH", 40, 40), struct.pack("<HH", 1, 1))
    assert lying != data
    assert "in two ways" in refusal(lying, tmp_path)


def test_a_name_that_becomes_long_when_it_is_folded_is_refused(tmp_path):
    for count, folder in ((50, "short"), (60, "long")):
        data = archive(("\ufdfa" * count, b""))
        place = tmp_path / folder
        place.mkdir()
        if folder == "short":
            extract_archive(io.BytesIO(data), str(place), limits=SMALL)
            assert len(list(place.iterdir())) == 1
        else:
            assert "is too long" in refusal(data, place)


def test_a_large_archive_is_refused(tmp_path):
    data = archive((zipfile.ZipInfo("stored"), bytes(2 << 20)))
    assert "larger than 1 MiB" in refusal(data, tmp_path)


def test_encrypted_entries_are_refused(tmp_path):
    data = bytearray(archive(*GOOD))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    assert "is encrypted" in refusal(bytes(data), tmp_path)


def test_unusual_compression_is_refused(tmp_path):
    odd = entry("odd")
    odd.compress_type = zipfile.ZIP_LZMA
    assert "unsupported compression method" in refusal(archive((odd, b"x" * 100)), tmp_path)


def test_data_before_the_archive_is_refused(tmp_path):
    assert "before the archive" in refusal(b"#!/bin/sh\n" + archive(*GOOD), tmp_path)


def test_data_before_the_archive_with_matching_offsets_is_refused(tmp_path):
    held = io.BytesIO()
    held.write(b"#!/bin/sh\nexit\n")
    with zipfile.ZipFile(held, "a") as made:
        made.writestr(entry("manifest.json"), b"{}")
    assert "before the archive" in refusal(held.getvalue(), tmp_path)


def test_data_after_the_archive_is_refused(tmp_path):
    assert "after the end" in refusal(archive(*GOOD) + b"more", tmp_path)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        made.writestr(entry("manifest.json"), b"{}")
        made.comment = b"hello"
    with pytest.raises(ArchiveError, match="after the end"):
        extract_archive(held, str(tmp_path / "deep" / "place"))


@pytest.mark.parametrize("declared", [False, True], ids=["appended", "as a comment"])
def test_a_signed_bundle_is_unpacked(declared, tmp_path):
    """Unpack bundles with both forms of a signature. `mcpb sign` appends a block to the archive.
    Newer versions of mcpb also declare this block as the archive's comment.
    """
    block = b"MCPB_SIG_V1" + (4).to_bytes(4, "little") + b"\x30\x82..MCPB_SIG_END"
    data = bytearray(archive(*GOOD))
    if declared:
        data[-2:] = len(block).to_bytes(2, "little")
    extract_archive(io.BytesIO(bytes(data) + block), str(tmp_path))
    assert (tmp_path / "manifest.json").exists()


def test_overlapping_entries_are_refused(tmp_path):
    """Make two entries share the same bytes, as in a zip bomb or in an archive that two parsers
    read differently.
    """
    data = archive(("first", b"1" * 100), ("other", b"2" * 100))
    start = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", start + 4)
    moved = bytearray(data)
    moved[second + 42 : second + 46] = struct.pack("<I", 0)
    said = refusal(bytes(moved), tmp_path)
    assert "overlaps" in said or "Overlapped" in said


def test_an_entry_at_another_place_than_listed_is_refused(tmp_path):
    data = bytearray(archive(*GOOD))
    data[data.index(b"PK\x03\x04", 4) + 2] = 9
    assert "is not where the list of entries says" in refusal(bytes(data), tmp_path)


def test_an_entry_that_overlaps_the_list_is_refused(tmp_path):
    """Declare a size so large that the entry's data overlaps the archive's central directory."""
    info = entry("stored")
    info.compress_type = zipfile.ZIP_STORED
    data = bytearray(archive((info, b"12345678")))
    central = data.index(b"PK\x01\x02")
    for place in (central + 20, central + 24):
        data[place : place + 4] = struct.pack("<I", 20)
    said = refusal(bytes(data), tmp_path)
    assert "overlaps the list" in said or "Overlapped" in said


def test_an_archive_in_parts_is_refused(tmp_path):
    data = bytearray(archive(*GOOD))
    data[data.rindex(END) + 4] = 1
    assert "split into several files" in refusal(bytes(data), tmp_path)


def test_an_archive_with_more_entries_than_it_states_is_refused(tmp_path):
    """Declare one entry in an archive that has two. Parsers that trust the declared number see one
    entry, and parsers that use the length of the central directory see two.
    """
    data = bytearray(archive(*GOOD))
    end = data.rindex(END)
    data[end + 8 : end + 12] = struct.pack("<HH", 1, 1)
    assert "in two ways" in refusal(bytes(data), tmp_path)


def test_a_name_that_is_not_text_is_refused(tmp_path):
    data = bytearray(archive(("n\u00e4me", b"x")))
    damaged = bytes(data).replace("n\u00e4me".encode(), b"n\xff\xffme")
    assert "cannot be read" in refusal(damaged, tmp_path)


def test_an_entry_with_two_names_is_refused(tmp_path):
    """Give an entry two names. Some parsers read the name in the central directory, and others read
    the name in the header before the data.
    """
    data = archive(*GOOD)
    at = data.index(b"server/main.py")
    said = refusal(data[:at] + b"server/evil.py" + data[at + 14 :], tmp_path)
    assert "a different name in its own header" in said


def test_an_end_record_that_hides_another_list_is_refused(tmp_path):
    """Write two complete archives one after the other. Some parsers read the first one, and others
    the second one.
    """
    assert "before the archive" in refusal(archive(("a", b"1")) + archive(*GOOD), tmp_path)


@pytest.mark.parametrize("data", [b"", b"PK", b"no archive at all", END, END + bytes(17)], ids=repr)
def test_invalid_archives_are_refused(data, tmp_path):
    assert "not a zip archive" in refusal(data, tmp_path)


@pytest.mark.parametrize("field", ["count", "offset"])
def test_zip64_archives_are_refused(field, tmp_path):
    data = bytearray(archive(*GOOD))
    end = data.rindex(END)
    if field == "count":
        data[end + 8 : end + 12] = b"\xff\xff\xff\xff"
    else:
        data[end + 16 : end + 20] = b"\xff\xff\xff\xff"
    assert "zip64" in refusal(bytes(data), tmp_path)


@given(
    at=st.integers(min_value=0, max_value=len(archive(*GOOD)) - 1),
    value=st.integers(min_value=0, max_value=255),
)
def test_a_damaged_archive_is_refused_or_harmless(at, value, tmp_path_factory):
    """Change one random byte of an archive. The archive must be unpacked inside its directory, or
    refused with an ArchiveError.
    """
    data = bytearray(archive(*GOOD))
    data[at] = value
    place = tmp_path_factory.mktemp("damage")
    (place / "in").mkdir()
    try:
        extract_archive(io.BytesIO(bytes(data)), str(place / "in"), limits=SMALL)
    except ArchiveError:
        pass
    assert [path.name for path in place.iterdir()] == ["in"]


@given(st.text(max_size=30))
def test_an_accepted_name_cannot_lead_out_of_the_archive(name):
    try:
        check_name(name)
    except ArchiveError:
        return
    parts = name.split("/")
    assert ".." not in parts
    assert not name.startswith("/")
    assert not set(name) & {"\\", ":", "\0"}


LISTED = "<4s4B4HL2L5H2L"
HIDDEN = 1000


def listed(comment: bytes = b"") -> bytes:
    # The fields are the CRC, two sizes, three lengths (name, extra field, comment), the disk's
    # number, two fields of attributes, and the offset.
    sizes = (
        0,
        0,
        0,
        1,
        0,
        len(comment),
        0,
        0,
        0,
        0,
    )
    return struct.pack(LISTED, b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, *sizes) + b"a" + comment


def lying() -> bytes:
    """Return an archive with two lists of entries. The end record refers to a list with one entry.
    This entry's comment contains a zip64 record, which refers to a hidden list with many entries.
    zipfile looks at the zip64 record first.
    """
    file = struct.pack("<4s5HLLLHH", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    hidden = listed() * HIDDEN
    at = len(file) + len(hidden)
    here, start = at + len(listed()), len(file) + len(listed())
    record = struct.pack(
        "<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, HIDDEN, HIDDEN, len(hidden), start
    )
    comment = record + struct.pack("<4sLQL", b"PK\6\7", 0, here, 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(listed(comment)), at, 0)
    return file + hidden + listed(comment) + end


def test_a_hidden_zip64_list_is_refused_before_zipfile_reads_it(tmp_path, monkeypatch):
    # Sanity check: zipfile itself reads the hidden list.
    with zipfile.ZipFile(io.BytesIO(lying())) as archive:
        assert len(archive.infolist()) == HIDDEN
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "zip64" in refusal(lying(), tmp_path, Limits())
