r"""Resolve a typed command into a Program, on Windows.

If the policy denies subprocesses, a launcher cannot start the real program, so this module finds
the real program itself. It searches PATH with PATHEXT, and follows launchers: the redirectors of
virtual environments, `Scripts\*.exe`, uv's trampolines, npm's `.cmd` files, scoop's shims, the `py`
launcher, and the launchers of Python's install manager. It does not execute launchers, and never
searches the current directory.
"""

from __future__ import annotations

import ntpath
import os
from collections.abc import Mapping, Sequence

from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError, UnchosenReadsError
from corral.paths.windows import is_inside
from corral.policy.model import Grant
from corral.programs import arguments as options
from corral.programs import windows_shims
from corral.programs.model import LAUNCHER, Program
from corral.programs.windows_disk import Disk, HostDisk
from corral.programs.windows_needed_files import Needs
from corral.record import record, replace

EXTENSIONS = (".com", ".exe", ".bat", ".cmd")
BATCH = (".bat", ".cmd")
MAX_HOPS = 8
INSTALLERS = ("npx", "npm", "pnpm", "pnpx", "yarn", "bunx", "uvx", "uv", "pipx")
SCRIPTS = {".py": "python", ".pyw": "python", ".js": "node", ".mjs": "node", ".cjs": "node"}
STORE = "install it from its own site (python.org, nodejs.org, `uv python install`), not the Store"


@record
class Caller:
    environment: Mapping[str, str]
    cwd: str
    disk: Disk

    def variable(self, name: str) -> str:
        wanted = name.upper()
        found = (value for key, value in self.environment.items() if key.upper() == wanted)
        return next(found, "")

    def absolute(self, path: str) -> str:
        return ntpath.normpath(ntpath.join(self.cwd, path))

    def lookup(self, name: str) -> str:
        """Return the path of the program with this name on PATH, or "" if there is none. Relative
        entries of PATH and network shares are never searched.
        """
        for entry in self.variable("PATH").split(";"):
            directory = entry.strip().strip('"')
            if directory[1:3] in {":\\", ":/"}:
                found = self.complete(ntpath.normpath(ntpath.join(directory, name)))
                if found:
                    return found
        return ""

    def complete(self, path: str) -> str:
        """Return the path, with the extension that Windows would add to it if it has none. Return
        "" if there is no such file.
        """
        known = [one.strip().lower() for one in self.variable("PATHEXT").split(";")]
        extensions = [one for one in known if one in EXTENSIONS] or list(EXTENSIONS)
        if ntpath.splitext(path)[1].lower() in {*EXTENSIONS, *SCRIPTS, ".ps1"}:
            extensions = ["", *extensions]
        for extension in extensions:
            if self.disk.kind(path + extension) in {"file", "alias"}:
                return path + extension
        return ""


@record
class Hop:
    """A launcher on the way from the typed name to the program, or the program itself.

    `arguments` and `environment` are what this file would be started with. `venv` is the directory
    of the virtual environment whose redirector was followed, or "". `scripts` lists the scripts of
    the launchers that were followed, because the target has to be able to read them.
    """

    path: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    venv: str = ""
    scripts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: str,
    home: str,
    subprocess: bool,
    grants: Sequence[Grant] = (),
    root: str = "",
    disk: Disk | None = None,
) -> Program:
    """Return the program for a command, with the files that it needs.

    If the user named a server's directory instead of a command, `root` is this directory. Raise
    UnchosenReadsError if the command then names a program or script that is neither in `root` nor a
    runtime nor in one of `grants`.
    """
    if not argv or not argv[0]:
        raise CommandError("there is no command to run", exit_code=EXIT_NOT_FOUND)
    if any("\0" in word for word in argv):
        raise CommandError("a NUL byte cannot be part of a command", exit_code=EXIT_NOT_FOUND)
    caller = Caller(environment=environment, cwd=cwd, disk=disk or HostDisk())
    start = Hop(path=locate(argv[0], caller), arguments=tuple(argv[1:]))
    end = follow(start, caller, subprocess=subprocess)
    real = caller.disk.real(end.path)
    kind = kind_of(end.path)
    needs = Needs(caller.disk, environment, home, root=root)
    needs.runtime(real, kind, end.venv)
    arguments = _collect(end, kind, caller, needs)
    _refuse_outside(needs.outside, grants)
    visible = needs.covers(caller.disk.real(cwd))
    device, inode = caller.disk.identity(real)
    return Program(
        path=end.path,
        argv=(end.path, *arguments),
        reads=tuple(needs.reads),
        why=tuple(needs.reads.values()),
        seen=tuple(caller.disk.identity(path) for path in needs.reads),
        search=(ntpath.dirname(end.path), ntpath.join(needs.windows, "System32"), needs.windows),
        cwd=caller.disk.real(cwd) if visible else "",
        typed=tuple(argv),
        own_file=_find_own_file(end, kind, arguments, needs),
        real=real,
        device=device,
        inode=inode,
        notes=end.notes,
        environment=end.environment,
    )


