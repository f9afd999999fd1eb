"""The flags that say what a target may do, shared by `run` and `explain`."""

from __future__ import annotations

import os

from corral.cli.option_parser import Flag, UsageError
from corral.errors import SandboxError
from corral.policy.model import Source
from corral.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.option_parser import Options
    from corral.policy.approvals import Request
    from corral.policy.manifest import Manifest
    from corral.programs.model import Program
    from corral.servers.open_reference import ReadyServer

FLAGS = (
    Flag(name="--profile", value="NAME", help="a curated policy; `corral profiles` lists them"),
    Flag(name="--policy", value="FILE|JSON", help="policy file, or JSON text; flags override it"),
    Flag(name="--max-memory", value="SIZE", help="memory of the whole tree, e.g. 512M"),
    Flag(name="--max-cpu", value="CORES", help="500m or 0.5 cores; a bare integer is millicores"),
    Flag(name="--max-cpu-time", value="TIME", help="total CPU time of the tree, e.g. 10m"),
    Flag(name="--max-pids", value="N", help="processes and threads"),
    Flag(name="--max-fds", value="N", help="open files of each process"),
    Flag(name="--max-disk", value="SIZE", help="private writable space, and the largest file"),
    Flag(name="--timeout", value="TIME", help="wall clock, e.g. 60s; then SIGTERM, 5 s, SIGKILL"),
    Flag(name="--allow-net", value="HOST[:PORT]", many=True, help="a destination it may reach"),
    Flag(name="--listen", value="PORT", many=True, help="a port of it reachable on host loopback"),
    Flag(name="--read", value="PATH", many=True, help="a file or directory it may read"),
    Flag(name="--write", value="PATH", many=True, help="a file or directory it may change"),
    Flag(name="--allow-subprocess", help="let it start processes"),
    Flag(name="--env", value="NAME[=VALUE]", many=True, help="pass a variable, or set one"),
    Flag(name="--secret", value="NAME", many=True, help="pass a variable that is never printed"),
    Flag(name="--config", value="KEY=VALUE", many=True, help="a setting of a bundle or server"),
    Flag(name="--with", value="REQUIREMENT", many=True, help="one more package beside a pypi: one"),
    Flag(name="--allow-install-scripts", help="let a package run code while it is installed"),
    Flag(name="--strict", help="refuse when even a default limit cannot be enforced"),
    Flag(name="--best-effort", help="go on without what cannot be held, walls too, and warn"),
)
KEYS = {
    "--max-memory": "limits.memory",
    "--max-cpu": "limits.cpu",
    "--max-cpu-time": "limits.cpu_time",
    "--max-pids": "limits.pids",
    "--max-fds": "limits.fds",
    "--max-disk": "limits.disk",
    "--timeout": "limits.timeout",
}
LISTS = {
    "--allow-net": "network.allow",
    "--listen": "network.listen",
    "--read": "filesystem.read",
    "--write": "filesystem.write",
    "--secret": "environment.secrets",
}


NO_POLICY = {
    "--profile", "--policy", "--report", "--audit", "--json", "--with", "--config",
    "--allow-install-scripts",
}  # fmt: skip
BUNDLES = (".mcpb", ".dxt")


def here() -> str:
    try:
        return os.getcwd()
    except OSError as problem:
        raise SandboxError(
            f"the current directory cannot be found: {problem.strerror}",
            hint="start corral from a directory that exists",
        ) from problem


def where(rest: list[str]) -> str:
    """The directory that the command starts in: this one, or what a client's configuration says."""
    if rest and ":" in rest[0]:
        from corral.clients.find_server import find_server
        from corral.servers.reference import parse_reference

        reference = parse_reference(rest[0])
        if reference is not None and reference.kind == "client":
            return find_server(reference.name).cwd or here()
    return here()


def sources(options: Options, rest: list[str]) -> tuple[list[Source], list[str]]:
    """What the user and the server say, lowest first, and the command to run."""
    found: list[Source] = []
    command = rest
    request: Request | None = None
    if rest and ":" in rest[0]:
        options, command, found = _configured(options, rest)
    arguments = command[1:]
    server: ReadyServer | None = None
    if command and _may_be_reference(command[0]):
        server = open_server(options, command)
    if server is not None:
        request, command = server.request, list(server.command)
        found += server.granted
        os.environ.update(server.secrets)  # where secrets are taken from
    elif len(command) == 1 and _is_directory(command[0]):
        from corral.servers.server_directory import read_request

        request, command = read_request(command[0])
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        found.append(profiles.source(profiles.load(name), arguments, os.environ))
    if (text := options.get("--policy")) is not None:
        manifest = _policy(text)
        found.append(Source(manifest=manifest, trust="user", approved=True))
        command = command or list(manifest.command or ())
    if options.values.keys() - NO_POLICY:
        # What is typed here starts here, wherever the server does.
        typed = replace(_flags(options), directory=here())
        found.append(Source(manifest=typed, trust="user", approved=True))
    if not command:
        raise UsageError("there is no command to run", hint="corral run [OPTIONS] -- COMMAND ...")
    if request is not None:
        found.insert(0, _settled(request, found))
    return found, command


