"""Find the script or module in a runtime's arguments. All words after it are its own arguments."""

from __future__ import annotations

import os

from corral.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import Literal

    Kind = Literal["python", "node", "deno", "bun", "java", "script", ""]

KINDS: Mapping[str, Kind] = {
    "node": "node", "nodejs": "node", "deno": "deno", "bun": "bun", "java": "java",
}  # fmt: skip
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh")
SCRIPT_RUNNERS = (*SHELLS, "ruby", "perl", "php", "lua", "Rscript", "dotnet", "tclsh")
NODE_WITH_VALUE = frozenset((
    "-r", "--require", "--import", "-C", "--conditions", "--loader", "--experimental-loader",
    "--env-file", "--env-file-if-exists", "--title", "--icu-data-dir", "--openssl-config",
    "--input-type", "--inspect-port", "--debug-port", "--redirect-warnings", "--report-dir",
    "--report-directory", "--report-filename", "--report-signal", "--diagnostic-dir",
    "--disable-warning", "--dns-result-order", "--secure-heap", "--secure-heap-min",
    "--unhandled-rejections", "--tls-cipher-list", "--tls-keylog", "--trace-event-categories",
    "--trace-event-file-pattern", "--use-largepages", "--v8-pool-size", "--watch-path",
    "--heapsnapshot-signal", "--heapsnapshot-near-heap-limit", "--cpu-prof-dir",
    "--cpu-prof-name", "--cpu-prof-interval", "--heap-prof-dir", "--heap-prof-name",
    "--heap-prof-interval", "--max-http-header-size", "--localstorage-file",
    "--experimental-config-file", "--allow-fs-read", "--allow-fs-write", "--snapshot-blob",
    "--policy",
))  # fmt: skip
NODE_WITHOUT_SCRIPT = (
    "-e", "--eval", "-p", "--print", "-pe", "--run", "--test", "-v", "--version", "-h", "-",
)  # fmt: skip
OTHER_WITH_VALUE = ("-c", "--config", "--import-map", "--cwd", "--env-file", "--preload", "-r")
# Characters of a version in a file name. The t is for free-threaded builds such as python3.13t.
PYTHON_VERSION = "0123456789.t"


@record
class Invocation:
    """The code that a runtime runs. `script` is the index of the script in the runtime's arguments,
    `module` is the word after `-m`, and `flags` contains the letters of Python's other short
    options.
    """

    script: int | None = None
    module: str = ""
    flags: str = ""


def detect_kind(path: str, real: str) -> Kind:
    """Detect the kind of a runtime from the file name of its path or of its real path. Return "" if
    the kind is unknown.
    """
    for executable in (path, real):
        name = os.path.basename(executable)
        if name.rstrip(PYTHON_VERSION) in {"python", "pypy"}:
            return "python"
        if name in KINDS:
            return KINDS[name]
        if name.rstrip("0123456789.") in SCRIPT_RUNNERS:
            return "script"
    return ""


def read_arguments(kind: Kind, arguments: Sequence[str]) -> Invocation:
    if kind == "python":
        return _python_arguments(arguments)
    if kind == "node":
        return _skip_options(arguments, ("inspect",), NODE_WITH_VALUE, NODE_WITHOUT_SCRIPT)
    if kind in {"deno", "bun"}:
        return _skip_options(arguments, ("run", "serve"), OTHER_WITH_VALUE)
    if kind == "java":
        index = arguments.index("-jar") + 1 if "-jar" in arguments else len(arguments)
        return Invocation(script=index if index < len(arguments) else None)
    if kind == "script" and arguments and not arguments[0].startswith("-"):
        return Invocation(script=0)
    return Invocation()


def _python_arguments(arguments: Sequence[str]) -> Invocation:
    flags, index = "", 0
    while index < len(arguments):
        word = arguments[index]
        if word == "-" or not word:
            return Invocation(flags=flags)
        if word == "--":
            index += 1
            return Invocation(script=index if index < len(arguments) else None, flags=flags)
        if not word.startswith("-"):
            return Invocation(script=index, flags=flags)
        index += 1
        if word.startswith("--"):
            index += word == "--check-hash-based-pycs"
            continue
        for position, letter in enumerate(word[1:], start=2):
            if letter == "c":
                return Invocation(flags=flags)
            value = word[position:]
            if letter == "m":
                module = value or (arguments[index] if index < len(arguments) else "")
                return Invocation(module=module, flags=flags)
            if letter in "WX":
                index += not value
                break
            flags += letter
    return Invocation(flags=flags)


def _skip_options(
    arguments: Sequence[str],
    verbs: Container[str],
    with_value: Container[str],
    without_script: Container[str] = (),
) -> Invocation:
    """Find the script in a runtime's arguments: the first word that is neither an option nor an
    option's value. Skip a verb such as `run` at the beginning.

    There is no script if an option in `without_script` comes first.
    """
    index = 1 if arguments and arguments[0] in verbs else 0
    while index < len(arguments):
        word = arguments[index]
        if word.partition("=")[0] in without_script:
            break
        if word == "--":
            index += 1
            return Invocation(script=index if index < len(arguments) else None)
        if not word.startswith("-"):
            return Invocation(script=index)
        index += 2 if word in with_value else 1
    return Invocation()
