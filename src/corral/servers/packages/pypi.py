"""Install a package from PyPI into a virtual environment of its own. Later, the Python of this
environment runs the package.

Without `--allow-install-scripts` only wheels are installed, because building a source archive would
run the package's code. The installer is uv if the host has it, and otherwise pip. On Windows it is
always pip, because uv starts the interpreter at its original path, which no AppContainer can read.
Each downloaded file is checked against the hash in the index, and the list of hashes is kept beside
the installed packages.
"""

import configparser
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.programs.needed_files import find_on_path, list_names, read_text
from corral.record import replace
from corral.safe_text import shown
from corral.servers.packages.install_errors import BUILD, NO_WHEEL
from corral.servers.packages.pypi_settings import INTERPRETER, LINKS, WINDOWS, read_registry
from corral.servers.packages.python_environment import (
    Environment,
    check_environment,
    make_environment,
)
from corral.servers.packages.sandboxed_install import (
    FETCH_SECONDS,
    Notify,
    ask_program,
    choose_program,
    read_bounded_text,
    read_json,
    run_installer,
    write_text,
)
from corral.servers.packages.sources import InstallOptions, plain_index, without_credentials
from corral.servers.reference import Reference, is_version, normalize_name
from corral.servers.store.store import make_downloads

LOCK = "requirements.lock"
REQUIREMENTS = "requirements.in"
REPORT = "report.json"
START_SCRIPT = "start.py"
HINT = "install uv (https://docs.astral.sh/uv/) or pip (Debian, Ubuntu: apt install python3-pip)"
SAFE_PATH = (3, 11)
"""The first version of Python that has the option -P, which keeps the directory of the start script
out of `sys.path`.
"""
WINDOWS_HINT = "install Python from python.org, which includes pip, and then install corral with it"
INDEX_MARK = "    # from "
LOCKED = r"(?P<project>[a-zA-Z0-9][\w.\-]*)(?:\[[\w.,\-]*\])?==(?P<version>[\w.!+\-]+)"
HASH = r"--hash=(?:sha256:[0-9a-f]{64}|(?!sha256)\w+:[0-9a-f]+)"
Locked = tuple[str, tuple[str, ...]]  # (version, `--hash` options)
WHEELS = ("--only-binary", ":all:")
UV = {
    "UV_NO_CONFIG": "1",
    "UV_LINK_MODE": "copy",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "UV_HTTP_RETRIES": "1",
    "UV_HTTP_TIMEOUT": str(FETCH_SECONDS),
}
SCRIPT = """\
import sys

sys.argv[0] = {name!r}
from {module} import {first}

sys.exit({call}())
"""
MODULE = """\
import runpy
import sys

sys.argv[0] = {name!r}
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def install(
    reference: Reference, staging: str, how: InstallOptions, notify: Notify = lambda _: None
) -> dict[str, object]:
    environment, reference = _prepare(reference, staging, how, notify)
    install_requirements(environment, scripts=how.scripts)
    chosen, integrity = check_lock(staging)
    if not is_version(chosen.get(reference.name, "")):
        raise SandboxError(f"{reference.name} was not installed")
    write_start_script(staging, environment.site, reference)
    safe_path = ["-P"] if environment.version >= SAFE_PATH else []
    urls = environment.registry.urls
    return {
        "version": chosen[reference.name],
        "integrity": integrity,
        "origin": without_credentials(urls[0]) if urls else "this machine",
        # If a package may have run code, corral does not record which index the packages came from,
        # because that code may have written false addresses into the lock file.
        "index": "" if how.scripts else find_index(staging),
        "command": [f"{{tree}}/{INTERPRETER}", *safe_path, f"{{tree}}/{START_SCRIPT}"],
    }


def resolve(
    reference: Reference, staging: str, how: InstallOptions, notify: Notify
) -> dict[str, str]:
    """Return the versions that would be installed now, in the same form as `list_versions`, without
    installing anything.
    """
    environment, _ = _prepare(reference, staging, how, notify)
    _resolve(environment, scripts=how.scripts, words=[])
    return list_versions(staging)


def _prepare(
    reference: Reference, staging: str, how: InstallOptions, notify: Notify
) -> tuple[Environment, Reference]:
    """Make an empty environment and write the package's requirements into it. If the reference has
    no version, use the newest one.
    """
    for item in how.extra:
        if item.startswith(("-", ".", "/")) or not item.isprintable():
            raise SandboxError(f"--with {shown(item)} is not a package", hint="--with 'name<2'")
    registry = read_registry(os.environ)
    python = how.runtimes.get("python", "")
    made = make_environment(staging, registry, reference.text, python)
    environment = replace(made, notify=notify)
    if not reference.version:
        newest = find_newest(environment, reference, scripts=how.scripts)
        reference = replace(reference, version=newest)
    write_text(staging, REQUIREMENTS, "\n".join([reference.requirement(), *how.extra, ""]))
    return environment, reference


def find_newest(environment: Environment, reference: Reference, *, scripts: bool) -> str:
    """Return the newest version of a package, even if its dependencies cannot be installed. Raise
    SandboxError if the newest version has no wheel.

    The installer must not choose the version itself. If a dependency of the newest version has no
    wheel, it would silently choose an older version.
    """
    write_text(environment.staging, REQUIREMENTS, f"{reference.requirement()}\n")
    _resolve(environment, scripts=scripts, words=["--no-deps"])
    version = check_lock(environment.staging)[0].get(reference.name, "")
    if not is_version(version):
        raise SandboxError(f"{environment.label} was not found in the package index")
    newer = "" if scripts else _find_newer_source(environment, reference, version)
    if newer:
        why = NO_WHEEL.format(package=f"{reference.name} {newer}")
        raise SandboxError(
            f"cannot install {environment.label}: {why}",
            hint=f"{BUILD}; {reference.name}=={version} is the newest with a wheel",
        )
    return version


def _find_newer_source(environment: Environment, reference: Reference, version: str) -> str:
    """Return a version that has only a source archive and is newer than the newest wheel, or "" if
    no such version exists.

    This takes a separate request to the index, because an installer that may use only wheels does
    not mention such versions.
    """
    if not find_uv():
        try:
            output = _start_pip(environment, ["index", "versions", reference.name], scripts=False)
        except SandboxError as error:
            if "No matching distribution found" in "\n".join(error.lines):
                # All versions are pre-releases, which this command of pip lists only with --pre.
                return ""
            raise
        newest = re.search(r"(?m)^\S+ \((\S+)\)$", "\n".join(output))
        return newest[1] if newest and newest[1] != version else ""
    # The operator `>` does not accept a local version such as 1.0+cpu, so leave out `+cpu`.
    public = version.partition("+")[0]
    write_text(environment.staging, REQUIREMENTS, f"{reference.name}>{public}\n")
    try:
        _resolve(environment, scripts=False, words=["--no-deps"])
    except SandboxError as error:
        text = "\n".join(error.lines)
        if "unsatisfiable" not in text:
            raise
        source = re.search(rf"{re.escape(reference.name)}==(\S+) has no (?:usable )?wheels", text)
        return source[1] if source else ""
    raise SandboxError(f"the package index has changed: there is a newer {reference.name} now")


def install_requirements(environment: Environment, *, scripts: bool) -> None:
    """Install the requirements in `requirements.in`, and write a lock file for them."""
    if uv := find_uv():
        # First write a lock file with hashes, and then install exactly the packages in it.
        _resolve(environment, scripts=scripts, words=[])
        words = ["--require-hashes", "--compile-bytecode", "--target", environment.site]
        lock = environment.path(LOCK)
        _run_uv([uv, "pip", "install", *words, "-r", lock], environment, scripts=scripts)
    else:
        _run_pip(["--target", environment.site], environment, scripts=scripts)
    check_environment(environment)


def _resolve(environment: Environment, *, scripts: bool, words: Sequence[str]) -> None:
    """Write the lock file for `requirements.in`, without installing anything."""
    if uv := find_uv():
        form = ["--generate-hashes", "--no-header", "--no-annotate", "-q"]
        # `find_index` reads the indexes from the lock file. uv writes them without credentials.
        form.append("--emit-index-annotation")
        files = ["-o", environment.path(LOCK), environment.path(REQUIREMENTS)]
        # Remove an older lock file, because uv would keep the versions in it.
        with suppress(FileNotFoundError):
            os.unlink(environment.path(LOCK))
        _run_uv([uv, "pip", "compile", *form, *words, *files], environment, scripts=scripts)
    else:
        _run_pip(["--dry-run", "--ignore-installed", *words], environment, scripts=scripts)


def find_uv() -> str:
    return "" if WINDOWS else find_on_path("uv")


def _run_uv(argv: Sequence[str], environment: Environment, *, scripts: bool) -> None:
    prefix = os.path.dirname(os.path.dirname(environment.base))
    run_installer(
        [*argv, "--python", environment.base, *([] if scripts else WHEELS)],
        staging=environment.staging,
        registry=environment.registry,
        label=environment.label,
        settings=UV,
        subprocess=True,  # uv starts the interpreter to ask for its version
        reads=[] if prefix.startswith("/usr") else [prefix],
        links=LINKS,
        notify=environment.notify,
    )


def _run_pip(words: Sequence[str], environment: Environment, *, scripts: bool) -> None:
    """Run `pip install`, and write the versions that pip chose into a lock file in uv's format."""
    report = environment.path(REPORT)
    given = [*words, "--report", report, "-r", environment.path(REQUIREMENTS)]
    form = ["--no-cache-dir", "-q", *([] if scripts else WHEELS)]
    _start_pip(environment, ["install", *form, *given], scripts=scripts)
    lines = _report_to_lock(report)
    write_text(environment.staging, LOCK, "".join(f"{line}\n" for line in lines))
    os.unlink(report)


