"""Install corral and its peers in one directory, which is removed at the end.

A peer is a tool that corral is compared with. corral is measured as users have it: installed from
this checkout into a virtual environment, with its console script and its compiled modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import measure

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = "/bin/true"
PROGRAMS = {"bwrap": "bubblewrap", "socat": "socat", "rg": "ripgrep"}
"""Programs that peers need, and the packages that contain them. firejail is left out: it is setuid,
so only root can install it.
"""
SRT = "@anthropic-ai/sandbox-runtime"
SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc") if os.path.exists(path)]
SANDLOCK = f"""
import sandlock
box = sandlock.Sandbox(fs_readable={SYSTEM!r}, fs_writable=["/tmp"])
def once():
    return box.run([{TARGET!r}]).exit_code
"""
NONO = f"""
import nono_py
caps = nono_py.CapabilitySet()
for path in {SYSTEM!r}:
    caps.allow_path(path, nono_py.AccessMode.READ)
caps.block_network()
def once():
    return nono_py.sandboxed_exec(caps, [{TARGET!r}]).exit_code
"""
IN_PROCESS = {"sandlock": SANDLOCK, "nono-py": NONO}
"""Peers that are Python packages. `once` runs /bin/true in their sandbox."""
WALLS = {
    "corral": (
        "user, mount, pid, net, ipc and uts namespaces, a view of its own, Landlock, seccomp,"
        " limits; each is verified in every run"
    ),
    "bubblewrap": "the same namespaces and view; no Landlock, no seccomp filter, no limits",
    "firejail": "setuid; a private home, /dev and /tmp, no network, no capabilities, seccomp",
    "srt": "bubblewrap, by default with the host readable; the network through a proxy",
    "sandlock": "Landlock and seccomp; no namespaces",
    "nono-py": "Landlock; no namespaces",
}
"""The mechanisms that each peer uses, as the benchmarks start it."""


SCRIPTS = {
    "uv": "import sys\nfrom corral.__main__ import main\nsys.exit(main())\n",
    "pip": (
        "import re\nimport sys\nfrom corral.__main__ import main\n"
        "sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\nsys.exit(main())\n"
    ),
}
"""The console script that each installer writes. pip's script imports `re`, which takes a third as
long as starting a bare Python.
"""


@dataclasses.dataclass(frozen=True)
class Installed:
    """A virtual environment with corral in it."""

    python: str
    corral: str


@dataclasses.dataclass(frozen=True)
class Missing:
    name: str
    why: str

    def __str__(self) -> str:
        return f"skipped {self.name}: {self.why}"


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that a benchmark of the installed corral needs. `directory` is removed at
    the end.
    """

    output: measure.Output
    directory: str
    environment: dict[str, str]
    corral: Installed


@contextlib.contextmanager
def set_up(*, json_wanted: bool) -> Iterator[Setup]:
    output = measure.Output(json_wanted=json_wanted)
    with measure.apart() as (directory, environment):
        output.notice("installing the checkout ...")
        corral = install(os.path.join(directory, "corral"))
        found = install_programs(directory)
        os.environ["PATH"] = environment["PATH"] = f"{environment['PATH']}{os.pathsep}{found}"
        yield Setup(output, directory, environment, corral)


