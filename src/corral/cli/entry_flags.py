"""Check the flags of `corral run` that a client's entry contains, and the command after them."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from corral.cli import output, run_flags, what_to_run
from corral.cli.option_parser import Options, parse
from corral.clients.configured_servers import ConfiguredServer
from corral.denials.server_id import HOME_VARIABLES
from corral.directories import home_directory
from corral.plan.model import Plan
from corral.programs.missing_script import describe_missing_script, find_missing_script
from corral.servers.reference import parse_reference
from corral.supervisor.prepare import prepare

PATH_FLAGS = ("--read", "--write", "--policy")
RUNTIME_FLAGS = tuple(f"--{name}" for name in what_to_run.RUNTIMES)
"""Flags that take a version or a path."""
# Values that begin like this are not paths. `${` begins a variable that the client will replace,
# and `{` begins a policy as JSON text.
NOT_PATHS = ("${", "{")
# Values that consist only of a client's variable for the home directory. `prepare_run` replaces
# them with the path of the home directory. A grant of this path is then refused, because the home
# directory can never be granted as a whole.
HOME_VALUES = frozenset(name + end for name in HOME_VARIABLES for end in ("", "/"))


def check_run(flags: tuple[str, ...], command: Sequence[str]) -> None:
    """Check that `corral run` would accept these flags and this command on this host.

    The check uses Python as the program, because the server may not be installed yet. The pins of a
    package's tools are stored under the words of its command. If the command contains variables
    that only the client can replace, corral cannot find the pins, and does not check them.
    """
    server = what_to_run.name_server(list(command))
    if any("${" in word for word in command):
        server = ()
    stand_in = [sys.executable, "-c", "pass", *command[1:]]
    prepare_run(flags, stand_in, server=server, compare_pins=bool(server))


def prepare_run(
    flags: tuple[str, ...],
    command: Sequence[str],
    *,
    cwd: str = "",
    variables: Mapping[str, str] = {},
    server: Sequence[str] = (),
    compare_pins: bool = True,
) -> Plan:
    options, _ = parse(run_flags.FLAGS, flags)
    if not compare_pins:
        options.values["--pins"] = ["off"]
    given = [value for name in ("--env", "--secret") for value in options.all(name)]
    for values in options.values.values():
        values[:] = [home_directory() if value in HOME_VALUES else value for value in values]
        values[:] = [value for value in values if not value.startswith("${")]
    sources, _ = what_to_run.sources_and_command(options, [sys.executable, *command[1:]])
    # The client will set these variables, so this check must not refuse them as missing.
    environment = {**os.environ, **{value.partition("=")[0]: "" for value in given}, **variables}
    here = cwd if os.path.isdir(cwd) else what_to_run.current_directory()
    return prepare(
        command, sources, environment=environment, cwd=here, server=server, notify=output.note
    )


def find_missing_file(server: ConfiguredServer) -> str:
    """Return why a server's program or script would not be found, or "".

    If the server's entry sets no PATH, search the PATH of this process, although the client may
    have another one.
    """
    argv, search = server.unwrapped_argv, server.env.get("PATH")
    program = argv[0]
    known = os.path.isabs(program) or os.path.basename(program) == program
    known = known and parse_reference(program) is None and "${" not in f"{program}{search}"
    if known and not shutil.which(program, path=search):
        why = "is not a program" if os.path.isabs(program) else "was not found on PATH"
        return f"{program!r} {why}"
    missing = find_missing_script(argv, server.cwd)
    return describe_missing_script(missing) if missing else ""


def select_flags(options: Options) -> list[str]:
    """Return the typed flags of `run`, with paths made absolute, because clients may start in any
    directory.
    """
    chosen = Options()
    found = []
    for flag in run_flags.FLAGS:
        for typed in options.all(flag.name):
            value = make_absolute_value(flag.name, typed)
            chosen.values.setdefault(flag.name, []).append(value)
            found += [flag.name, value] if flag.value else [flag.name]
    if found:
        # Report mistakes in the flags now rather than when the client starts a server.
        what_to_run.sources_and_command(chosen, [os.devnull])
    return found


def make_absolute_value(flag: str, value: str) -> str:
    is_path = flag in PATH_FLAGS or (flag in RUNTIME_FLAGS and os.sep in value)
    if not is_path or value.startswith(NOT_PATHS):
        return value
    return os.path.abspath(os.path.expanduser(value))