def _start_pip(environment: Environment, words: Sequence[str], *, scripts: bool) -> list[str]:
    pip, reads = find_pip(environment.base)
    options = ["--no-input", "--disable-pip-version-check", "--retries=1"]
    options.append(f"--timeout={FETCH_SECONDS}")
    return run_installer(
        [environment.base, "-I", *pip, *words, *options],
        staging=environment.staging,
        registry=environment.registry,
        label=environment.label,
        # pip writes its downloads to TMPDIR. corral watches the size of this directory to see
        # whether the registry answers.
        settings={"PIP_CONFIG_FILE": os.devnull, "TMPDIR": make_downloads(environment.staging)},
        subprocess=scripts,
        reads=reads,
        links=LINKS,
        notify=environment.notify,
    )


def find_pip(base: str) -> tuple[list[str], list[str]]:
    """Return the arguments with which the interpreter `base` starts pip. Also return directories
    that `base` then has to read in addition to its own files.
    """
    # On Windows only the prefix of `base` is copied into the sandbox, so this prefix must contain
    # pip.
    if WINDOWS:
        return _find_pip_in(os.path.dirname(base)), []
    if ask_program([base, "-I", "-c", "import pip; print(pip.__name__)"]):
        return ["-m", "pip"], []
    own = find_spec("pip")  # Debian's Python has no pip, but corral's own environment may have one
    if own is None or own.origin is None:
        text = f"uv was not found, and {base} has no pip"
        raise CommandError(text, exit_code=EXIT_NOT_FOUND, hint=HINT)
    package = os.path.dirname(own.origin)
    return [package], [os.path.dirname(package)]


