r"""Find the interpreter that `py` or `py -3.12` would start (PEP 397 and PEP 514).

The installed interpreters are read from the registry. `choose` then selects one, without I/O.
"""

import itertools
import ntpath
import sys
from collections.abc import Mapping
from contextlib import suppress

from corral.errors import EXIT_NOT_FOUND, CommandError
from corral.programs.windows_resolve import Caller, Hop
from corral.record import replace

KEY = "Software\\Python\\PythonCore"


def follow(hop: Hop, caller: Caller) -> Hop:
    """Return the interpreter that `py`, or a Store alias named `python` or `python3`, would start.
    Only `py` accepts a version in its arguments.
    """
    versioned = ntpath.basename(hop.path).lower().startswith("py.")
    wanted, arguments = _split_version(hop.arguments) if versioned else ("", hop.arguments)
    active = caller.variable("VIRTUAL_ENV")
    if not wanted and active:
        path = ntpath.join(active, "Scripts", "python.exe")
    else:
        path = choose(installed(), wanted or caller.variable("PY_PYTHON"))
    if not path:
        raise CommandError(
            f"{hop.path}: no Python {wanted} is registered".replace("  ", " "),
            exit_code=EXIT_NOT_FOUND,
            hint="install Python from python.org, not from the Store, or name it by its path",
        )
    return replace(hop, path=path, arguments=arguments)


def _split_version(arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Split off `-3`, `-3.12`, `-3.12-32` or `-V:3.12`. All other arguments are for the
    interpreter.
    """
    first = arguments[0] if arguments else ""
    if first.startswith("-V:") and len(first) > 3:
        return first[3:].rpartition("/")[2], arguments[1:]
    if first.startswith("-") and first[1:2].isdecimal():
        return first[1:], arguments[1:]
    return "", arguments


def choose(found: Mapping[str, str], wanted: str) -> str:
    """Return the executable whose tag (such as `3.12`) is `wanted`. If there is no such tag, return
    the executable of the newest version that begins with `wanted`, or "" if there is none. `found`
    maps tags to executables.
    """
    exact = {tag.lower(): path for tag, path in found.items()}
    if wanted.lower() in exact:
        return exact[wanted.lower()]
    fitting = [tag for tag in found if not wanted or tag.startswith(f"{wanted}.")]
    plain = [tag for tag in fitting if all(part.isdecimal() for part in tag.split("."))]
    newest = max(plain, key=lambda tag: tuple(map(int, tag.split("."))), default="")
    return found[newest] if newest else ""


def installed() -> dict[str, str]:
    """Return {tag: executable} for the registered Pythons. If a tag is registered both for the user
    and for the machine, the user's Python takes precedence.
    """
    found: dict[str, str] = {}
    if sys.platform == "win32":
        import winreg

        for hive in (winreg.HKEY_CURRENT_USER, winreg.HKEY_LOCAL_MACHINE):
            # OSError means the end of the list, or a missing key.
            with suppress(OSError), winreg.OpenKey(hive, KEY) as key:
                for number in itertools.count():
                    tag = winreg.EnumKey(key, number)
                    path = _executable(hive, tag)
                    if path:
                        found.setdefault(tag, path)
    return found


def _executable(hive: int, tag: str) -> str:
    if sys.platform != "win32":
        return ""
    import winreg

    try:
        with winreg.OpenKey(hive, f"{KEY}\\{tag}\\InstallPath") as key:
            try:
                value: object = winreg.QueryValueEx(key, "ExecutablePath")[0]
            except OSError:
                value = winreg.QueryValueEx(key, "")[0] + "\\python.exe"
    except OSError:
        return ""
    return ntpath.normpath(value) if isinstance(value, str) else ""