def _refuse_outside(outside: Sequence[str], grants: Sequence[Grant]) -> None:
    """Raise UnchosenReadsError unless all these files are in one of `grants`."""
    granted = [grant.path for grant in grants]
    paths = [path for path in outside if not any(is_inside(path, top) for top in granted)]
    if paths:
        from corral.safe_text import printable

        flags = " ".join(f'--read "{path}"' for path in dict.fromkeys(paths))
        raise UnchosenReadsError(
            f"the server's command needs {printable(paths[0])}, which is neither part of the"
            " server nor granted",
            reads=paths,
            hint=f"to let the server read it, add {printable(flags)}",
        )


def find_on_path(name: str) -> str:
    return Caller(environment=os.environ, cwd="", disk=HostDisk()).lookup(name)


def kind_of(path: str) -> options.Kind:
    name = ntpath.splitext(ntpath.basename(path))[0].lower()
    if name.rstrip("0123456789.tw") in {"python", "pypy", "py"}:
        return "python"
    return options.KINDS.get(name, "")


def locate(name: str, caller: Caller) -> str:
    if name.startswith(("\\\\", "//")):
        raise _refused(
            name,
            "corral does not run programs on shares or devices",
            "copy the program to this machine",
        )
    if any(mark in name for mark in "\\/:"):
        path = caller.complete(caller.absolute(name))
        if path:
            return path
        raise CommandError(f"{name!r} was not found", exit_code=EXIT_NOT_FOUND)
    path = caller.lookup(name)
    if path:
        return path
    hint = "is it installed? A path with a backslash is used as it is"
    if caller.complete(caller.absolute(name)):
        hint = f"to run the program in this directory, type .\\{name}"
    raise CommandError(f"{name!r} was not found on PATH", exit_code=EXIT_NOT_FOUND, hint=hint)


def follow(hop: Hop, caller: Caller, *, subprocess: bool) -> Hop:
    for _ in range(MAX_HOPS):
        following = _next(hop, caller, subprocess=subprocess)
        if following is None:
            return hop
        hop = following
    text = f"it leads through more than {MAX_HOPS} launchers"
    raise _refused(hop.path, text, "name the program itself")


