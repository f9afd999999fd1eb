"""A package of PyPI: installed once into a virtual environment of its own, run by its Python.

Wheels only: building a source archive would run code of the package before the server itself runs.
The installer is uv where there is one, else the interpreter's own pip. Each file is checked against
the index's hash; the list of them stays in the tree.
"""

from __future__ import annotations

import configparser
import os
import sys

from corral.errors import EXIT_NOT_FOUND, CommandError, SandboxError
from corral.record import record
from corral.safe_text import shown
from corral.servers.packages.npm import choose, put, read_json, read_listed
from corral.servers.packages.pypi_settings import indexes
from corral.servers.packages.sandboxed_install import LINKS, run
from corral.servers.packages.source import plain
from corral.servers.reference import is_version, normal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.servers.packages.source import Registry
    from corral.servers.reference import Reference

LOCK = "requirements.lock"
WANTED = "requirements.in"
REPORT = "report.json"
START = "start.py"
SETTINGS = "pyvenv.cfg"
LARGEST = 1 << 16
PYTHON = LINKS[0]
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
class Place:
    """One installation: where it goes, for which interpreter, from where."""

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
    registry = indexes(os.environ)
    base = interpreter()
    site = make_environment(staging, base)
    extras = f"[{','.join(reference.extras)}]" if reference.extras else ""
    pin = f"=={reference.version}" if reference.version else ""
    put(staging, WANTED, "\n".join([f"{reference.name}{extras}{pin}", *extra, ""]))
    place = Place(staging=staging, site=site, base=base, registry=registry, label=reference.text)
    fill(place, scripts=scripts)
    chosen, integrity = check_lock(staging)
    if not is_version(chosen.get(reference.name, "")):
        raise SandboxError(f"{reference.name} was not installed")
    write_start(staging, site, reference)
    return {
        "version": chosen[reference.name],
        "integrity": integrity,
        "origin": plain(registry.urls[0]) if registry.urls else "this machine",
        "command": [f"{{tree}}/{PYTHON}", "-P", f"{{tree}}/{START}"],
    }


def interpreter() -> str:
    """The Python that corral itself runs on, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def find_uv() -> str:
    from corral.programs.needed_files import Caller

    return Caller(environment=os.environ, cwd="/", home="").lookup("uv")


def make_environment(staging: str, base: str) -> str:
    """A virtual environment is a link and a line; the packages' place in it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = os.path.join(staging, "lib", f"python{version}", "site-packages")
    os.makedirs(site)
    os.mkdir(os.path.join(staging, "bin"))
    os.symlink(base, os.path.join(staging, PYTHON))
    put(staging, SETTINGS, settings(base))
    return site


def settings(base: str) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n"
    return f"{text}version = {version}\n"


def check_environment(staging: str, base: str) -> None:
    """What decides which interpreter starts is still as corral made it.

    A package brings names of scripts and files along, and an installer with a hole would follow
    them out of the place for packages; one whose scripts ran may have put anything anywhere.
    """
    link = os.path.join(staging, PYTHON)
    with open(os.path.join(staging, SETTINGS), "rb") as file:
        written = file.read(LARGEST)
    own = os.listdir(os.path.dirname(link)) == [os.path.basename(link)]
    if not own or not os.path.islink(link) or written != settings(base).encode():
        raise SandboxError(f"a package changed {PYTHON} or {SETTINGS}: it is not run")
    if os.readlink(link) != base:
        raise SandboxError(f"a package changed where {PYTHON} leads: it is not run")


def fill(place: Place, *, scripts: bool) -> None:
    """Install what `requirements.in` names, and leave the list of what that was."""
    uv = find_uv()
    if uv:
        with_uv(uv, place, scripts=scripts)
    else:
        with_pip(place, scripts=scripts)
    check_environment(place.staging, place.base)