def install(directory: str, packages: Sequence[str] = (), checkout: str = CHECKOUT) -> Installed:
    """Make a virtual environment with the checkout and `packages`, and compile all modules."""
    uv = shutil.which("uv")
    bare = ["--without-pip"] if uv else []
    # `uv venv` is not used, because its environments run an extra module at every start.
    _run([sys.executable, "-m", "venv", *bare, directory])
    python = os.path.join(directory, "bin", "python")
    tool = (
        [uv, "pip", "install", "--python", python, "--compile-bytecode", "--quiet"]
        if uv
        else [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    )
    for wanted in (checkout, *packages):
        _run([*tool, wanted])
    return Installed(python, os.path.join(directory, "bin", "corral"))


def write_scripts(python: str, directory: str) -> dict[str, str]:
    """Write the console scripts that pip and uv generate, and return their paths. Both are
    measured, although only one of the two has installed corral.
    """
    paths = {}
    for installer, text in SCRIPTS.items():
        paths[installer] = os.path.join(directory, f"corral-{installer}")
        with open(paths[installer], "w", encoding="utf-8") as file:
            file.write(f"#!{python}\n{text}")
        os.chmod(paths[installer], 0o755)
    return paths


NOTICES = {
    "platforms/linux/tier_namespaces.py": {
        'notices=NOTIFICATION in mechanisms.get("subprocess", "")': "notices=False",
        ", outbound_listeners.DeniedNetwork()]": "]",
    }
}
"""For each module, the lines that make a run report denials, and the lines that replace them."""


def write_silent_script(python: str, directory: str) -> str:
    """Write a console script for a copy of corral that does not report denials.

    corral is copied, because patching it in memory would import some modules early, and so change
    the measured time.
    """
    code = "import corral, os; print(os.path.dirname(corral.__file__))"
    done = subprocess.run([python, "-c", code], capture_output=True, check=True, text=True)
    copy = os.path.join(directory, "silent")
    shutil.copytree(done.stdout.strip(), os.path.join(copy, "corral"), dirs_exist_ok=True)
    for module, changes in NOTICES.items():
        path = os.path.join(copy, "corral", module)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for old, new in changes.items():
            text = replace_once(text, old, new)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    script = os.path.join(directory, "corral-silent")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"#!{python}\nimport sys\nsys.path.insert(0, {copy!r})\n{SCRIPTS['uv']}")
    os.chmod(script, 0o755)
    return script


