"""Resolve launchers, such as shims of version managers, to the program that they start.

If the policy denies subprocesses, a launcher cannot start its program. So this module finds the
program without executing the launcher, from the files that the launcher itself would read. Shell
scripts that only start another program are resolved in the same way.
"""

from __future__ import annotations

import os

from corral.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CommandError
from corral.programs.arguments import SHELLS
from corral.programs.needed_files import is_program, list_names, read_json, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.programs.needed_files import Caller, Executable


def resolve_shim(found: Executable, caller: Caller) -> tuple[str, ...]:
    """Return the program that a shim would execute, and the first arguments. Return () for any
    other file.
    """
    name = os.path.basename(found.path)
    behind = os.path.basename(found.real)
    if behind == "volta-shim" and name != behind:
        return resolve_volta(name, caller)
    if behind in {"mise", "rtx"} and name != behind:
        return (resolve_mise(found.path, caller),)
    if behind == "snap" and name != behind:
        hint = f"give the path of the program itself, below /snap/{name}/current"
        text = f"{found.path} is started by snapd, outside the sandbox"
        raise CommandError(text, exit_code=EXIT_NOT_EXECUTABLE, hint=hint)
    if not found.head.startswith(b"#!") or b"\0" in found.head:
        return ()  # not a shim: no tool writes a NUL byte into one, and no path contains one
    text = os.fsdecode(found.head)
    if "export PYENV_ROOT=" in text and 'exec "$program"' in text:
        return (resolve_pyenv(found.path, text, caller),)
    if "# asdf-plugin: " in text and "asdf exec " in text:
        return (resolve_asdf(found.path, text, caller),)
    return resolve_trampoline(found, text, caller)


def resolve_trampoline(found: Executable, text: str, caller: Caller) -> tuple[str, ...]:
    """Return the command of a shell script that pip, uv or pnpm writes instead of a `#!` line."""
    first, _, rest = text.partition("\n")
    if os.path.basename(first[2:].strip().split(" ")[0]) not in SHELLS and "env bash" not in first:
        return ()
    here = os.path.dirname(found.path)
    # pip and uv write this line if the interpreter's path does not fit into a `#!` line.
    if rest.startswith("'''exec' "):
        command = rest.partition("\n")[0][len("'''exec' ") :].replace(' "$0" "$@"', "")
        relative = '"$(dirname -- "$(realpath -- "$0")")"/'
        if command.startswith(relative):
            name = command[len(relative) :].strip("'\"")
            return (caller.absolute(f"{os.path.dirname(found.real)}/{name}"), found.path)
        interpreter = command.strip().strip("'\"")
        return (caller.absolute(interpreter), found.path) if interpreter.startswith("/") else ()
    for line in rest.split("\n"):  # the shim that pnpm puts into node_modules/.bin
        words = line.split('"')
        if line.strip().startswith("exec node ") and len(words) == 5 and words[3] == "$@":
            script = words[1].replace("$basedir", here, 1)
            sibling = f"{here}/node"
            runtime = sibling if is_program(sibling) else caller.lookup("node")
            return (runtime, caller.absolute(script)) if runtime else ()
    return ()


def unresolved(shim: str, why: str, hint: str) -> CommandError:
    return CommandError(f"{shim}: {why}", exit_code=EXIT_NOT_FOUND, hint=hint)


def walk_up(directory: str) -> Iterator[str]:
    while True:
        yield directory
        if directory in {"/", ""}:
            return
        directory = os.path.dirname(directory)


def resolve_pyenv(shim: str, text: str, caller: Caller) -> str:
    """Find a command as pyenv-which does: in the selected versions, then on PATH."""
    name, shims = os.path.basename(shim), os.path.dirname(shim)
    root = text.partition('export PYENV_ROOT="')[2].partition('"')[0]
    if not root.startswith("/"):
        root = os.path.dirname(shims)
    selected = pyenv_selected(root, caller)
    for version in selected:
        if version == "system":
            path = caller.lookup(name, without=f"{root}/shims")
        else:
            path = f"{root}/versions/{pyenv_version(root, version)}/bin/{name}"
        if path and is_program(path):
            return path
    path = caller.lookup(name, without=f"{root}/shims")
    if path:
        return path
    versions = f"{root}/versions"
    having = [v for v in list_names(versions) if is_program(f"{versions}/{v}/bin/{name}")]
    hint = "it exists in " + ", ".join(having) + ": set PYENV_VERSION" if having else "pyenv rehash"
    chosen = ":".join(selected)
    raise unresolved(shim, f"pyenv's selected version ({chosen}) has no {name!r}", hint)