def _find_pip_in(prefix: str) -> list[str]:
    if os.path.isdir(os.path.join(prefix, "Lib", "site-packages", "pip")):
        return ["-m", "pip"]
    folder = os.path.join(prefix, "Lib", "ensurepip", "_bundled")
    for name in list_names(folder):
        if name.startswith("pip-") and name.endswith(".whl"):
            return [os.path.join(folder, name, "pip")]
    raise CommandError(f"{prefix} has no pip", exit_code=EXIT_NOT_FOUND, hint=WINDOWS_HINT)


def _report_to_lock(report: str) -> list[str]:
    """Convert pip's report to the lines of a lock file in uv's format."""
    items = read_json(report).get("install")
    found: list[str] = []
    for item in items if isinstance(items, list) else ():
        try:
            meta, archive = item["metadata"], item["download_info"].get("archive_info", {})
            digest = archive.get("hashes", {}).get("sha256", "")
            name, version = normalize_name(meta["name"]), meta["version"]
        except (KeyError, TypeError, AttributeError):
            raise SandboxError(f"{REPORT} does not have pip's format") from None
        found += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return found


def check_lock(staging: str) -> tuple[dict[str, str], str]:
    """Return the version of each package, and the digest of the lock file. Raise SandboxError if a
    package has no SHA-256.
    """
    text = read_bounded_text(os.path.join(staging, LOCK))
    chosen = {name: version for name, (version, _) in _parse_lock(text).items()}
    return chosen, f"sha256-{sha256(text.encode()).hexdigest()}"