def with_uv(uv: str, place: Place, *, scripts: bool) -> None:
    """Resolve to a list with hashes, then install exactly that."""
    shared = ["--python", place.base, *([] if scripts else WHEELS)]
    lock = place.path(LOCK)
    steps = (
        ["compile", "--generate-hashes", "--no-header", "--no-annotate", "-q", "-o", lock,
         place.path(WANTED)],
        ["install", "--require-hashes", "--compile-bytecode", "--target", place.site, "-r", lock],
    )  # fmt: skip
    prefix = os.path.dirname(os.path.dirname(place.base))
    for verb, *words in steps:
        run(
            [uv, "pip", verb, *shared, *words],
            staging=place.staging,
            registry=place.registry,
            label=place.label,
            settings=UV,
            subprocess=True,  # uv asks the interpreter which it is
            reads=[] if prefix.startswith("/usr") else [prefix],
            links=LINKS,
        )


def with_pip(place: Place, *, scripts: bool) -> None:
    if not has_pip(place.base):
        text = f"neither uv nor pip for {place.base} was found"
        raise CommandError(text, exit_code=EXIT_NOT_FOUND, hint=HINT)
    report = place.path(REPORT)
    words = ["--target", place.site, "--report", report, "-r", place.path(WANTED)]
    run(
        [place.base, "-I", "-m", "pip", "install", "--no-input", "--no-cache-dir", "-q",
         "--disable-pip-version-check", *([] if scripts else WHEELS), *words],
        staging=place.staging,
        registry=place.registry,
        label=place.label,
        settings={"PIP_CONFIG_FILE": os.devnull},
        subprocess=scripts,
        links=LINKS,
    )  # fmt: skip
    put(place.staging, LOCK, "".join(f"{line}\n" for line in report_lines(report)))
    os.unlink(report)


def has_pip(base: str) -> bool:
    import subprocess

    argv = [base, "-I", "-c", "import pip"]
    return subprocess.run(argv, capture_output=True, check=False, env={}).returncode == 0


def report_lines(report: str) -> list[str]:
    """What pip reports, in the form of the list that uv makes."""
    items = read_json(report).get("install")
    found: list[str] = []
    for item in items if isinstance(items, list) else ():
        try:
            meta, archive = item["metadata"], item["download_info"].get("archive_info", {})
            digest = archive.get("hashes", {}).get("sha256", "")
            name, version = normal(meta["name"]), meta["version"]
        except (KeyError, TypeError, AttributeError):
            raise SandboxError(f"{REPORT} is not what pip writes") from None
        found += [f"{name}=={version} \\", f"    --hash=sha256:{digest}"]
    return found


def check_lock(staging: str) -> tuple[dict[str, str], str]:
    """(version of each package, the list's own digest); one without a hash is refused."""
    from hashlib import sha256

    text = read_listed(os.path.join(staging, LOCK))
    chosen: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if not any(word.startswith("--hash=sha256:") and len(word) > 70 for word in words):
            raise SandboxError(f"{shown(words[0], 200)} came without a hash")
        project, _, found = words[0].partition("==")
        chosen[normal(project.partition("[")[0])] = found
    return chosen, f"sha256-{sha256(text.encode()).hexdigest()}"


def write_start(staging: str, site: str, reference: Reference) -> None:
    """What the package's own script would do, without a path in its first line."""
    scripts = console_scripts(site, reference.name)
    module = reference.name.replace("-", "_")
    if not scripts and os.path.isfile(os.path.join(site, module, "__main__.py")):
        put(staging, START, MODULE.format(name=reference.name, module=module))
        return
    name = choose(list(scripts), reference, reference.name)
    where, _, attribute = scripts[name].partition("[")[0].strip().partition(":")
    words = [*where.strip().split("."), *attribute.strip().split(".")]
    if not all(word.isidentifier() for word in words):
        raise SandboxError(f"the script {shown(name)} of {reference.name} cannot be read")
    first = attribute.strip().partition(".")[0]
    text = SCRIPT.format(name=name, module=where.strip(), first=first, call=attribute.strip())
    put(staging, START, text)


def console_scripts(site: str, name: str) -> dict[str, str]:
    from corral.programs.needed_files import read_text

    for folder in sorted(os.listdir(site)):
        project, info, _ = folder.partition(".dist-info")
        if not info or normal(project.rpartition("-")[0]) != name:
            continue
        reader = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        reader.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
        try:
            reader.read_string(read_text(os.path.join(site, folder, "entry_points.txt")))
            return dict(reader["console_scripts"]) if reader.has_section("console_scripts") else {}
        except configparser.Error as error:
            raise SandboxError(f"the entry points of {name} cannot be read: {error}") from None
    return {}