def pyenv_selected(root: str, caller: Caller) -> list[str]:
    chosen = caller.environment.get("PYENV_VERSION", "")
    if chosen:
        return chosen.split(":")
    files = [*(f"{parent}/.python-version" for parent in walk_up(caller.cwd)), f"{root}/version"]
    file = next(filter(os.path.isfile, files), "")  # the nearest file decides, even if it is empty
    words = [line.split()[0] for line in read_text(file).splitlines() if line.split()]
    words = [word for word in words if not word.startswith("#")]
    # pyenv accepts `python-3.12` for 3.12, but only in a file, not in PYENV_VERSION.
    named = [name for word in words for name in (word, word.removeprefix("python-"))]
    return list(dict.fromkeys(named)) or ["system"]


def pyenv_version(root: str, wanted: str) -> str:
    """Return the newest installed version for a name such as `3.12.1` or `3.12`, or the name itself
    if no version fits. If the name leads out of the versions directory, return '.', so that no
    program is found.
    """
    if ".." in wanted.split("/") or wanted.startswith("/"):
        return "."
    if os.path.isdir(f"{root}/versions/{wanted}"):
        return wanted
    stem = wanted.removesuffix("t")
    matching = [
        version
        for version in list_names(f"{root}/versions")
        if version.startswith((f"{stem}.", f"{stem}-"))
        and _is_release(version, free_threaded=stem != wanted)
    ]
    return max(matching, key=_version_key, default=wanted)


def _is_release(version: str, *, free_threaded: bool) -> bool:
    if version.endswith(("-dev", "-src", "-latest")) or version.endswith("t") != free_threaded:
        return False
    stem = version.rstrip("0123456789")
    return stem == version or not stem.endswith(("a", "b", "rc"))


def _version_key(version: str) -> tuple[str, tuple[int, ...]]:
    first, *rest = version.replace("-", ".", 1).split(".")
    digits = ("".join(c for c in part if c.isdigit()) for part in rest)
    return first, tuple(int(part or 0) for part in digits)


def resolve_volta(name: str, caller: Caller) -> tuple[str, ...]:
    root = caller.variable("VOLTA_HOME", f"{caller.home}/.volta")
    image = f"{root}/tools/image"
    package = read_json(f"{root}/tools/user/bins/{name}.json")
    if package:
        node = _read_text_at(package, "platform", "node", "runtime") or _read_text_at(
            package, "platform", "node"
        )
        script = f"{image}/packages/{_read_text_at(package, 'package')}/bin/{name}"
        runtime = f"{image}/node/{node}/bin/node"
        if is_program(runtime) and is_program(script):
            return (runtime, script)
    platform = read_json(f"{root}/tools/user/platform.json")
    pinned = volta_pinned(caller.cwd)
    tool = "npm" if name == "npx" else name
    own = pinned.get(tool) or _read_text_at(platform, tool) or _read_text_at(platform, "node", tool)
    node = pinned.get("node") or _read_text_at(platform, "node", "runtime")
    candidates = [f"{image}/{tool}/{own}/bin/{name}"] if own else []
    if node:
        candidates.append(f"{image}/node/{node}/bin/{name}")
    for path in candidates:
        if is_program(path):
            return (path,)
    hint = f"volta install {tool}, or give the path of the program itself below {image}"
    raise unresolved(f"{root}/bin/{name}", f"no version that Volta selects has {name!r}", hint)


def volta_pinned(cwd: str) -> dict[str, str]:
    """Return {tool: version} from the `volta` section of the nearest package.json, and of the files
    to which the key `extends` in this section refers.
    """
    file = next((f for d in walk_up(cwd) if os.path.isfile(f := f"{d}/package.json")), "")
    pinned: dict[str, str] = {}
    for _ in range(8):
        section = read_json(file).get("volta") if file else None
        if not isinstance(section, dict):
            break
        for tool, version in section.items():
            if isinstance(version, str):
                pinned.setdefault(str(tool), version)
        extends = section.get("extends")
        file = os.path.join(os.path.dirname(file), extends) if isinstance(extends, str) else ""
    return {tool: version for tool, version in pinned.items() if "/" not in version}


