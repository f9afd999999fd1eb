"""Installs a package of PyPI into its own virtual environment, whose Python runs it later.

Only wheels are installed: building a source archive would run code of the package before the server
itself runs. The installer is uv if the host has it, else the interpreter's own pip. Each file is
checked against the index's hash, and the list of hashes stays in the tree.
"""

import configparser
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.programs.needed_files import find_on_path, read_text
from corral.programs.runtimes import find_own_python
from corral.record import record
from corral.safe_text import shown
from corral.servers.packages.pypi_settings import INTERPRETER, read_registry
from corral.servers.packages.sandboxed_install import (
    choose_program,
    read_bounded_text,
    read_json,
    run_installer,
    write_text,
)
from corral.servers.packages.sources import Registry, without_credentials
from corral.servers.reference import Reference, is_version, normalize_name

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LOCK = "requirements.lock"
REQUIREMENTS = "requirements.in"
REPORT = "report.json"
START_SCRIPT = "start.py"
VENV_SETTINGS = "pyvenv.cfg"
MAX_SETTINGS_BYTES = 1 << 16
HINT = "install uv (https://docs.astral.sh/uv/), or pip for the Python that runs corral"
WHEELS = ("--only-binary", ":all:")
UV = {
    "UV_NO_CONFIG": "1",
    "UV_CACHE_DIR": "/tmp/uv",  # noqa: S108 - the sandbox's own
    "UV_LINK_MODE": "copy",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "UV_HTTP_RETRIES": "1",
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


@record
class Environment:
    """A virtual environment to be filled: its paths, its base interpreter, its package source."""

    staging: str
    site: str
    base: str
    registry: Registry
    label: str

    def path(self, name: str) -> str:
        return os.path.join(self.staging, name)


def install(
    reference: Reference, staging: str, *, scripts: bool, extra: Sequence[str]
) -> dict[str, object]:
    for item in extra:
        if item.startswith(("-", ".", "/")) or not item.isprintable():
            raise SandboxError(f"--with {shown(item)} is no package", hint="--with 'name<2'")
    registry = read_registry(os.environ)
    write_text(staging, REQUIREMENTS, "\n".join([reference.requirement(), *extra, ""]))
    environment = make_environment(staging, registry, reference.text)
    install_requirements(environment, scripts=scripts)
    chosen, integrity = check_lock(staging)
    if not is_version(chosen.get(reference.name, "")):
        raise SandboxError(f"{reference.name} was not installed")
    write_start_script(staging, environment.site, reference)
    return {
        "version": chosen[reference.name],
        "integrity": integrity,
        "origin": without_credentials(registry.urls[0]) if registry.urls else "this machine",
        "command": [f"{{tree}}/{INTERPRETER}", "-P", f"{{tree}}/{START_SCRIPT}"],
    }


def make_environment(staging: str, registry: Registry, label: str) -> Environment:
    """Make a virtual environment: a link to the interpreter and a file of settings."""
    base = find_own_python()
    site = os.path.join(staging, "lib", f"python{VERSION}", "site-packages")
    os.makedirs(site)
    os.mkdir(os.path.join(staging, "bin"))
    os.symlink(base, os.path.join(staging, INTERPRETER))
    write_text(staging, VENV_SETTINGS, _venv_settings(base))
    return Environment(staging=staging, site=site, base=base, registry=registry, label=label)


def _venv_settings(base: str) -> str:
    text = f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n"
    return f"{text}version = {VERSION}\n"


def check_environment(environment: Environment) -> None:
    """Refuse an environment in which a package changed what decides which interpreter starts.

    A package chooses the names of its scripts and files, and an installer with a bug would follow
    them out of the directory for packages. A package whose scripts ran may have written anywhere.
    """
    base, link = environment.base, environment.path(INTERPRETER)
    with open(environment.path(VENV_SETTINGS), "rb") as file:
        written = file.read(MAX_SETTINGS_BYTES)
    own = os.listdir(os.path.dirname(link)) == [os.path.basename(link)]
    if not own or not os.path.islink(link) or written != _venv_settings(base).encode():
        raise SandboxError(f"a package changed {INTERPRETER} or {VENV_SETTINGS}: it is not run")
    if os.readlink(link) != base:
        raise SandboxError(f"a package changed where {INTERPRETER} leads: it is not run")


def install_requirements(environment: Environment, *, scripts: bool) -> None:
    """Install what `requirements.in` names, and write the lock file."""
    if uv := find_on_path("uv"):
        _install_with_uv(uv, environment, scripts=scripts)
    else:
        _install_with_pip(environment, scripts=scripts)
    check_environment(environment)


def _install_with_uv(uv: str, environment: Environment, *, scripts: bool) -> None:
    """Write a lock file with hashes, then install exactly that."""
    base, lock = environment.base, environment.path(LOCK)
    shared = ["--python", base, *([] if scripts else WHEELS)]
    steps = (
        ["compile", "--generate-hashes", "--no-header", "--no-annotate", "-q", "-o", lock,
         environment.path(REQUIREMENTS)],
        ["install", "--require-hashes", "--compile-bytecode", "--target", environment.site,
         "-r", lock],
    )  # fmt: skip
    prefix = os.path.dirname(os.path.dirname(base))
    for verb, *words in steps:
        run_installer(
            [uv, "pip", verb, *shared, *words],
            staging=environment.staging,
            registry=environment.registry,
            label=environment.label,
            settings=UV,
            subprocess=True,  # uv starts the interpreter to learn its version
            reads=[] if prefix.startswith("/usr") else [prefix],
            links=(INTERPRETER,),
        )


def _install_with_pip(environment: Environment, *, scripts: bool) -> None:
    base, report = environment.base, environment.path(REPORT)
    if not _has_pip(base):
        text = f"neither uv nor pip for {base} was found"
        raise CommandError(text, exit_code=EXIT_NOT_FOUND, hint=HINT)
    run_installer(
        [base, "-I", "-m", "pip", "install", "--no-input", "--no-cache-dir", "-q",
         "--disable-pip-version-check", *([] if scripts else WHEELS), "--target", environment.site,
         "--report", report, "-r", environment.path(REQUIREMENTS)],
        staging=environment.staging,
        registry=environment.registry,
        label=environment.label,
        settings={"PIP_CONFIG_FILE": os.devnull},
        subprocess=scripts,
        links=(INTERPRETER,),
    )  # fmt: skip
    lines = _report_to_lock(report)
    write_text(environment.staging, LOCK, "".join(f"{line}\n" for line in lines))
    os.unlink(report)


def _has_pip(base: str) -> bool:
    argv = [base, "-I", "-c", "import pip"]
    return subprocess.run(argv, capture_output=True, check=False, env={}).returncode == 0


def _report_to_lock(report: str) -> list[str]:
    """Return what pip reports as lines of the lock file that uv writes."""
    items = read_json(report).get("install")
    found: list[str] = []
    for item in items if isinstance(items, list) else ():
        try:
            meta, archive = item["metadata"], item["download_info"].get("archive_info", {})
            digest = archive.get("hashes", {}).get("sha256", "")
            name, version = normalize_name(meta["name"]), meta["version"]
        except (KeyError, TypeError, AttributeError):
            raise SandboxError(f"{REPORT} is not what pip writes") from None
        found += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return found


def check_lock(staging: str) -> tuple[dict[str, str], str]:
    """Return (version of each package, the lock file's digest). Refuse one without a hash."""
    text = read_bounded_text(os.path.join(staging, LOCK))
    chosen: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not any(word.startswith("--hash=sha256:") and len(word) > 70 for word in words):
            raise SandboxError(f"{shown(words[0], 200)} came without a hash")
        project, _, found = words[0].partition("==")
        chosen[normalize_name(project.partition("[")[0])] = found
    return chosen, f"sha256-{sha256(text.encode()).hexdigest()}"


def write_start_script(staging: str, site: str, reference: Reference) -> None:
    """Write a script like the package's own, without a path in its first line."""
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