def _next(hop: Hop, caller: Caller, *, subprocess: bool) -> Hop | None:
    """Return the file that `hop` starts, or None if `hop` is the program itself."""
    kind = caller.disk.kind(hop.path)
    if kind == "alias" and kind_of(hop.path) == "python":
        from corral.programs import windows_py_launcher

        return windows_py_launcher.follow(hop, caller)
    if kind == "alias" or "\\windowsapps\\" in hop.path.lower():
        raise _refused(hop.path, "Microsoft Store programs do not start in an AppContainer", STORE)
    if kind != "file":
        raise CommandError(f"{hop.path!r} was not found", exit_code=EXIT_NOT_FOUND)
    stem, extension = ntpath.splitext(hop.path)
    if extension.lower() in BATCH:
        return _batch(hop, caller, subprocess=subprocess)
    if extension.lower() not in EXTENSIONS:
        runtime = SCRIPTS.get(extension.lower(), "the program that runs it")
        raise _refused(
            hop.path, "it is not a program", f"name its interpreter: {runtime} {hop.path}"
        )
    target = caller.disk.read(f"{hop.path}.__target__").decode("utf-8-sig", "replace").strip()
    if target:
        return _managed(hop, target, caller)
    text = caller.disk.read(f"{stem}.shim")
    if text:
        return _shimmed(hop, windows_shims.scoop(text.decode("utf-8", "replace")), caller)
    script = f"{stem}-script.py"
    if caller.disk.kind(script) == "file":
        first = caller.disk.read(script).partition(b"\n")[0]
        return _python(hop, windows_shims.shebang(first.removeprefix(b"#!")), script, caller)
    found = windows_shims.launcher(caller.disk.read(hop.path))
    if found is not None:
        return _python(hop, found, hop.path if found.kind == "script" else "", caller)
    return _interpreter(hop, caller)


def _managed(hop: Hop, target: str, caller: Caller) -> Hop:
    """Follow a launcher of Python's install manager to the interpreter `target`, which is named in
    the file `....exe.__target__` next to the launcher.
    """
    script = f"{hop.path}.__script__.py"
    own = (script,) if caller.disk.kind(script) == "file" else ()
    path = ntpath.normpath(ntpath.join(ntpath.dirname(hop.path), target))
    if caller.disk.kind(path) != "file":
        raise _refused(hop.path, f"its interpreter {target!r} does not exist", "reinstall it")
    scripts = (*hop.scripts, *own)
    return replace(hop, path=path, arguments=(*own, *hop.arguments), scripts=scripts)


def _batch(hop: Hop, caller: Caller, *, subprocess: bool) -> Hop | None:
    directory = ntpath.dirname(hop.path)
    shim = windows_shims.batch(caller.disk.read(hop.path), directory)
    if shim is not None:
        return _shimmed(hop, shim, caller)
    name = ntpath.splitext(ntpath.basename(hop.path))[0].lower()
    if name in INSTALLERS:
        hint = "install the server first and run its own program instead"
        raise _refused(hop.path, f"{name} installs packages when it starts", hint)
    if not subprocess:
        hint = "name the program that the batch file starts, or use --allow-subprocess"
        raise _refused(hop.path, "a batch file is run by cmd.exe, which starts processes", hint)
    return None


def _shimmed(hop: Hop, shim: windows_shims.Shim | None, caller: Caller) -> Hop:
    if shim is None:
        raise _refused(hop.path, "corral cannot find out what it starts", "name the program itself")
    program = shim.beside if caller.disk.kind(shim.beside) == "file" else ""
    if not program and ntpath.isabs(shim.program):
        program = caller.complete(ntpath.normpath(shim.program))
    if not program:
        program = caller.lookup(shim.program) if not ntpath.dirname(shim.program) else ""
    if not program:
        raise _refused(hop.path, f"it starts {shim.program!r}, which does not exist", "install it")
    first = tuple(ntpath.normpath(word) if ntpath.isabs(word) else word for word in shim.arguments)
    return replace(hop, path=program, arguments=(*first, *hop.arguments))


def _python(hop: Hop, found: windows_shims.Launcher | None, script: str, caller: Caller) -> Hop:
    """Replace a launcher with the interpreter that it starts. `script` is the file that the
    interpreter runs, or "" for the redirector of a virtual environment.
    """
    if found is None:
        raise _refused(hop.path, "it names no interpreter", "run its module with python -m")
    here = ntpath.dirname(hop.path)
    python = found.python.replace(windows_shims.HERE, here)
    bare = not ntpath.dirname(python)
    python = ntpath.normpath(ntpath.join(here, python))
    if bare and caller.disk.kind(python) != "file":
        python = caller.lookup(found.python)
    if not python or not caller.complete(python):
        raise _refused(hop.path, f"its interpreter {found.python!r} does not exist", "reinstall it")
    words = (*found.arguments, script) if script else ()
    moved = replace(hop, path=caller.complete(python), arguments=(*words, *hop.arguments))
    if script:
        return replace(moved, scripts=(*hop.scripts, script))
    return _with_venv(moved, hop.path, caller)


