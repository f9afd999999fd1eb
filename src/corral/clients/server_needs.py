"""Work out what a configured server needs from the host, as far as its configuration says.

The user gave the server its variables, so they are passed on, secrets as secrets. Paths in its
arguments are only suggested: a path in a command line is not a permission to use it.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

from corral.clients.configured_servers import ConfiguredServer
from corral.errors import SandboxError
from corral.policy.profiles import Profile
from corral.policy.requests import describe_requests
from corral.policy.validation import check_name
from corral.policy.variables import is_loader_variable, is_secret_name
from corral.programs.needed_files import is_system
from corral.programs.package_runners import (
    Package,
    format_runner,
    parse_runner,
)

# The sandbox sets these itself: the host's values would be wrong inside.
SET_BY_CORRAL = frozenset(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"))
RUNTIMES = ("python", "node", "deno", "bun", "ruby", "java", "php", "perl")
# Only the client knows these paths; it fills them into the arguments of corral, too.
PATH_VARIABLES = ("${workspaceFolder", "${userHome}", "${workspaceRoot}")

# A client sets a server's variables for the corral in front of it as well, outside of the sandbox.
# These would choose what that corral loads, whose settings it reads, which certificates the server
# may read, and the proxy that it uses, which is not held to the allowlist.
UNSAFE_PREFIXES = (
    "LD_", "DYLD_", "PYTHON", "__PYVENV", "CORRAL_", "GCONV_", "GLIBC_", "OPENSSL_", "SSL_",
)  # fmt: skip
UNSAFE_NAMES = frozenset((
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "APPDATA",
    "LOCALAPPDATA", "PROGRAMDATA", "HOMEDRIVE", "HOMEPATH", "SYSTEMROOT", "WINDIR",
    "DBUS_SESSION_BUS_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
    "AWS_CA_BUNDLE",
))  # fmt: skip
HOMES = ("HOME", "USERPROFILE")
# These choose where packages come from and which npm or uv installs them. Their values may contain
# other variables of the user's environment.
PACKAGE_SOURCE_PREFIXES = (
    "NPM_CONFIG_", "PIP_", "UV_", "VOLTA_", "ASDF_", "MISE_", "RTX_", "PYENV_", "XDG_DATA_HOME",
)  # fmt: skip
HARMLESS = frozenset((
    "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONFAULTHANDLER",
    "PYTHONASYNCIODEBUG", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
))  # fmt: skip
NO_EXTRA_CODE = SET_BY_CORRAL | HARMLESS | {"PATH"}
"""Variables of runtimes that load no other code; PATH has a check of its own."""


class UnfitError(SandboxError):
    """A server that stays as it is configured, because it would not work in the sandbox.

    `leave_alone` means that another sandbox encloses it already.
    """

    def __init__(self, message: str, *, hint: str | None = None, leave_alone: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.leave_alone = leave_alone


def refuse_unsafe_variables(server: ConfiguredServer) -> None:
    """Refuse variables of a server that choose what corral itself loads, trusts or installs."""
    given = {name: value for name, value in server.env.items() if value is not None}
    found_by_path = server.is_wrapped and not os.path.isabs(server.argv[0])
    names = [name for name, value in given.items() if _is_unsafe(name, value)]
    names += [name for name in given if name.upper() == "PATH" and found_by_path]
    if names:
        raise UnfitError(
            f"{', '.join(names)} in its env would change corral itself, outside of the walls",
            hint="take it out there; set it in your own environment, or for the server alone:"
            f" --env {names[0]}=VALUE",
        )
    if not _is_package(server):
        return
    if names := [name for name in given if name.upper().startswith(PACKAGE_SOURCE_PREFIXES)]:
        raise UnfitError(
            f"{', '.join(names)} in its env would choose which package is installed, or by what",
            hint="take it out there: your own settings count (.npmrc, pip.conf, uv.toml)",
        )
    # A program from this PATH would fill the cache for every other server with the same package.
    search = [str(value) for name, value in given.items() if name.upper() == "PATH"]
    if foreign := next(filter(None, map(_find_foreign_directory, search)), ""):
        raise UnfitError(
            f"PATH in its env leads to {foreign}, and would choose what installs its package",
            hint="take it out there, or put that directory on your own PATH",
        )


def _is_package(server: ConfiguredServer) -> bool:
    argv = server.unwrapped_argv
    return bool(argv) and (
        format_runner(argv[0]) is not None or isinstance(parse_runner(argv[0], argv[1:]), Package)
    )


def _is_unsafe(name: str, value: object) -> bool:
    upper = name.upper()
    known = upper in UNSAFE_NAMES or upper in HOMES or upper.startswith(UNSAFE_PREFIXES)
    if not known or upper in HARMLESS:
        return False
    # The value that the user's own environment has already changes nothing.
    own = [f"${{{name}}}", f"${{env:{name}}}", os.environ.get(name)]
    own += ["${userHome}", os.path.expanduser("~")] if upper in HOMES else []
    return value not in own


def _find_foreign_directory(search: str) -> str:
    """Return the first directory that is neither the system's nor on this user's own PATH."""
    own, home = os.environ.get("PATH", os.defpath), os.path.expanduser("~")
    for known, text in (("PATH", own), ("HOME", home)):
        search = search.replace(f"${{{known}}}", text).replace(f"${{env:{known}}}", text)
    search = search.replace("${userHome}", home)
    mine = {os.path.realpath(path) for path in own.split(os.pathsep) if os.path.isabs(path)}
    for path in search.split(os.pathsep):
        # Relative ones are never searched; only the client knows the value of other variables.
        counts, real = os.path.isabs(path) or "${" in path, os.path.realpath(path)
        if counts and not is_system(real) and real not in mine:
            return path
    return ""


def refuse_extra_code(server: ConfiguredServer, package: Package, profile: Profile) -> None:
    """Refuse a profile's grants to a package that is started together with other code."""
    variables = [
        name
        for name, value in server.env.items()
        if value is not None and is_loader_variable(name) and name.upper() not in NO_EXTRA_CODE
    ]
    found = [*package.extra, *variables]
    if found and (profile.arguments or describe_requests(profile.manifest)):
        raise UnfitError(
            f"{', '.join(found)} could change what it does, and the profile {profile.name} is for"
            " the package alone",
            hint=f"if you trust it with the same: --profile {profile.name}; or --no-profile",
        )


