"""Make a virtual environment for one package, and check it after the installation.

The environment's interpreter is a link to an interpreter outside of the environment. On Windows,
where users may not make links, it is a copy of `venv`'s redirector, a small program that starts the
interpreter outside.
"""

import os
import sys

from corral.errors import SandboxError
from corral.programs.installed_runtimes import Runtime, find_runtime, format_version
from corral.programs.runtimes import find_own_python
from corral.record import record
from corral.servers.packages.pypi_settings import INTERPRETER, WINDOWS
from corral.servers.packages.sandboxed_install import Notify, ask_program, write_text
from corral.servers.packages.sources import Registry

VENV_SETTINGS = "pyvenv.cfg"
OWN_NAMES = ("Scripts" if WINDOWS else "bin", "Lib" if WINDOWS else "lib", VENV_SETTINGS)
MAX_SETTINGS_BYTES = 1 << 16
REDIRECTORS = ("venvlauncher.exe", "python.exe")
"""The names of `venv`'s redirector in `Lib/venv/scripts/nt`: the first since Python 3.13, the
second in older versions.
"""


@record
class Environment:
    """A virtual environment into which a package is installed.

    `staging` is its directory, and `site` its site-packages directory. `base` is the path of the
    interpreter outside of the environment, and `version` the version of this interpreter. `label`
    names the package in messages to the user, which are passed to `notify`.
    """

    staging: str
    site: str
    base: str
    version: tuple[int, ...]
    registry: Registry
    label: str
    notify: Notify = lambda _: None

    def path(self, name: str) -> str:
        return os.path.join(self.staging, name)


def make_environment(staging: str, registry: Registry, label: str, python: str = "") -> Environment:
    """Make a virtual environment with only an interpreter and a settings file. `python` is the
    version or path of the interpreter, or "" for corral's own interpreter.
    """
    own = Runtime(path=find_own_python(), version=sys.version_info[:3])
    found = find_runtime("python", python, ask_program) if python else own
    base, link = os.path.realpath(found.path), os.path.join(staging, INTERPRETER)
    above = ("Lib",) if WINDOWS else ("lib", f"python{_minor(found.version)}")
    site = os.path.join(staging, *above, "site-packages")
    os.makedirs(site)
    os.mkdir(os.path.dirname(link))
    if WINDOWS:
        with open(link, "xb") as file:
            file.write(_read_redirector(base))
    else:
        os.symlink(base, link)
    made = Environment(
        staging=staging, site=site, base=base, version=found.version, registry=registry, label=label
    )
    write_text(staging, VENV_SETTINGS, _venv_settings(made))
    return made


def _read_redirector(base: str) -> bytes:
    folder = os.path.join(os.path.dirname(base), "Lib", "venv", "scripts", "nt")
    for name in REDIRECTORS:
        if os.path.isfile(path := os.path.join(folder, name)):
            with open(path, "rb") as file:
                return file.read()
    hint = "install Python from python.org or with `uv python install`, and then corral with it"
    text = f"{base} cannot make virtual environments: {folder} has no {' or '.join(REDIRECTORS)}"
    raise SandboxError(text, hint=hint)


def _minor(version: tuple[int, ...]) -> str:
    return format_version(version[:2])


def _venv_settings(made: Environment) -> str:
    text = f"home = {os.path.dirname(made.base)}\ninclude-system-site-packages = false\n"
    return f"{text}version = {_minor(made.version)}\n"


def check_environment(environment: Environment) -> None:
    """Refuse the environment if a package changed a file that decides which interpreter starts."""
    # A package chooses the names of its scripts and files. If the installer has a bug, such a file
    # could replace one of the files that are checked here. If a package was allowed to run code,
    # that code could write anywhere in the environment.
    link = environment.path(INTERPRETER)
    with open(environment.path(VENV_SETTINGS), encoding="utf-8", errors="replace") as file:
        written = file.read(MAX_SETTINGS_BYTES)
    own = os.listdir(os.path.dirname(link)) == [os.path.basename(link)]
    if not own or written != _venv_settings(environment) or not _is_ours(link, environment.base):
        raise SandboxError(
            f"a package changed {INTERPRETER} or {VENV_SETTINGS}, so the server is not run"
        )


def _is_ours(link: str, base: str) -> bool:
    if not WINDOWS:
        return os.path.islink(link) and os.readlink(link) == base
    wanted = _read_redirector(base)
    with open(link, "rb") as file:
        return file.read(len(wanted) + 1) == wanted