def check_program(program: Program, found: list[Source]) -> None:
    """What is started is what was looked at: its files may have changed while a person thought."""
    own = [one.manifest.directory for one in found if one.trust == "request"]
    if any(own) and os.name == "posix":
        from corral.servers import server_directory

        for path in filter(None, own):
            server_directory.check_program(program, path)


def _configured(options: Options, rest: list[str]) -> tuple[Options, list[str], list[Source]]:
    """A server by its name in a client's configuration: that file is the user's own word."""
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None or reference.kind != "client":
        return options, rest, []
    from corral.cli import run
    from corral.cli.option_parser import parse as parse_flags
    from corral.clients.find_server import find_server
    from corral.policy.manifest import Manifest

    server = find_server(reference.name)
    merged, _ = parse_flags(run.FLAGS, server.flags)
    merged.values.pop("--report", None)
    for name, values in options.values.items():
        merged.values[name] = [*merged.values.get(name, ()), *values]
    manifest = Manifest(
        origin=server.path,
        set_values=tuple(server.env.items()) or None,
        pass_names=tuple(server.forwarded) or None,
    )
    source = Source(manifest=manifest, trust="user", approved=True)
    return merged, [*server.argv, *rest[1:]], [source]


def _policy(text: str) -> Manifest:
    """A file, or the policy itself: programs that start corral need not write one."""
    from corral.policy.manifest import load, parse_json

    return parse_json(text, "--policy") if text.startswith("{") else load(text)


def _flags(options: Options) -> Manifest:
    from corral.policy.manifest import from_flags

    values: dict[str, object] = {}
    for flag, key in KEYS.items():
        if (text := options.get(flag)) is not None:
            values[key] = text
    for flag, key in LISTS.items():
        if items := options.all(flag):
            values[key] = list(items)
    if options.has("--allow-subprocess"):
        values["subprocess.allow"] = True
    given = [item.partition("=") for item in options.all("--env")]
    if passed := [name for name, equals, _ in given if not equals]:
        values["environment.pass"] = passed
    if put := {name: value for name, equals, value in given if equals}:
        values["environment.set"] = put
    return from_flags(
        values,
        best_effort=options.has("--best-effort") or None,
        strict=options.has("--strict") or None,
    )


def _is_directory(word: str) -> bool:
    """One that is written as a path, and no reference: clients start their servers in whatever
    project is open, and that may have a folder called like a command or like `npm:name`.
    """
    written = word in {os.curdir, os.pardir} or os.path.dirname(word)
    return bool(written) and os.path.isdir(word)


def _may_be_reference(word: str) -> bool:
    """A look at the letters only: a plain command pays for nothing more."""
    space, slash, _ = word.partition("/")
    return ":" in word or word.lower().endswith(BUNDLES) or bool(slash and "." in space[1:])


def open_server(options: Options, rest: list[str], *, complete: bool = True) -> ReadyServer | None:
    """Open the reference in the first word; None if it is a command."""
    from corral.servers.reference import parse_reference

    reference = parse_reference(rest[0])
    if reference is None:
        return None
    from corral.cli import output
    from corral.servers.open_reference import Choices, open_reference

    choices = Choices(
        scripts=options.has("--allow-install-scripts"),
        extra=companions(options),
        config=options.all("--config"),
        provided=(*options.all("--secret"), *(_name(word) for word in options.all("--env"))),
        complete=complete,
        notify=output.note,
    )
    return open_reference(reference, rest[1:], choices)


def companions(options: Options) -> tuple[str, ...]:
    """What is installed beside a package: said here, or known to its profile and not to itself."""
    beside: tuple[str, ...] = ()
    if (name := options.get("--profile")) is not None:
        from corral.policy import profiles

        beside = profiles.load(name).beside
    return (*beside, *options.all("--with"))


def _name(word: str) -> str:
    return word.partition("=")[0]


def _settled(request: Request, users: list[Source]) -> Source:
    """A server's request, approved now if somebody is there to be asked."""
    source = request.source
    if source.approved:
        return source
    from corral.cli import approve, output
    from corral.errors import PolicyError
    from corral.policy.merge import refuse_unapproved
    from corral.policy.user_config import home_directory

    try:
        refuse_unapproved([source, *users], home_directory(), here())
        if request.asks:
            origin = source.manifest.origin
            raise PolicyError(
                f"{origin} asks for what you have not approved: to " + "; to ".join(request.asks),
                hint=f"look at it and run `corral approve {origin}`",
            )
    except PolicyError:
        if not approve.is_on_terminal():
            raise
    else:
        return source  # it only tightens, or the user's own words grant the same
    for line in approve.format_request(request):
        output.note(line)
    if not approve.confirm(source.manifest.directory or source.manifest.origin):
        return source
    approve.remember(request)
    return replace(source, approved=True)
