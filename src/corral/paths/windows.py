"""Names of files on Windows, as text: what can be granted at all, and what contains what. Pure.

Everything that has a second meaning is refused rather than interpreted: shares and devices, streams
(`file:stream`), names that Windows trims (`secret.txt.`), short names (`PROGRA~1`), `CON` and its
like. What is left means one thing on every Windows.
"""

from __future__ import annotations

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEVICES = frozenset((
    "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$",
    *(f"{kind}{mark}" for kind in ("COM", "LPT") for mark in "0123456789\xb9\xb2\xb3"),
))  # fmt: skip
FORBIDDEN = frozenset('<>"|?*:') | frozenset(map(chr, range(32)))
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
SYSTEM = (
    "SYSTEMROOT", "WINDIR", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "PROGRAMDATA",
    "COMMONPROGRAMFILES", "COMMONPROGRAMFILES(X86)",
)  # fmt: skip
APP_DATA = ("AppData", "AppData\\Local", "AppData\\LocalLow", "AppData\\Roaming",
            "AppData\\Local\\Packages", "AppData\\Local\\Temp", "AppData\\Local\\Programs",
            "AppData\\Local\\Microsoft", "AppData\\Roaming\\Microsoft")  # fmt: skip


def folded(path: str) -> str:
    r"""One spelling for what the file system takes as one name: `c:\DATA\` and `C:/data`."""
    # NTFS folds one character to one: a sharp s is not two.
    upper = [char.upper() if len(char.upper()) == 1 else char for char in path]
    return "".join(upper).replace("/", "\\").rstrip("\\")


class Refused(Exception):  # noqa: N818 - becomes one line of a PolicyError
    pass


@record
class Places:
    """`around`: neither these nor what holds them. `system`: nothing in these either."""

    home: str
    around: tuple[tuple[str, str], ...]
    system: tuple[tuple[str, str], ...]


def places(environment: Mapping[str, str], home: str, real: Callable[[str], str] = str) -> Places:
    """From the caller's environment; names there are the same in any case.

    `real` says where a path leads, as that of a grant was followed: what a variable names by a
    short name or through a link is the same place.
    """
    values = {name.upper(): value for name, value in environment.items()}
    around = [(home, "your profile")]
    around += [(f"{home}\\{name}", "AppData") for name in APP_DATA]
    moved = [(values.get(name, ""), "AppData") for name in ("APPDATA", "LOCALAPPDATA", "TEMP")]
    system = [(values.get(name, ""), "Windows") for name in SYSTEM]
    known = values.get("PUBLIC", "")
    around += [(known, "the public profile")] if known else []
    return Places(home=home, around=_led((*around, *moved), real), system=_led(tuple(system), real))


def _led(
    items: tuple[tuple[str, str], ...], real: Callable[[str], str]
) -> tuple[tuple[str, str], ...]:
    found = ((real(path), what) for path, what in items if path)
    return tuple(item for item in found if is_plain(item[0]))


def is_plain(path: str) -> bool:
    try:
        plain(path)
    except Refused:
        return False
    return True


def plain(path: str) -> str:
    r"""The one form that is used from here on: `C:\a\b`, drive in upper case, no prefix."""
    text = path.replace("/", "\\")
    if text.startswith("\\\\?\\") and text[5:7] == ":\\":
        text = text[4:]
    if text.startswith("\\\\"):
        raise Refused("network and device paths cannot be granted")
    if text[1:3] != ":\\" or text[:1].upper() not in LETTERS:
        raise Refused("it does not begin with a drive")
    parts = [part for part in text[3:].split("\\") if part]
    for part in parts:
        _check(part)
    return "\\".join((text[0].upper() + ":", *parts)) + ("" if parts else "\\")


def _check(part: str) -> None:
    if part in {".", ".."}:
        raise Refused(f"{part!r} in it means another directory")
    if part[-1] in ". ":
        raise Refused(f"{part!r} ends in what Windows leaves out")
    bad = sorted(FORBIDDEN.intersection(part))
    if ":" in bad:
        raise Refused(f"{part!r} names a stream of a file")
    if bad:
        raise Refused(f"{part!r} has {bad[0]!r} in it")
    if part.partition(".")[0].rstrip(" ").upper() in DEVICES:
        raise Refused(f"{part!r} is a device")
    if is_short(part):
        raise Refused(f"{part!r} may be the short name of another: write it in full")


def is_short(part: str) -> bool:
    """Whether Windows could have made this up for a longer name: `LONGNA~1.TXT`."""
    stem, _, extension = part.partition(".")
    head, tilde, number = stem.rpartition("~")
    return bool(
        tilde and head and number.isdecimal() and len(stem) <= 8 and len(extension) <= 3
    ) and not any(mark in extension for mark in ". ")


def is_inside(path: str, directory: str) -> bool:
    path, directory = folded(path), folded(directory)
    return path == directory or path.startswith(directory + "\\")


def check_place(path: str, known: Places) -> None:
    """Raise Refused for a root whose access list is not ours to change."""
    path = plain(path)
    if path.endswith("\\"):
        raise Refused("it is a whole drive")
    for place, what in known.around:
        if is_inside(place, path):
            raise Refused(f"it is {what}" if is_inside(path, place) else f"it holds {what}")
    for place, _ in known.system:
        if is_inside(path, place) or is_inside(place, path):
            raise Refused("it belongs to Windows")
    profiles = [place.rpartition("\\")[0] for place, what in known.around if what == "your profile"]
    if folded(path).rpartition("\\")[0] in {folded(above) for above in profiles}:
        raise Refused("it is somebody's profile")
