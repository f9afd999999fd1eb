"""Find out from a server's configuration what it needs from the host.

The server's variables come from the user, so corral passes them on, with `--secret` for those that
contain secrets. Paths in its arguments and variables are only suggested as grants, because a path
in a client's settings is not a permission.
"""

import ntpath
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from corral.clients import catalogue
from corral.clients.configured_servers import ConfiguredServer
from corral.errors import CommandError, SandboxError, UnchosenReadsError
from corral.paths.native import is_inside
from corral.policy.home_grants import find_homes, is_home
from corral.policy.profiles import Profile
from corral.policy.requests import describe_requests
from corral.policy.secret_paths import CEILINGS, is_sensitive
from corral.policy.validation import check_name
from corral.policy.variables import is_loader_variable, is_secret, masked
from corral.programs.advice import CONTAINERS, program_name
from corral.programs.arguments import detect_kind, read_arguments
from corral.programs.needed_files import home_names, is_shared, is_system
from corral.programs.package_runners import Package, format_runner, parse_runner
from corral.programs.resolve import check_argv, find_script
from corral.programs.scope import MANAGED_BY_VARIABLE, SYSTEM_PREFIXES, managed_directories
from corral.safe_text import shell_word, shown

if TYPE_CHECKING:
    from corral.policy.secret_files import Column

# The sandbox sets these variables itself, because the host's values would be wrong inside.
SET_BY_CORRAL = frozenset(("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP"))
RUNTIMES = ("python", "node", "deno", "bun", "ruby", "java", "php", "perl")
# Variables for paths that only the client knows. The client replaces them in all arguments, so they
# may also occur in corral's own flags.
PROJECT_VARIABLES = ("workspaceFolder", "workspaceRoot", "CLAUDE_PROJECT_DIR")
PROJECT = "${workspaceFolder}"
OPENCODE_VARIABLE = re.compile(r"\$?\{(?=(?:env|file):)")
"""The beginning of a variable that opencode writes without `$`, such as `{env:HOME}`."""
PATH_VARIABLES = ("${workspaceFolder", "${userHome}", "${workspaceRoot}")
NO_DATA = frozenset(("VIRTUAL_ENV", "CONDA_PREFIX", "PWD", "OLDPWD"))
"""Variables whose directory is not the server's data."""
DEVICES = ("/dev/", "/proc/", "/sys/")

# A client sets a server's variables for corral too, and corral runs outside of the sandbox. These
# variables are refused because they would change corral itself: its code and settings, the
# certificates that the server may read, the host's proxy, the addresses to which allowed host names
# resolve, the file to which TLS keys are written, or the directories of version managers, whose
# links corral trusts. Variables that make a shell run other code are refused too, because the
# program `corral` may be a version manager's shell script.
UNSAFE_PREFIXES = (
    "LD_", "DYLD_", "PYTHON", "__PYVENV", "CORRAL_", "GCONV_", "GLIBC_", "OPENSSL_", "SSL_",
    "BASH_FUNC_",
)  # fmt: skip
UNSAFE_NAMES = frozenset((
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "APPDATA",
    "LOCALAPPDATA", "PROGRAMDATA", "HOMEDRIVE", "HOMEPATH", "SYSTEMROOT", "WINDIR",
    "DBUS_SESSION_BUS_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
    "AWS_CA_BUNDLE", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "LOCPATH", "SSLKEYLOGFILE",
    "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PS4", "ZDOTDIR", *MANAGED_BY_VARIABLE,
))  # fmt: skip
MANAGER_PREFIXES = ("VOLTA_", "ASDF_", "MISE_", "RTX_", "PYENV_")
"""Variables of version managers. They choose which corral starts, if it is found through PATH."""
CLIENTS_SANDBOX = "the client's sandbox"
ENGINE_PREFIXES = (
    "DOCKER_", "CONTAINERS_", "CONTAINER_HOST", "CONTAINER_CONNECTION", "_CONTAINERS_", "PODMAN_",
    "NERDCTL_", "BUILDX_", "BUILDKIT_", "BUILDAH_", "CNI_", "NETCONFPATH", "STORAGE_DRIVER",
    "STORAGE_OPTS", "REGISTRY_AUTH_FILE", "REGISTRIES_CONFIG_PATH", "CONTAINERD_", "ROOTLESSKIT_",
)  # fmt: skip
"""Variables that choose which programs a container engine runs on the host."""
HOMES = ("HOME", "USERPROFILE")
# These variables choose where packages come from and which npm or uv installs them. All values are
# refused. Even a value that looks harmless may contain the name of another variable, such as a
# token. The client would fill in the token, and npm or uv could send it to another host.
PACKAGE_SOURCE_PREFIXES = (
    "NPM_CONFIG_", "PIP_", "UV_", "XDG_DATA_HOME", *MANAGER_PREFIXES,
)  # fmt: skip
HARMLESS = frozenset((
    "PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONFAULTHANDLER",
    "PYTHONASYNCIODEBUG", "PYTHONOPTIMIZE",
))  # fmt: skip
"""Variables that match UNSAFE_PREFIXES but cannot make Python load additional code. PYTHONWARNINGS
is not among them, because it could name the module `antigravity`, and importing this module runs
the program in BROWSER.
"""
WINDOWS_ENDINGS = ("exe", "com", "cmd", "bat")
UNKNOWN = "${unknown}"
"""A placeholder for an argument whose value only the client knows."""
NO_EXTRA_CODE = SET_BY_CORRAL | HARMLESS | {"PATH"}
"""Variables that do not make a runtime load additional code. PATH is checked separately."""


