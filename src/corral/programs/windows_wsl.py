"""Advise users of Windows to run a server in WSL2, where corral's Linux mechanisms work."""

import ntpath
import shlex
import sys
from collections.abc import Sequence

LXSS = "Software\\Microsoft\\Windows\\CurrentVersion\\Lxss"
VERSION = 2
PLACEHOLDER = "corral run -- COMMAND"
SUFFIXES = (".exe", ".cmd", ".bat", ".ps1")
WITHOUT = "run the server in WSL2, which has Linux's mechanisms (`wsl.exe --install` sets it up)"


def advice(distribution: str) -> str:
    """Return a hint with the command that runs a server in this distribution. If `distribution` is
    "", return a hint with the command that installs WSL2.
    """
    if not distribution:
        return WITHOUT
    into = f"wsl.exe -d {shlex.quote(distribution)} --"
    return f"run the server in WSL2: `{into} {PLACEHOLDER}` (install corral there first)"


def with_command(hint: str, words: Sequence[str]) -> str:
    """Return a hint with `corral run -- COMMAND` replaced by the user's own command."""
    finished = ["corral", "run", *map(linux_word, words)]
    return hint.replace(PLACEHOLDER, shlex.join(finished))


def linux_word(word: str) -> str:
    r"""Translate a word of a command for WSL2: `C:\x` to `/mnt/c/x`, `npx.cmd` to `npx`."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={linux_word(value)}"
    drive, rest = ntpath.splitdrive(word)
    stem, suffix = ntpath.splitext(ntpath.basename(word))
    if suffix.lower() in SUFFIXES and rest != word:
        return stem  # on Linux, name the program without its Windows directory and suffix
    if len(drive) == len("C:") and rest.startswith(("\\", "/")):
        return f"/mnt/{drive[0].lower()}{rest.replace(chr(92), '/')}"
    return stem if suffix.lower() in SUFFIXES and not {"/", "\\"} & set(word) else word


def find_distribution() -> str:
    """Return a WSL2 distribution: the user's default one if possible, or else any other. Return ""
    if there is none.
    """
    if sys.platform != "win32":
        return ""
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_CURRENT_USER, LXSS) as key:
            names = [winreg.EnumKey(key, at) for at in range(winreg.QueryInfoKey(key)[0])]
            chosen = str(winreg.QueryValueEx(key, "DefaultDistribution")[0])
            found = {name: _read(name) for name in names}
    except OSError:
        return ""
    capable = {name: text for name, (text, version) in found.items() if version == VERSION}
    return capable.get(chosen) or next(iter(capable.values()), "")


def _read(name: str) -> tuple[str, int]:
    if sys.platform != "win32":
        return "", 0
    import winreg

    with winreg.OpenKey(winreg.HKEY_CURRENT_USER, f"{LXSS}\\{name}") as own:
        text = winreg.QueryValueEx(own, "DistributionName")[0]
        return str(text), int(winreg.QueryValueEx(own, "Version")[0])
