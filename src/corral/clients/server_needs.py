"""What a configured server needs of the host, as far as its configuration tells.

Its variables were given to it by the user: they are passed on, secrets as secrets. Places that its
arguments name are only suggested: that a server is told of a directory is no grant of it.
"""

from __future__ import annotations

import os
from itertools import pairwise

from corral.errors import SandboxError
from corral.policy.requests import describe_requests
from corral.policy.validation import check_name
from corral.policy.variables import is_loader_variable, is_secret_name
from corral.programs.needed_files import is_system
from corral.programs.package_runners import Package, back, launched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from corral.clients.configured_servers import Server
    from corral.policy.profiles import Profile

# Inside these are corral's own: the host's would lead nowhere.
OWN = frozenset(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"))
RUNTIMES = ("python", "node", "deno", "bun", "ruby", "java", "php", "perl")
# Places that only the client knows; it fills them into the arguments of corral just as well.
VARIABLES = ("${workspaceFolder", "${userHome}", "${workspaceRoot}")


# What a client sets for a server it sets for the corral in front of it, outside of all walls: what
# that loads, whose settings it reads, whose certificates it lets the server read, and by which
# proxy it goes out for it, which could be anybody's and is not held to the allowlist.
STEERING = ("LD_", "DYLD_", "PYTHON", "__PYVENV", "CORRAL_", "GCONV_", "GLIBC_", "OPENSSL_", "SSL_")
STEERING_NAMES = frozenset((
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "APPDATA",
    "LOCALAPPDATA", "PROGRAMDATA", "HOMEDRIVE", "HOMEPATH", "SYSTEMROOT", "WINDIR",
    "DBUS_SESSION_BUS_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
    "AWS_CA_BUNDLE",
))  # fmt: skip
HOMES = ("HOME", "USERPROFILE")
# They say where packages come from and which version manager's npm or uv installs them. Their
# values may carry what is in the user's environment.
SOURCES = (
    "NPM_CONFIG_", "PIP_", "UV_", "VOLTA_", "ASDF_", "MISE_", "RTX_", "PYENV_", "XDG_DATA_HOME",
)  # fmt: skip
HARMLESS = frozenset((
    "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONFAULTHANDLER",
    "PYTHONASYNCIODEBUG", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
))  # fmt: skip
KNOWN = OWN | HARMLESS | {"PATH"}
"""Variables that runtimes go by, and that bring nothing along: PATH is looked at by itself."""


class UnfitError(SandboxError):
    """A server that would not work behind walls as it is configured: it stays as it is."""

    def __init__(self, message: str, *, hint: str | None = None, apart: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.apart = apart


def steering(server: Server) -> UnfitError | None:
    """Whether variables of a server would choose what corral itself loads, believes or runs."""
    given = {name: value for name, value in server.env.items() if value is not None}
    found_by_path = server.wrapped and not os.path.isabs(server.words[0])
    names = [name for name, value in given.items() if _steers(name, value)]
    names += [name for name in given if name.upper() == "PATH" and found_by_path]
    if names:
        return UnfitError(
            f"{', '.join(names)} in its env would change corral itself, outside of the walls",
            hint="take it out there; set it in your own environment, or for the server alone:"
            f" --env {names[0]}=VALUE",
        )
    if not _is_package(server):
        return None
    # A package has its name from a registry: whose, and who installs it, is the user's to say.
    if names := [name for name in given if name.upper().startswith(SOURCES)]:
        return UnfitError(
            f"{', '.join(names)} in its env would choose which package is installed, or by what",
            hint="take it out there: your own settings count (.npmrc, pip.conf, uv.toml)",
        )
    # What PATH finds first would fill the cache for everybody who asks for that package.
    search = [str(value) for name, value in given.items() if name.upper() == "PATH"]
    if strange := next(filter(None, map(_strange, search)), ""):
        return UnfitError(
            f"PATH in its env leads to {strange}, and would choose what installs its package",
            hint="take it out there, or put that directory on your own PATH",
        )
    return None


def _is_package(server: Server) -> bool:
    words = server.inner if server.wrapped else server.words
    return bool(words) and (
        back(words[0]) is not None or isinstance(launched(words[0], words[1:]), Package)
    )


def _steers(name: str, value: object) -> bool:
    upper = name.upper()
    known = upper in STEERING_NAMES or upper in HOMES or upper.startswith(STEERING)
    if not known or upper in HARMLESS:
        return False
    # What the user has anyway changes nothing.
    own = [f"${{{name}}}", f"${{env:{name}}}", os.environ.get(name)]
    own += ["${userHome}", os.path.expanduser("~")] if upper in HOMES else []
    return value not in own


def _strange(search: str) -> str:
    """The first directory that is neither the system's nor on the PATH of who calls wrap."""
    own = os.environ.get("PATH", os.defpath)
    for known, text in (("PATH", own), ("HOME", os.path.expanduser("~"))):
        search = search.replace(f"${{{known}}}", text).replace(f"${{env:{known}}}", text)
    search = search.replace("${userHome}", os.path.expanduser("~"))
    mine = {os.path.realpath(place) for place in own.split(os.pathsep) if os.path.isabs(place)}
    for place in search.split(os.pathsep):
        # Relative ones are never searched; where a variable leads, only the client knows.
        counts, real = os.path.isabs(place) or "${" in place, os.path.realpath(place)
        if counts and not is_system(real) and real not in mine:
            return place
    return ""


def refuse_steering(server: Server) -> None:
    if problem := steering(server):
        raise problem


def refuse_company(server: Server, package: Package, profile: Profile) -> None:
    """A curated profile is for a package as it is published: not for what comes along with it."""
    steers = [
        name
        for name, value in server.env.items()
        if value is not None and is_loader_variable(name) and name.upper() not in KNOWN
    ]
    found = [*package.extra, *steers]
    if found and (profile.arguments or describe_requests(profile.manifest)):
        raise UnfitError(
            f"{', '.join(found)} could change what it does, and the profile {profile.name} is for"
            " the package alone",
            hint=f"if you trust it with the same: --profile {profile.name}; or --no-profile",
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
