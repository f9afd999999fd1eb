"""Test that corral refuses ambiguous Windows paths, and that Windows and corral agree on the
meaning of the paths that corral accepts.
"""

import ntpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.paths import windows

HOME = "C:\\Users\\Ann"
ENVIRONMENT = {
    "SystemRoot": "C:\\Windows",
    "ProgramFiles": "C:\\Program Files",
    "ProgramFiles(x86)": "C:\\Program Files (x86)",
    "ProgramData": "C:\\ProgramData",
    "APPDATA": "C:\\Users\\Ann\\AppData\\Roaming",
    "LOCALAPPDATA": "D:\\Local",
    "PUBLIC": "C:\\Users\\Public",
}
KNOWN = windows.known_directories(ENVIRONMENT, HOME)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "data",
        "\\data",
        "C:",
        "C:data",
        "\\\\server\\share\\data",
        "//server/share/data",
        "\\\\?\\UNC\\server\\share",
        "\\\\.\\C:\\data",
        "\\\\.\\pipe\\x",
        "\\\\?\\GLOBALROOT\\Device\\Harddisk0",
        "\\\\?\\Volume{b75e2c83-0000-0000-0000-602f00000000}\\data",
        "\\??\\C:\\data",
        "C:\\data\\file:stream",
        "C:\\data\\file::$DATA",
        "C:\\data:x\\file",
        "C:\\data\\.",
        "C:\\data\\..\\other",
        "C:\\data.\\x",
        "C:\\data \\x",
        "C:\\data\\x.",
        "C:\\data\\...",
        "C:\\CON",
        "C:\\data\\nul",
        "C:\\data\\nul.txt",
        "C:\\data\\NUL .txt",
        "C:\\data\\com1.log",
        "C:\\data\\COM\u00b9",
        "C:\\data\\conin$",
        "C:\\data\\LPT9.tar.gz",
        "C:\\PROGRA~1\\x",
        "C:\\Users\\LONGNA~1",
        "C:\\data\\a~12.txt",
        "C:\\data\\a*b",
        "C:\\data\\a\0b",
        "C:\\data\\a\nb",
        'C:\\data\\a"b',
        "1:\\data",
        "\u0130:\\data",
    ],
)
def test_ambiguous_paths_are_refused(path):
    with pytest.raises(windows.Refused):
        windows.normalize(path)


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("c:\\data", "C:\\data"),
        ("C:/data//x/", "C:\\data\\x"),
        ("\\\\?\\d:\\data", "D:\\data"),
        ("C:\\", "C:\\"),
        ("C:\\console\\nullable.txt", "C:\\console\\nullable.txt"),
        ("C:\\a b\\.git\\x.y.z", "C:\\a b\\.git\\x.y.z"),
        ("C:\\backup~old", "C:\\backup~old"),
        ("C:\\averylongname~1", "C:\\averylongname~1"),
    ],
)
def test_plain_paths_are_accepted(path, plain):
    assert windows.normalize(path) == plain
    assert windows.normalize(plain) == plain


names = st.text(st.sampled_from("abAB .~1:\\/?*conNUL\u00e9\u0130\u00df"), max_size=24)


@given(names)
def test_windows_reads_an_accepted_path_as_corral_does(name):
    """Compare corral's result with the result of ntpath, which splits paths as Windows does."""
    try:
        plain = windows.normalize("C:\\data\\" + name)
    except windows.Refused:
        return
    assert ntpath.normpath("C:\\data\\" + name) == plain
    assert windows.is_inside(plain, "c:\\DATA")
    assert ":" not in plain[2:]
    assert not any(part[-1:] in {".", " "} for part in plain.split("\\"))


@given(names, names)
def test_no_path_is_inside_a_sibling_with_a_similar_name(one, other):
    try:
        first, second = windows.normalize(f"C:\\d\\{one}"), windows.normalize(f"C:\\d\\{other}")
    except windows.Refused:
        return
    fold = lambda path: "".join(char.upper() if len(char.upper()) == 1 else char for char in path)
    related = ntpath.commonpath((fold(first), fold(second)))
    assert windows.is_inside(first, second) == (related == fold(second))


@pytest.mark.parametrize(
    "path",
    [
        "C:\\",
        "D:\\",
        "C:\\Users",
        "C:\\Users\\Ann",
        "c:\\users\\ANN",
        "C:\\Users\\Bob",
        "C:\\Users\\Public",
        "C:\\Users\\Ann\\AppData",
        "C:\\Users\\Ann\\AppData\\Local",
        "C:\\Users\\Ann\\AppData\\Roaming",
        "C:\\Users\\Ann\\AppData\\Local\\Packages",
        "D:\\Local",
        "C:\\Windows",
        "C:\\Windows\\Temp",
        "C:\\Program Files",
        "C:\\Program Files\\nodejs",
        "C:\\Program Files (x86)\\x",
        "C:\\ProgramData\\x",
    ],
)
def test_roots_that_corral_must_not_change_are_refused(path):
    with pytest.raises(windows.Refused):
        windows.check_root(path, KNOWN)


def test_directories_above_windows_are_refused_too():
    known = windows.known_directories({"SystemRoot": "D:\\sys\\win"}, HOME)
    with pytest.raises(windows.Refused):
        windows.check_root("D:\\sys", known)
    windows.check_root("D:\\other", known)


@pytest.mark.parametrize(
    "path",
    [
        "C:\\Users\\Ann\\notes",
        "C:\\Users\\Ann\\AppData\\Local\\tool\\data",
        "C:\\Users\\Annabel\\x",
        "C:\\WindowsData",
        "C:\\Program Files2",
        "D:\\Localities",
        "D:\\work",
    ],
)
def test_ordinary_directories_are_accepted_as_roots(path):
    windows.check_root(path, KNOWN)


def test_protected_directories_are_found_under_other_names():
    """Name the protected directories by a short name and through a link. corral must find and
    refuse their real paths.
    """
    leads = {"C:\\USERS~1\\ANNXYZ~1\\Local": "E:\\Local", f"{HOME}\\AppData": "E:\\AppData"}
    known = windows.known_directories(
        {"LOCALAPPDATA": "C:\\USERS~1\\ANNXYZ~1\\Local"},
        HOME,
        lambda path: leads.get(path, path),
    )
    for place in leads.values():
        with pytest.raises(windows.Refused, match="it is AppData"):
            windows.check_root(place, known)
    windows.check_root("E:\\Other", known)  # Sanity check: another directory is accepted