def resolve_asdf(shim: str, text: str, caller: Caller) -> str:
    name = os.path.basename(shim)
    root = caller.variable("ASDF_DATA_DIR", os.path.dirname(os.path.dirname(shim)))
    marks = [line.split() for line in text.splitlines() if line.startswith("# asdf-plugin: ")]
    plugins = [words[2] for words in marks if len(words) > 2]
    for tool, version in tool_versions(caller, "ASDF"):
        if tool in plugins:
            path = _installed(root, tool, version, name, caller)
            if path:
                return path
    tool = plugins[0] if plugins else name
    hint = f"asdf set {tool} VERSION, or give the program's path below {root}/installs"
    raise unresolved(shim, f"no version that asdf selects here has {name!r}", hint)


def resolve_mise(shim: str, caller: Caller) -> str:
    name = os.path.basename(shim)
    data = caller.variable("XDG_DATA_HOME", f"{caller.home}/.local/share")
    root = caller.variable("MISE_DATA_DIR", f"{data}/mise")
    for tool, version in tool_versions(caller, "MISE"):
        path = _installed(root, tool, version, name, caller)
        if path:
            return path
    hint = f"mise use {name}, or give the path of the program itself below {root}/installs"
    raise unresolved(shim, f"no version that mise selects here has {name!r}", hint)


def _installed(root: str, tool: str, version: str, name: str, caller: Caller) -> str:
    if version == "system":
        return caller.lookup(name, without=f"{root}/shims")
    if version.startswith("path:/"):
        prefix = version.removeprefix("path:")
    elif "/" in version or version.startswith("."):
        return ""
    else:
        folder = tool.replace(":", "-").replace("/", "-").replace("@", "")
        prefix = f"{root}/installs/{folder}/{version.removeprefix('prefix:')}"
    return next(filter(is_program, (f"{prefix}/bin/{name}", f"{prefix}/{name}")), "")


def tool_versions(caller: Caller, manager: str) -> Iterator[tuple[str, str]]:
    """Yield (tool, version) from the environment, then from files in cwd and above, then from the
    user's own files.
    """
    for variable, version in caller.environment.items():
        if variable.startswith(f"{manager}_") and variable.endswith("_VERSION"):
            tool = variable[len(manager) + 1 : -len("_VERSION")].lower().replace("_", "-")
            yield from ((tool, word) for word in version.split())
    config = caller.variable("XDG_CONFIG_HOME", f"{caller.home}/.config")
    for directory in walk_up(caller.cwd):
        for tool, version in _selected_in(directory, manager):
            # `directory` may be a project that has nothing to do with the server. So it may select
            # an installed version, but not a path, which could be one of the project's own files.
            if not version.startswith("path:"):
                yield tool, version
    if manager == "MISE":
        yield from _mise_tools(f"{config}/mise/config.toml")
    yield from _tool_lines(f"{caller.home}/.tool-versions")


def _selected_in(directory: str, manager: str) -> Iterator[tuple[str, str]]:
    if manager == "MISE":
        for file in ("mise.local.toml", ".mise.local.toml", "mise.toml", ".mise.toml",
                     "mise/config.toml", ".mise/config.toml", ".config/mise.toml",
                     ".config/mise/config.toml"):  # fmt: skip
            yield from _mise_tools(f"{directory}/{file}")
    yield from _tool_lines(f"{directory}/.tool-versions")


def _tool_lines(file: str) -> Iterator[tuple[str, str]]:
    for line in read_text(file).splitlines():
        tool, *versions = line.partition("#")[0].split() or [""]
        yield from ((tool, version) for version in versions)


def _mise_tools(file: str) -> Iterator[tuple[str, str]]:
    text = read_text(file)
    if not text:
        return
    from corral.formats.bounded_toml import parse_toml

    try:
        tools = parse_toml(text).get("tools")
    except ValueError:
        return
    for tool, wanted in tools.items() if isinstance(tools, dict) else ():
        for item in wanted if isinstance(wanted, list) else [wanted]:
            version = item.get("version") if isinstance(item, dict) else item
            if isinstance(version, (str, int, float)):
                yield str(tool), str(version)


def _read_text_at(value: object, *keys: str) -> str:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return (
        value
        if isinstance(value, str) and "/" not in value.removeprefix("@").replace("/", "", 1)
        else ""
    )
