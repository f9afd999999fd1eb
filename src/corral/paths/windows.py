"""Check as text which Windows paths can be granted, and whether one path is inside another.

This module does no I/O. Ambiguous paths are refused instead of interpreted: shares and devices,
streams (`file:stream`), names that Windows trims (`secret.txt.`), short names (`PROGRA~1`), and
device names such as `CON`. All other paths mean the same on every version of Windows.
"""

from collections.abc import Callable, Iterable, Mapping

from corral.record import record

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
EXTENDED_PREFIX = "\\\\?\\"


def extended_path(path: str) -> str:
    """Return a path with the prefix that makes Windows take the path literally, and that lifts the
    limit of 260 characters.
    """
    return EXTENDED_PREFIX + path if path[1:3] == ":\\" else path


def upper_case(name: str) -> str:
    """Convert a name to upper case as Windows does when it compares names: character by character,
    so that "ß" does not become "SS".
    """
    return "".join(big if len(big := letter.upper()) == 1 else letter for letter in name)


def fold_path(path: str) -> str:
    r"""Return the same text for every spelling of a path, such as `c:\DATA\` and `C:/data`."""
    return upper_case(path).replace("/", "\\").rstrip("\\")


class Refused(Exception):  # noqa: N818 - becomes one line of a PolicyError
    pass


@record
class KnownDirectories:
    """Directories that cannot be granted, as pairs (directory, description).

    The directories above them cannot be granted either. Directories below those in `around` can be
    granted, but not those below a directory in `system`.
    """

    home: str
    around: tuple[tuple[str, str], ...]
    system: tuple[tuple[str, str], ...]


def known_directories(
    environment: Mapping[str, str], home: str, real: Callable[[str], str] = str
) -> KnownDirectories:
    """Return the directories that cannot be granted, read from the variables in `environment`. The
    case of the variables' names does not matter.

    `real` resolves symlinks and short names in the same way as for grants, because a variable and a
    grant may spell the same directory differently.
    """
    values = {name.upper(): value for name, value in environment.items()}
    around = [(home, "your profile")]
    around += [(f"{home}\\{name}", "AppData") for name in APP_DATA]
    moved = [(values.get(name, ""), "AppData") for name in ("APPDATA", "LOCALAPPDATA", "TEMP")]
    system = [(values.get(name, ""), "Windows") for name in SYSTEM]
    known = values.get("PUBLIC", "")
    around += [(known, "the public profile")] if known else []
    return KnownDirectories(
        home=home, around=_resolve((*around, *moved), real), system=_resolve(system, real)
    )


def _resolve(
    items: Iterable[tuple[str, str]], real: Callable[[str], str]
) -> tuple[tuple[str, str], ...]:
    found = ((real(path), what) for path, what in items if path)
    return tuple(item for item in found if is_unambiguous(item[0]))


def is_unambiguous(path: str) -> bool:
    try:
        normalize(path)
    except Refused:
        return False
    return True


def normalize(path: str) -> str:
    r"""Return a path in the form `C:\a\b`: with an upper-case drive and without a prefix. Refuse
    ambiguous paths.
    """
    text = path.replace("/", "\\")
    if text.startswith(EXTENDED_PREFIX) and text[5:7] == ":\\":
        text = text[4:]
    if text.startswith("\\\\"):
        raise Refused("network and device paths cannot be granted")
    if text[1:3] != ":\\" or text[:1].upper() not in LETTERS:
        raise Refused("it does not begin with a drive letter")
    parts = [part for part in text[3:].split("\\") if part]
    for part in parts:
        _check(part)
    return "\\".join((text[0].upper() + ":", *parts)) + ("" if parts else "\\")


def _check(part: str) -> None:
    if part in {".", ".."}:
        raise Refused(f"{part!r} in the path refers to another directory")
    if part[-1] in ". ":
        raise Refused(f"{part!r} ends in characters that Windows removes")
    bad = sorted(FORBIDDEN.intersection(part))
    if ":" in bad:
        raise Refused(f"{part!r} names a stream of a file")
    if bad:
        raise Refused(f"{part!r} contains {bad[0]!r}, which is not allowed in a name")
    if part.partition(".")[0].rstrip(" ").upper() in DEVICES:
        raise Refused(f"{part!r} is a device")
    if is_short(part):
        raise Refused(f"{part!r} may be the short form of another name: write the full name")


def is_short(part: str) -> bool:
    """Return whether a name may be a short form that Windows made of a longer name, such as
    `LONGNA~1.TXT`.
    """
    stem, _, extension = part.partition(".")
    head, tilde, number = stem.rpartition("~")
    return bool(
        tilde and head and number.isdecimal() and len(stem) <= 8 and len(extension) <= 3
    ) and not any(mark in extension for mark in ". ")


def is_inside(path: str, directory: str) -> bool:
    path, directory = fold_path(path), fold_path(directory)
    return path == directory or path.startswith(directory + "\\")


def check_root(path: str, known: KnownDirectories) -> None:
    """Raise Refused for a directory whose access control list corral must not change."""
    path = normalize(path)
    if path.endswith("\\"):
        raise Refused("it is a whole drive")
    for one, what in known.around:
        if is_inside(one, path):
            raise Refused(f"it is {what}" if is_inside(path, one) else f"it contains {what}")
    for one, _ in known.system:
        if is_inside(path, one) or is_inside(one, path):
            raise Refused("it belongs to Windows")
    profiles = [one.rpartition("\\")[0] for one, what in known.around if what == "your profile"]
    if fold_path(path).rpartition("\\")[0] in {fold_path(above) for above in profiles}:
        raise Refused("it is a user's profile")