def replace_once(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(f"{old!r} occurs {text.count(old)} times")
    return text.replace(old, new)


def find_view(corral: str, environment: Mapping[str, str]) -> dict[str, object]:
    """Return what `corral run -- /bin/true` would mount, as `corral explain` lists it."""
    command = [corral, "explain", "--json", "--", TARGET]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    steps = json.loads(done.stdout)["steps"]
    data: dict[str, object] = next(
        item["data"] for item in steps if item["step"] == "root_filesystem"
    )
    return data


def bubblewrap(view: Mapping[str, object], directory: str) -> list[str] | Missing:
    """Return a bubblewrap command with corral's namespaces and mounts, but without corral's other
    controls.
    """
    program = shutil.which("bwrap")
    if program is None:
        return Missing("bubblewrap", "install the package `bubblewrap`")
    spaces = ["user", "pid", "net", "ipc", "uts", "cgroup"]
    argv = [program, *(f"--unshare-{name}" for name in spaces), "--hostname", "corral"]
    argv += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    argv += ["--uid", "1000", "--gid", "1000", "--setenv", "PATH", "/bin:/usr/bin"]
    return [*argv, *filesystem(view, directory), "--", TARGET]


def filesystem(view: Mapping[str, object], directory: str) -> list[str]:
    """Return the arguments that make bubblewrap mount the same files as corral."""
    words = ["--dev", "/dev", "--proc", "/proc"]
    for bind in _records(view["binds"]):
        if not str(bind["target"]).startswith("/dev/"):
            kind = "--bind" if bind["access"] == "write" else "--ro-bind"
            words += [kind, str(bind["source"]), str(bind["target"])]
    for path in _strings(view["private"]):
        words += ["--tmpfs", path]
    for path, target in _pairs(view["links"]):
        if not path.startswith("/dev/"):
            words += ["--symlink", target, path]
    for number, (path, text) in enumerate(_pairs(view["files"])):
        made = os.path.join(directory, f"made-{number}")
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        words += ["--ro-bind", made, path]
    return [*words, "--remount-ro", "/"]


def describe_walls(found: Iterable[str]) -> tuple[str, ...]:
    """Return one line about the walls of corral, and one about those of each measured peer."""
    measured = {name.removesuffix(" from python") for name in found}
    return tuple(
        f"{name}: {walls}" for name, walls in WALLS.items() if name in {"corral", *measured}
    )


def install_programs(directory: str) -> str:
    """Unpack programs that the peers need and this host lacks, and return their directory.

    apt-get and dpkg-deb do not need root for this. If they or a package are missing, the peers
    report the missing program.
    """
    lacking = [name for program, name in PROGRAMS.items() if shutil.which(program) is None]
    tools = [shutil.which(tool) for tool in ("apt-get", "dpkg-deb")]
    target = os.path.join(directory, "programs")
    os.makedirs(target)
    for package in lacking if all(tools) else ():
        try:
            subprocess.run(
                [str(tools[0]), "download", "-q", package],
                cwd=target, check=True, capture_output=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            for name in os.listdir(target):
                if name.endswith(".deb"):
                    _run([str(tools[1]), "-x", os.path.join(target, name), target])
                    os.unlink(os.path.join(target, name))
        except subprocess.CalledProcessError:
            continue
    return os.path.join(target, "usr", "bin")


def firejail() -> list[str] | Missing:
    program = shutil.which("firejail")
    if program is None:
        return Missing("firejail", "install the package `firejail`")
    private = ["--private", "--private-dev", "--private-tmp", "--net=none"]
    rest = ["--caps.drop=all", "--nonewprivs", "--seccomp"]
    return [program, "--quiet", "--noprofile", *private, *rest, TARGET]


def srt(directory: str) -> list[str] | Missing:
    program = srt_program(directory)
    return program if isinstance(program, Missing) else [program, TARGET]


def srt_program(directory: str) -> str | Missing:
    npm = shutil.which("npm")
    if npm is None:
        return Missing("srt", f"needs npm to install `{SRT}`")
    lacking = [package for name, package in PROGRAMS.items() if shutil.which(name) is None]
    if lacking:
        return Missing("srt", f"install the packages it needs: {', '.join(lacking)}")
    try:
        _run([npm, "install", "--prefix", directory, "--no-audit", "--no-fund", "--silent", SRT])
    except subprocess.CalledProcessError as error:
        return Missing("srt", f"npm could not install `{SRT}`: {_last_line(error.stderr)}")
    return os.path.join(directory, "node_modules", ".bin", "srt")


def srt_network(directory: str, host: str) -> list[str] | Missing:
    """Return srt's command for a program that may reach `host` through srt's proxy."""
    program = srt_program(directory)
    if isinstance(program, Missing):
        return program
    settings = os.path.join(directory, "settings.json")
    network = {"allowedDomains": [host], "deniedDomains": []}
    files: dict[str, list[str]] = {"denyRead": [], "allowWrite": [], "denyWrite": []}
    with open(settings, "w", encoding="utf-8") as file:
        json.dump({"network": network, "filesystem": files}, file)
    return [program, "--settings", settings, "--"]


def python_peers(directory: str, notice: Callable[[object], None]) -> tuple[Installed, list[str]]:
    """Install the Python peers into a second environment, so that their files cannot slow corral
    down. Report the peers that cannot be installed, and return the names of the others.
    """
    installed = install(directory)
    found = []
    for name in IN_PROCESS:
        try:
            install_into(installed.python, name)
            found.append(name)
        except subprocess.CalledProcessError as error:
            notice(Missing(name, f"`{name}` cannot be installed: {_last_line(error.stderr)}"))
    return installed, found


def install_into(python: str, package: str) -> None:
    uv = shutil.which("uv")
    if uv:
        _run([uv, "pip", "install", "--python", python, "--compile-bytecode", "--quiet", package])
    else:
        _run([python, "-m", "pip", "install", "--quiet", package])


def try_out(name: str, argv: Sequence[str], environment: Mapping[str, str]) -> Missing | None:
    """Run a peer at most twice. Return None if a run succeeds, otherwise the peer's own error."""
    for _ in range(2):
        done = subprocess.run(argv, capture_output=True, check=False, env=environment)
        if done.returncode == 0:
            return None
    return Missing(name, f"does not run here: {_last_line(done.stderr) or done.returncode}")


def _last_line(raw: bytes | None) -> str:
    lines = (raw or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _records(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []


def _strings(value: object) -> list[str]:
    return value if isinstance(value, list) else []


def _pairs(value: object) -> list[tuple[str, str]]:
    return [(pair[0], pair[1]) for pair in value] if isinstance(value, list) else []