def environment_flags(server: ConfiguredServer, flags: Sequence[str]) -> Iterator[str]:
    """Yield a flag for each variable that the client sets and that the user's `flags` leave out."""
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
        if name in given or name.upper() in SET_BY_CORRAL:
            continue
        try:
            yield from ("--secret" if is_secret_name(name) else "--env", check_name(name))
        except ValueError as error:
            raise UnfitError(str(error)) from None


def find_paths(server: ConfiguredServer, dropped: int) -> tuple[str, ...]:
    """Return existing paths in the arguments, without the `dropped` first ones, and in `cwd`."""
    command, *words = server.argv
    words = words[dropped:]
    if not dropped and _is_runtime(command):
        # corral itself finds the script and makes it readable.
        script = next((at for at, word in enumerate(words) if not word.startswith("-")), -1)
        words = words[script + 1 :]
    found = [path for word in (*words, server.cwd) for path in _find_paths_in_word(word)]
    return tuple(dict.fromkeys(found))


def _is_runtime(command: str) -> bool:
    name = command.replace("\\", "/").rpartition("/")[2].lower()
    return name.startswith(RUNTIMES)


def _find_paths_in_word(word: str) -> Iterator[str]:
    for text in (word, word.partition("=")[2]):
        if text.startswith(PATH_VARIABLES):
            yield text
        path = os.path.expanduser(text)
        if os.path.isabs(path) and os.path.dirname(path) != path and os.path.lexists(path):
            yield os.path.normpath(path)
            return
