"""What a configured server needs of the host, as far as its configuration tells.

Its variables were given to it by the user: they are passed on, secrets as secrets. Places that its
arguments name are only suggested: that a server is told of a directory is no grant of it.
"""

from __future__ import annotations

import os
from itertools import pairwise

from corral.errors import SandboxError
from corral.reading import check_name
from corral.secret_names import is_secret_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.clients.servers import Server

# Inside these are corral's own: the host's would lead nowhere.
OWN = frozenset(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"))
RUNTIMES = ("python", "node", "deno", "bun", "ruby", "java", "php", "perl")
# Places that only the client knows; it fills them into the arguments of corral just as well.
VARIABLES = ("${workspaceFolder", "${userHome}", "${workspaceRoot}")


# What a client sets for a server it sets for the corral in front of it, outside of all walls.
STEERING = ("LD_", "DYLD_", "PYTHON", "__PYVENV", "CORRAL_", "GCONV_", "GLIBC_", "OPENSSL_")
STEERING_NAMES = frozenset((
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "APPDATA", "LOCALAPPDATA",
))  # fmt: skip
KNOWN_IN_PATH = ("${PATH}", "${env:PATH}", "${HOME}", "${env:HOME}", "${userHome}")
HARMLESS = frozenset((
    "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONFAULTHANDLER",
    "PYTHONASYNCIODEBUG", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
))  # fmt: skip


class UnfitError(SandboxError):
    """A server that would not work behind walls as it is configured: it stays as it is."""

    def __init__(self, message: str, *, hint: str | None = None, apart: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.apart = apart


def steering(server: Server) -> list[str]:
    """Variables of a server that would choose what corral itself loads, trusts or believes."""
    return [
        name for name, value in server.env.items() if value is not None and _steers(name, value)
    ]


def _steers(name: str, value: object) -> bool:
    upper = name.upper()
    if upper in {"HOME", "USERPROFILE"}:
        filled = value in {"${userHome}", f"${{{name}}}", f"${{env:{name}}}"}
        return not filled and value != os.path.expanduser("~")
    if upper in HARMLESS:
        return False
    return upper in STEERING_NAMES or upper.startswith(STEERING)


def refuse_steering(server: Server) -> None:
    if names := steering(server):
        raise UnfitError(
            f"{', '.join(names)} in its env would change corral itself, outside of the walls",
            hint=f"take it out there, and give it to the server alone: --env {names[0]}=VALUE",
        )


def refuse_search(server: Server) -> None:
    """PATH says which npm or uv installs a package, for everybody who asks for that package.

    A client fills in where the project lies, and what lies there is the project's own.
    """
    for name, value in server.env.items():
        rest = str(value)
        for known in KNOWN_IN_PATH:
            rest = rest.replace(known, "")
        if name.upper() == "PATH" and "${" in rest:
            raise UnfitError(
                "PATH in its env leads into the project, and would choose what installs it",
                hint="write directories of your own there, or take it out",
            )


def environment(server: Server, flags: Sequence[str]) -> Iterator[str]:
    """A flag for each variable that the client sets for this server and that the user left out."""
    given = {
        value.partition("=")[0] for flag, value in pairwise(flags) if flag in {"--env", "--secret"}
    }
    if server.env_file and not given:
        raise UnfitError(
            f"the client reads variables for it from {server.env_file}, and corral passes on only"
            " those that it knows",
            hint="name them: --secret NAME for each, or --env NAME",
        )
    set_here = [name for name, value in server.env.items() if value is not None]
    for name in dict.fromkeys([*set_here, *server.forwarded]):
        if name in given or name.upper() in OWN:
            continue
        try:
            yield from ("--secret" if is_secret_name(name) else "--env", check_name(name))
        except ValueError as error:
            raise UnfitError(str(error)) from None


def places(server: Server, drop: int) -> tuple[str, ...]:
    """Files and directories that its arguments name, and the directory it is started in."""
    command, *words = server.words
    words = words[drop:]
    if not drop and _is_runtime(command):
        # Its script is found and made readable by corral itself.
        script = next((at for at, word in enumerate(words) if not word.startswith("-")), -1)
        words = words[script + 1 :]
    found = [place for word in (*words, server.cwd) for place in _place(word)]
    return tuple(dict.fromkeys(found))


def _is_runtime(command: str) -> bool:
    name = command.replace("\\", "/").rpartition("/")[2].lower()
    return name.startswith(RUNTIMES)


def _place(word: str) -> Iterator[str]:
    for text in (word, word.partition("=")[2]):
        if text.startswith(VARIABLES):
            yield text
        path = os.path.expanduser(text)
        if os.path.isabs(path) and os.path.dirname(path) != path and os.path.lexists(path):
            yield os.path.normpath(path)
            return