def _with_venv(hop: Hop, redirector: str, caller: Caller) -> Hop:
    """Add the redirector's virtual environment to `hop`, and the environment variable that the
    redirector would set so that Python finds it.
    """
    venv = _environment_of(redirector, caller)[1]
    if not venv or hop.venv:
        return hop
    return replace(hop, venv=venv, environment=((LAUNCHER, redirector),))


def _environment_of(path: str, caller: Caller) -> tuple[dict[str, str], str]:
    """Return the settings and the directory of the program's virtual environment, both empty if
    there is none. Like Python's getpath.py, look for pyvenv.cfg next to the program and in the
    directory above.
    """
    above = ntpath.dirname(path)
    for directory in (above, ntpath.dirname(above)):
        raw = caller.disk.read(ntpath.join(directory, "pyvenv.cfg"))
        if raw:
            return windows_shims.settings(raw.decode("utf-8", "replace")), directory
    return {}, ""


def _interpreter(hop: Hop, caller: Caller) -> Hop | None:
    """Follow the `py` launcher, or a virtual environment's python.exe, to the interpreter. Return
    None for any other program, but refuse Volta's shim.
    """
    name = ntpath.basename(hop.path).lower()
    if name in {"py.exe", "pyw.exe"}:
        from corral.programs import windows_py_launcher

        return windows_py_launcher.follow(hop, caller)
    volta = ntpath.join(ntpath.dirname(hop.path), "volta-shim.exe")
    if kind_of(hop.path) == "node" and caller.disk.kind(volta):
        hint = "`volta which node` prints the path of the program itself"
        raise _refused(hop.path, "volta's shim starts another process", hint)
    if kind_of(hop.path) != "python":
        return None
    home = _environment_of(hop.path, caller)[0].get("home", "")
    if not home:
        return None
    names = (ntpath.basename(hop.path), "python.exe")
    bases = [ntpath.normpath(ntpath.join(home, one)) for one in names]
    base = next((one for one in bases if caller.disk.kind(one) == "file"), "")
    if not ntpath.isabs(home) or not base:
        raise _refused(
            hop.path, f"its base {home!r} does not exist", "create the environment again"
        )
    if base.lower() == hop.path.lower():
        return None
    return _with_venv(replace(hop, path=base), hop.path, caller)


def _collect(end: Hop, kind: options.Kind, caller: Caller, needs: Needs) -> tuple[str, ...]:
    """Add the files of the server's script or module to `needs`. Return the program's arguments, in
    which the path of the script is absolute.
    """
    for script in end.scripts:
        needs.server(script, kind)
    found = options.read_arguments(kind, end.arguments)
    if found.module and "I" not in found.flags and "P" not in found.flags:
        module = caller.absolute(found.module.partition(".")[0])
        if caller.disk.kind(module) == "directory" or caller.disk.kind(f"{module}.py"):
            needs.server(caller.cwd, kind)
    if found.script is None:
        return end.arguments
    script = caller.absolute(end.arguments[found.script])
    if not caller.disk.kind(script) and kind not in {"python", "node"}:
        # The word is not a file. In `bun run dev`, for example, `dev` is a name in package.json.
        return end.arguments
    needs.server(script, kind)
    return (*end.arguments[: found.script], script, *end.arguments[found.script + 1 :])


def _find_own_file(end: Hop, kind: options.Kind, arguments: Sequence[str], needs: Needs) -> str:
    """Return the path of the file that is the server, as `find_own_file` does on POSIX systems."""
    at = options.read_arguments(kind, arguments).script
    if at is not None and ntpath.isabs(arguments[at]):
        return arguments[at]
    if end.scripts:
        return end.scripts[0]
    return "" if kind or is_inside(end.path, needs.windows) else end.path


def _refused(path: str, why: str, hint: str) -> CommandError:
    return CommandError(f"{path}: {why}", exit_code=EXIT_NOT_EXECUTABLE, hint=hint)