def read_lock(tree: str) -> dict[str, Locked]:
    return _parse_lock(read_bounded_text(os.path.join(tree, LOCK)))


def _parse_lock(text: str) -> dict[str, Locked]:
    """Return the version and the hashes of each package, keyed by its name.

    Refuse a package without a SHA-256, and any line that is not a package. Such a line could be an
    option such as `--index-url`, which would override the options on the command line.
    """
    found: dict[str, Locked] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        named = re.fullmatch(LOCKED, words[0], re.ASCII)
        if named is None or not all(re.fullmatch(HASH, word, re.ASCII) for word in words[1:]):
            raise SandboxError(f"{LOCK} has a line that is not a package: {shown(line, 200)}")
        hashes = tuple(word for word in words[1:] if word.startswith("--hash=sha256:"))
        if not hashes:
            raise SandboxError(f"{shown(words[0], 200)} came without a hash")
        found[normalize_name(named["project"])] = named["version"], hashes
    return found


def format_lock(packages: Mapping[str, Locked]) -> str:
    lines = [
        " \\\n    ".join([f"{name}=={version}", *hashes])
        for name, (version, hashes) in packages.items()
    ]
    return "".join(f"{line}\n" for line in lines)


def find_index(staging: str) -> str:
    """Return the index from which all packages came. Return "" if they came from several indexes,
    or if uv did not name the index of every package.
    """
    text = read_bounded_text(os.path.join(staging, LOCK))
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(INDEX_MARK)]
    one = len(found) == len(check_lock(staging)[0]) and len(set(found)) == 1
    return plain_index(found[0]) if one else ""


def list_versions(tree: str) -> dict[str, str]:
    return check_lock(tree)[0]


def list_checksums(_tree: str) -> dict[str, str]:
    """Return no checksums. An index may add files to a version at any time, so a different checksum
    does not mean that a package was replaced.
    """
    return {}


def write_start_script(staging: str, site: str, reference: Reference) -> None:
    """Write a script that starts the package's program. The script has no `#!` line, because corral
    starts it with the interpreter of the environment.
    """
    scripts = console_scripts(site, reference.name)
    module = reference.name.replace("-", "_")
    if not scripts and os.path.isfile(os.path.join(site, module, "__main__.py")):
        write_text(staging, START_SCRIPT, MODULE.format(name=reference.name, module=module))
        return
    name = choose_program(list(scripts), reference, reference.name)
    where, _, attribute = scripts[name].partition("[")[0].strip().partition(":")
    words = [*where.strip().split("."), *attribute.strip().split(".")]
    if not all(word.isidentifier() for word in words):
        raise SandboxError(f"the script {shown(name)} of {reference.name} cannot be read")
    first = attribute.strip().partition(".")[0]
    text = SCRIPT.format(name=name, module=where.strip(), first=first, call=attribute.strip())
    write_text(staging, START_SCRIPT, text)


def console_scripts(site: str, name: str) -> dict[str, str]:
    for folder in sorted(os.listdir(site)):
        project, info, _ = folder.partition(".dist-info")
        if not info or normalize_name(project.rpartition("-")[0]) != name:
            continue
        reader = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        reader.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
        try:
            reader.read_string(read_text(os.path.join(site, folder, "entry_points.txt")))
            return dict(reader["console_scripts"]) if reader.has_section("console_scripts") else {}
        except configparser.Error as error:
            raise SandboxError(f"the entry points of {name} cannot be read: {error}") from None
    return {}