class UnfitError(SandboxError):
    """Raised if a server must not be wrapped, because it would not work in the sandbox or because
    its variables would change corral itself.

    `leave_alone` is set if the server is skipped without counting as a failure, because it already
    has another sandbox or corral does not support it yet.
    """

    def __init__(self, message: str, *, hint: str | None = None, leave_alone: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.leave_alone = leave_alone


def refuse_unencodable(server: ConfiguredServer) -> None:
    """Refuse a command that no process can have, for example one that contains half of a surrogate
    pair.
    """
    try:
        check_argv((*server.argv, *server.unwrapped_argv, server.cwd))
    except CommandError as error:
        raise UnfitError(error.message, hint="correct the command, or remove the server") from None


def refuse_one_word(server: ConfiguredServer) -> None:
    """Refuse a command that is one word with spaces, such as "npx -y NAME", because only a shell
    would split it.
    """
    program = server.unwrapped_argv[0] if server.unwrapped_argv else ""
    first, space, rest = program.partition(" ")
    if not space or os.sep in first or os.path.exists(program) or shutil.which(program):
        return
    if shutil.which(first) or parse_runner(first, rest.split()) is not None:
        raise UnfitError(
            f"its command is {shown(first)} with arguments, all in one word",
            hint=f"in the file, write only {first} as its command, and the other words as its"
            " arguments",
        )


def refuse_unsafe_variables(server: ConfiguredServer) -> None:
    """Refuse a server's variables if they would change what corral loads, trusts or installs. If
    the server does not start through corral, its container engine takes the place of corral.
    """
    starter = _name_starter(server)
    is_found = server.is_wrapped and not os.path.isabs(server.argv[0])
    choosing = ("PATH", *MANAGER_PREFIXES) if is_found else ()
    unsafe = (*UNSAFE_PREFIXES, *choosing)
    names = [name for name, value in server.env.items() if _is_unsafe(name, value, unsafe, starter)]
    if names:
        flag = "--env" if starter == "corral" else "-e"
        otherwise = (
            f"; if only the server needs it, add {flag} {names[0]}=VALUE, and if {starter} needs"
            " it, set it in your own environment"
        )
        raise UnfitError(
            f"{', '.join(names)} in the server's env would change {starter} itself, which is not"
            " sandboxed",
            hint=f"remove it from the file{'' if starter == CLIENTS_SANDBOX else otherwise}",
        )
    is_package = _is_package(server)
    _refuse_foreign_path(server.env, starter, is_package=is_package)
    if not is_package:
        return
    if names := [name for name in server.env if name.upper().startswith(PACKAGE_SOURCE_PREFIXES)]:
        raise UnfitError(
            f"{', '.join(names)} in the server's env could change which package is installed, or"
            " how",
            hint="remove it from the file; your own settings still apply (.npmrc, pip.conf,"
            " uv.toml)",
        )


def is_container(server: ConfiguredServer) -> bool:
    return program_name(server.argv[0]) in CONTAINERS


def _name_starter(server: ConfiguredServer) -> str:
    """Return the program that the client starts outside of any walls. For a server that is left
    alone, this is not corral but the program that sets up the server's other sandbox.
    """
    if server.is_wrapped or not server.command:
        return "corral"
    if is_container(server):
        return program_name(server.argv[0])
    return CLIENTS_SANDBOX if server.why else "corral"


def _refuse_foreign_path(given: Mapping[str, str], starter: str, *, is_package: bool) -> None:
    """Refuse a PATH with a directory that the user did not choose.

    If the server is a package, an `npm` or `uv` in this directory would install it, and other
    servers would use the result from the cache. If the server is a command, corral makes its
    program readable, with the files to which the program leads. A link or script in this directory
    could lead to any file. Directories of version managers are refused only for packages, and for
    a `starter` other than corral, which the client itself looks up on this PATH.
    """
    home, is_corral = os.path.expanduser("~"), starter == "corral"
    known: tuple[str, ...] = ()
    if is_corral and not is_package:
        known = (*SYSTEM_PREFIXES, *managed_directories({}, {home}))
    search = [value for name, value in given.items() if name.upper() == "PATH"]
    found = (_find_foreign_directory(one, known, relative=not is_corral) for one in search)
    if foreign := next(filter(None, found), ""):
        what = "replace the installer of its package" if is_package else "make any file readable"
        what = what if is_corral else f"replace {starter}"
        raise UnfitError(
            f"PATH in the server's env contains {foreign}, which could {what}",
            hint="remove it from the file, or put that directory on your own PATH",
        )


def refuse_elsewhere(server: ConfiguredServer, project: str, granted: Sequence[str]) -> None:
    """Refuse a command in a project's file that starts a program or script outside of the project,
    because the server could then read the files around it. Raise UnfitError if these files may
    contain secrets, otherwise UnchosenReadsError. `granted` are the paths that the user granted.
    """
    if not project or _is_package(server) or not server.unwrapped_argv:
        return
    command, *words = (_fill(word, project) for word in server.unwrapped_argv)
    home, here = os.path.expanduser("~"), os.path.join(project, _fill(server.cwd, project))
    named = [command] if os.sep in command or "${" in command else []
    named += filter(None, [_find_script(server, [command, *words], here)])
    for at, word in enumerate(words):
        # Only the client knows the value of a variable such as `${input:script}`. If the value may
        # be the script that the command starts, the loop below refuses it. It cannot be the script
        # if an earlier word is the script, or if it comes after `=`, as the value of an option.
        before, variable, _ = word.partition("${")
        probe = [command, *words[:at], "-jar", UNKNOWN]
        if variable and "=" not in before and _find_script(server, probe, here) == UNKNOWN:
            named.append(word)
    known = (project, *SYSTEM_PREFIXES, *managed_directories({}, {home}), *granted)
    tops = {*known, *map(os.path.realpath, known)}
    mine, shared = _own_search_path(), is_shared(os.path.realpath(project), home_names(home))
    # Check the real path of `cwd` now. The client changes to `cwd` before it starts corral, so
    # later corral cannot see whether the path contains links.
    for text in (os.path.realpath(here), *named):
        path = os.path.join(here, text)
        above, name = os.path.split(path)
        # A link inside the project is accepted here, because corral checks its destination when the
        # server starts. But corral does not check links in a directory that several servers share,
        # nor links before `..` on Windows. If the path may contain such links, only its real path
        # counts.
        checked = os.pardir not in path.split(os.sep) and not shared
        paths = {os.path.realpath(path), *([path] if checked else [])}
        inside = any(is_system(one) or any(is_inside(one, top) for top in tops) for one in paths)
        on_path = os.path.realpath(above) in mine and name not in {"", os.curdir, os.pardir}
        if not (inside or on_path) or "$" in path:
            why = f"it starts from {shown(path, 200)}, outside of its project"
            if is_sensitive_path(path):
                raise UnfitError(f"{why}, which may contain secrets", hint="check this entry")
            raise UnchosenReadsError(
                why,
                reads=[path],
                hint=f"to let it read this: --read {shell_word(path)}",
            )


def refuse_project_program(server: ConfiguredServer, project: str) -> None:
    """Refuse the program that starts the server if it may be in the project, because it could be
    any program. Also refuse paths with a client's variable, and paths that depend on the
    process, such as relative paths and /proc.
    """
    # A home directory does not count as a project, because it may contain installed programs.
    project = "" if _is_home(project) else project
    program = _fill(server.argv[0], project or PROJECT)
    if not {"/", "\\"}.intersection(program):
        # The program is looked up on PATH, but on Windows first in the current directory.
        here = os.path.join(project, _fill(server.cwd, project))
        found = [name.lower() for top in (project, here) if project for name in _list_names(top)]
        stem = program_name(program)
        if {f"{stem}.{ending}" for ending in WINDOWS_ENDINGS}.isdisjoint(found):
            return
        raise UnfitError(
            f"it is started by {shown(program, 200)}, and the project itself contains a"
            " Windows program of this name",
            hint=f"name the program of an installed {stem} by its whole path",
        )
    # Also accept absolute paths of other systems, because the file may be shared with other
    # machines.
    is_absolute = program.startswith("/") or ntpath.isabs(program)
    paths = [os.path.normpath(program), os.path.realpath(program)] if os.path.isabs(program) else []
    tops = ["/proc", "/dev", *([project, os.path.realpath(project)] if project else [])]
    inside = any(is_inside(path, top) for path in paths for top in tops)
    # `//NAME` may be another machine on Windows, and `//proc` is /proc on Linux.
    is_doubled = program.replace("\\", "/").startswith("//")
    if inside or is_doubled or not is_absolute or "$" in program:
        raise UnfitError(
            f"it is started by {shown(server.argv[0], 200)}, which the project itself may contain",
            hint=f"name the program of an installed {program_name(program)}",
        )


def refuse_project_variables(server: ConfiguredServer, project: str) -> None:
    """Refuse an `envFile` that the project may contain, because the client also sets the variables
    from this file for corral, and they could make corral load other code.
    """
    if not server.env_file or not project or _is_home(project):
        return
    path = os.path.normpath(os.path.join(project, _fill(server.env_file, project)))
    if "${" in path or is_inside(path, project):
        raise UnfitError(
            f"{shown(server.env_file, 200)}, which the project itself may contain, could change"
            f" {_name_starter(server)} itself, which is not sandboxed",
            hint="name the variables under `env` instead",
        )


def _is_home(directory: str) -> bool:
    return os.path.realpath(directory) in find_homes(os.path.expanduser("~"))


def _list_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def find_start_directory(server: ConfiguredServer, project: str) -> str:
    """Return the directory in which the client starts the server. Return '' if the server's entry
    does not name one, or if only the client knows it.
    """
    here = _fill(server.cwd, project or PROJECT)
    here = os.path.join(project, here) if here and project else here
    return here if os.path.isabs(here) and "${" not in here else ""


def find_identity_directory(server: ConfiguredServer, path: str) -> str:
    """Return the real path of the directory in which the client starts a server of the file `path`.
    Return '' if the file does not say it, because then the client starts the server anywhere.
    """
    project = catalogue.find_project(path) or server.scope
    here = find_start_directory(server, project) if server.cwd else project
    return os.path.realpath(here) if here else ""


def _find_script(server: ConfiguredServer, argv: list[str], here: str) -> str:
    """Return the script that the command would start, or ''.

    The program may be a link to a runtime such as python, so corral looks it up. If it is not
    found, corral recognizes the runtime by the program's name.
    """
    if sys.platform != "win32":
        search = server.env.get("PATH") or os.environ.get("PATH", "")
        environment = {**os.environ, "PATH": search}
        home = os.path.expanduser("~")
        try:
            return find_script(argv, environment=environment, cwd=here, home=home)
        except CommandError:
            pass  # perhaps the program is only on the client's PATH
    script = read_arguments(detect_kind(argv[0], argv[0]), argv[1:]).script
    return argv[1 + script] if script is not None else ""


def _fill(text: str, project: str) -> str:
    """Replace clients' variables for the project and the home directory with their paths."""
    text = OPENCODE_VARIABLE.sub("${", text)
    for name in PROJECT_VARIABLES:
        text = text.replace(f"${{{name}}}", project)
    for name in ("${HOME}", "${env:HOME}", "${userHome}"):
        text = text.replace(name, os.path.expanduser("~"))
    return text


def _is_package(server: ConfiguredServer) -> bool:
    argv = server.unwrapped_argv
    return bool(argv) and (
        format_runner(argv[0]) is not None or isinstance(parse_runner(argv[0], argv[1:]), Package)
    )


def _is_unsafe(name: str, value: str, prefixes: tuple[str, ...], starter: str) -> bool:
    upper = name.upper()
    known = upper in UNSAFE_NAMES or upper in HOMES or upper.startswith(prefixes)
    if starter != "corral" and upper not in NO_EXTRA_CODE:
        known = known or upper.startswith(ENGINE_PREFIXES) or is_loader_variable(name)
    if not known or upper in HARMLESS:
        return False
    # A variable with the same value in the user's own environment changes nothing.
    own = [f"${{{name}}}", f"${{env:{name}}}", os.environ.get(name)]
    own += ["${userHome}", os.path.expanduser("~")] if upper in HOMES else []
    return value not in own


def _find_foreign_directory(search: str, known: Sequence[str], *, relative: bool) -> str:
    """Return the first foreign directory of a search path, or '' if there is none. All directories
    are foreign except the system's, those on the user's PATH, and those inside `known` directories.
    Relative directories count only if `relative` is true, because corral itself never searches
    them.
    """
    own, home = os.environ.get("PATH", os.defpath), os.path.expanduser("~")
    mine, search = _own_search_path(), OPENCODE_VARIABLE.sub("${", search)
    for name, text in (("PATH", own), ("HOME", home)):
        search = search.replace(f"${{{name}}}", text).replace(f"${{env:{name}}}", text)
    search = search.replace("${userHome}", home)
    for path in search.split(os.pathsep):
        # A path with any other variable is foreign, because only the client knows its value.
        unknown, real = "$" in path, os.path.realpath(path)
        chosen = is_system(real) or real in mine or any(is_inside(real, top) for top in known)
        is_relative = not os.path.isabs(path)
        if unknown or (relative if is_relative else not chosen):
            return path or os.curdir
    return ""


def _own_search_path() -> set[str]:
    own = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return {os.path.realpath(path) for path in own if os.path.isabs(path)}


def refuse_extra_code(server: ConfiguredServer, package: Package, profile: Profile) -> None:
    """Refuse a profile if other packages or variables add code to the server's package, because
    this code would get the profile's grants too.
    """
    found = [*package.extra, *_list_code_variables(server)]
    if found and (profile.arguments or describe_requests(profile.manifest)):
        raise UnfitError(
            f"{', '.join(found)} could change what the server does, but the profile {profile.name}"
            " covers only the package itself",
            hint=f"to give it the package's grants: --profile {profile.name}; otherwise:"
            " --no-profile",
        )


def refuse_shared_home(server: ConfiguredServer, flags: Sequence[str], project: str) -> None:
    """Refuse a package to which a project's file adds code, if the package keeps its home. All
    projects, and the user, have the same home for this package. The code could read the tokens
    there, or leave code for the next run.
    """
    if not project or "--state" not in flags or not _is_package(server):
        return
    added = [
        value
        for flag, value in pairwise(flags)
        if flag == "--with" or (flag in {"--python", "--node"} and os.sep in value)
    ]
    if found := [*added, *_list_code_variables(server)]:
        raise UnfitError(
            f"{', '.join(map(shown, found))} could run other code with the package's home, which"
            " the project would share with your other servers of this package",
            hint="wrap it with --no-state, or remove this from the file",
        )


def _list_code_variables(server: ConfiguredServer) -> list[str]:
    """Return the names of the server's variables that can make its runtime load other code."""
    return [
        name
        for name in server.env
        if is_loader_variable(name) and name.upper() not in NO_EXTRA_CODE
    ]


def environment_flags(
    server: ConfiguredServer, flags: Sequence[str], profile: Profile | None
) -> Iterator[str]:
    """Yield a flag for each variable that the client sets, except those that `flags` names already
    and those that the profile sets to a value of its own.

    If the client takes more variables from a file, raise UnfitError unless `flags` names at least
    one variable, because corral does not read this file.
    """
    given = {
        value.partition("=")[0] for flag, value in pairwise(flags) if flag in {"--env", "--secret"}
    }
    if server.env_file and not given:
        raise UnfitError(
            f"the client reads this server's variables from {server.env_file}, which corral does"
            " not read",
            hint="name each of these variables: --secret NAME or --env NAME",
        )
    given |= {name for name, _ in (profile and profile.manifest.set_values) or ()}
    for name in dict.fromkeys([*server.env, *server.forwarded]):
        if name in given or name.upper() in SET_BY_CORRAL:
            continue
        try:
            secret = is_secret(name, server.env.get(name))
            yield from ("--secret" if secret else "--env", check_name(name))
        except ValueError as error:
            raise UnfitError(str(error)) from None


def find_paths(
    server: ConfiguredServer, dropped: int, *, arguments: bool = True
) -> tuple[str, ...]:
    """Return the paths in the server's variables, and with `arguments` also those in `cwd` and in
    its arguments. Skip the first `dropped` arguments, which belong to a package runner. A word is a
    path if it exists or begins with one of PATH_VARIABLES.
    """
    words = [*_find_argument_words(server, dropped), server.cwd] if arguments else []
    found = [path for word in words for path in _find_paths_in_word(word)]
    return tuple(dict.fromkeys((*found, *_find_variable_paths(server.env))))


def _find_argument_words(server: ConfiguredServer, dropped: int) -> Sequence[str]:
    command, *words = (server.is_wrapped and server.inner_argv) or server.argv
    words = words[dropped:]
    program = command.replace("\\", "/").rpartition("/")[2].lower()
    if not dropped and program.startswith(RUNTIMES):
        # Skip the script, because corral makes it readable anyway.
        script = next((at for at, word in enumerate(words) if not word.startswith("-")), -1)
        words = words[script + 1 :]
    return words


def _find_variable_paths(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths that a server's variables name. If a path does not exist, yield its
    directory, because the server may create the path there.

    Skip variables that name code, certificates or caches, lists such as that of PATH, and the home
    and other directories that are too large to grant.
    """
    for name, value in env.items():
        is_list = os.pathsep in value.replace("${workspaceFolder:", "")
        is_other = is_loader_variable(name) or "CACHE" in name.upper() or name in NO_DATA
        if is_list or is_other or masked((value,)) != (value,):
            continue
        path = os.path.expanduser(value)
        missing = os.path.isabs(path) and not os.path.lexists(path)
        for one in _find_paths_in_word(os.path.dirname(path) if missing else value):
            if one not in CEILINGS and not is_home(one, os.path.expanduser("~")):
                yield one


def is_sensitive_path(path: str, *, access: Literal["read", "write"] = "read") -> bool:
    """Return whether a path in a server's configuration is sensitive. corral neither grants nor
    suggests a sensitive path, because a project can name any path in its own file.

    A path is sensitive if it may contain secrets or, for write access, files that other programs
    run. Return False for a home directory and those
    above it, because other checks refuse these with a message of their own.
    """
    system: Column = catalogue.COLUMNS.get(sys.platform, "linux")
    home, text = os.path.expanduser("~"), _fill(os.path.expanduser(path), PROJECT)
    texts = [one.replace(os.sep, "/") for one in (home, text, os.path.realpath(text))]
    if is_inside(home, os.path.realpath(text)):
        return False
    return any(is_sensitive(one, texts[0], system, access=access) for one in texts[1:])


def _find_paths_in_word(word: str) -> Iterator[str]:
    for text in (word, word.partition("=")[2]):
        if text.startswith(PATH_VARIABLES):
            yield text
        path = os.path.expanduser(text)
        shown = is_system(path) or f"{path}/".startswith(DEVICES)
        if os.path.isabs(path) and os.path.lexists(path) and os.path.dirname(path) != path:
            yield from () if shown else (os.path.normpath(path),)
            return
