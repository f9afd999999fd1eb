"""Check the order of packages in the import graph, and which modules a real run imports."""

import ast
import functools
import graphlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(importlib.util.find_spec("corral").origin).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    ".".join(("corral", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in FILES
}
NATIVE = {
    "resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "msvcrt", "winreg", "_winapi",
    "syslog",
}  # fmt: skip
SLOW = {
    "typing", "dataclasses", "enum", "re", "json", "tomllib", "socket", "subprocess", "signal",
    "pathlib", "inspect", "argparse", "asyncio", "shutil", "contextlib", "difflib", "hashlib",
    "tempfile", "threading", "logging", "ctypes",
}  # fmt: skip
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}

# A package may import only packages in later rows. Packages in one row may not import each other.
LAYERS = (
    "cli",
    "demo export learn mcp",
    "clients",
    "servers",
    "api",
    "supervisor",
    "platforms",
    "plan",
    "programs",
    "policy",
    "network",
    "denials",
    "formats messages",
    "abi",
    "directories disk_hints",
    "paths safe_text units",
    "errors",
    "code_cache record",
)
LAYER = {name: number for number, row in enumerate(LAYERS) for name in row.split()}
MODULE_IN_TEXT = re.compile(r"\bcorral(?:\.[a-z_0-9]+)+\b")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def is_guarded(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "sys.platform" in ast.unparse(node.test)


def names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "imports are absolute"
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]


def imports(path: pathlib.Path, *, lazy: bool, guarded: bool = True) -> set[str]:
    """Return the modules that a module imports at run time. Imports that are only for type checkers
    do not count.

    Imports in functions count only if `lazy` is true. Imports inside an `if` on sys.platform count
    only if `guarded` is true.
    """
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(names(node))
        if is_for_type_checkers(node) or (not guarded and is_guarded(node)):
            children = node.orelse
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            children = []
        else:
            children = ast.iter_child_nodes(node)
        for child in children:
            walk(child)

    walk(parsed(path))
    return found


def references(tree: ast.Module) -> set[str]:
    """Return every corral module that a module refers to.

    All imports count, even those in functions or for type checkers. Names in strings count too,
    because such a string may be code that another interpreter executes.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(MODULE_IN_TEXT.findall(node.value))
    return {module for name in found if (module := module_of(name))}


def module_of(name: str) -> str:
    """Return the corral module that a dotted name refers to, or an empty string if it refers to
    something else.
    """
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def package(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def upward(module: str, tree: ast.Module) -> list[str]:
    """Return the references that break the order of packages. These are references to another
    package in the same row of `LAYERS` or in an earlier row.
    """
    own = package(module)
    return [
        f"{module} -> {other}"
        for other in sorted(references(tree))
        if package(other) not in {"", own} and LAYER[package(other)] <= LAYER[own]
    ]


def test_the_import_graph_is_not_empty():
    """Check that the graph has modules, because the other tests would also pass for an empty
    graph.
    """
    mechanisms = SOURCE / "platforms" / "linux" / "mechanisms"
    assert len(FILES) > 40
    assert "ctypes" in imports(SOURCE / "abi" / "darwin.py", lazy=True)
    assert "corral.abi" in imports(mechanisms / "user_ids.py", lazy=False)
    assert "json" in imports(SOURCE / "supervisor" / "report.py", lazy=True)
    assert "json" not in imports(SOURCE / "supervisor" / "report.py", lazy=False)
    target = SOURCE / "platforms" / "posix" / "target.py"
    assert "fcntl" in imports(target, lazy=False)
    assert "fcntl" not in imports(target, lazy=False, guarded=False)


@pytest.mark.parametrize(
    "text",
    [
        "from corral.plan.model import Plan",
        "from corral import plan",
        "import corral.supervisor.prepare",
        "def late():\n    from corral.plan import model",
        "if TYPE_CHECKING:\n    from corral.plan.model import Plan",
        "CODE = 'from corral.cli import main; main()'",
        "ARGV = ['-m', 'corral.demo.server']",
    ],
)
def test_an_upward_import_is_found(text):
    assert upward("corral.policy.model", ast.parse(text))
    assert not upward("corral.policy.model", ast.parse("from corral.formats import toml"))


def test_a_package_imports_only_packages_below_it():
    checked = [module for module in MODULES if package(module) not in {"", "__main__"}]
    found = [edge for module in checked for edge in upward(module, parsed(MODULES[module]))]
    assert found == []


def test_the_root_package_has_only_shared_modules():
    assert len(list(SOURCE.glob("*.py"))) <= 10
    assert {package(module) for module in MODULES} - {"", "__main__"} <= set(LAYER)
    top = references(parsed(SOURCE / "__init__.py"))
    assert {package(module) for module in top} == {"api"}


@pytest.mark.parametrize("platform", ["win32", "other"])
def test_no_modules_import_each_other_in_a_circle(platform):
    """Check that no modules import each other in a circle. In a circle, an import may fail or
    succeed, depending on which module was imported first.
    """

    def imported(module: str) -> set[str]:
        found = imports(MODULES[module], lazy=False, guarded=platform == "win32")
        others = set(map(module_of, found)) - {""}
        return {other for other in others if not f"{module}.".startswith(f"{other}.")}

    graph = {module: imported(module) for module in MODULES}
    assert "corral.errors" in graph["corral.cli.wrap"]
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError for a circle


def test_architecture_md_has_the_same_order():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "architecture.md").read_text(
        encoding="utf-8"
    )
    block = text.split("## Order of packages")[1].split("```")[1]
    assert [" ".join(row.split()) for row in block.split(">")] == list(LAYERS)


def test_platforms_do_not_import_each_other():
    for system, others in {
        "linux": {"macos", "windows"},
        "macos": {"linux", "windows"},
        "windows": {"linux", "macos"},
        "posix": {"linux", "macos", "windows"},
    }.items():
        for module, path in MODULES.items():
            if module.startswith(f"corral.platforms.{system}"):
                known = {
                    name.split(".")[2]
                    for name in references(parsed(path))
                    if name.startswith("corral.platforms.")
                }
                assert not known & others, module


def test_mechanisms_do_not_import_their_users():
    users = {"backend", "probes", "spawn"}
    for module, path in MODULES.items():
        if ".mechanisms." in module:
            parts = [part for name in references(parsed(path)) for part in name.split(".")[3:]]
            assert not users & set(parts), module
            assert not [part for part in parts if part.startswith("tier_")], module


def test_only_abi_imports_ctypes():
    for path in FILES:
        found = {name.partition(".")[0] for name in imports(path, lazy=True)}
        assert "ctypes" not in found or path.parent.name == "abi", path


def test_native_modules_are_imported_only_on_their_system():
    """Check that modules that exist only on one system are imported only in functions or inside an
    `if` on sys.platform, so that all of corral's modules can be imported on every system.
    """
    for path in FILES:
        found = {name.partition(".")[0] for name in imports(path, lazy=False, guarded=False)}
        assert not found & NATIVE, path


STREAM_WRITES = {
    f"sys.{stream}.{verb}" for stream in ("stdout", "stderr") for verb in ("write", "writelines")
}
# Only these modules may print. `output` and `show_progress` escape their text, and the demo's decoy
# prints only a number.
PRINTERS = ("cli/output.py", "servers/registry/download.py", "demo/bystander.py")


def test_only_the_listed_output_modules_write_to_the_standard_streams():
    for path in FILES:
        calls = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if ast.unparse(call.func) == "print"], path
        written = {ast.unparse(call.func) for call in calls} & STREAM_WRITES
        assert not written or path.relative_to(SOURCE).as_posix() in PRINTERS, path


def test_no_module_has_a_meaningless_name():
    assert not {path.stem for path in FILES} & MEANINGLESS


ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1])
NATIVE = set(sys.argv[3].split(","))

class Missing:
    '''Imitate another system, which lacks these modules.'''
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NATIVE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import ctypes, os, select, socket, subprocess, tempfile, threading, asyncio, zipfile, hashlib  # of this system
for name in NATIVE & set(sys.modules):
    del sys.modules[name]
sys.meta_path.insert(0, Missing())
sys.platform = sys.argv[2]
failed = {}
for name in sys.argv[4:]:
    try:
        __import__(name)
    except Exception as error:
        failed[name] = repr(error)
print(json.dumps(failed))
"""
ABSENT = {
    "win32": "resource,fcntl,pwd,grp,termios,tty,pty,syslog",
    "darwin": "msvcrt,winreg,_winapi",
    "linux": "msvcrt,winreg,_winapi",
}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl to imitate other systems")
@pytest.mark.parametrize("platform", ABSENT)
def test_every_module_imports_on_every_system(platform):
    """Import all of corral's modules as if on another system. Only two things imitate that system:
    sys.platform has its name, and the standard modules that it lacks are hidden.
    """
    argv = [
        sys.executable,
        "-c",
        ELSEWHERE,
        str(SOURCE.parent),
        platform,
        ABSENT[platform],
        *MODULES,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


SEAM = """
from corral.platforms import current
loaded = current.load()
missing = [name for name in sys.argv[4:] if not callable(getattr(loaded, name, None))]
assert loaded.__file__
print(json.dumps([loaded.__file__.replace(chr(92), "/").rsplit("/")[-2], missing]))
"""
FOLDERS = {"win32": "windows", "darwin": "macos", "linux": "linux"}


def verbs() -> list[str]:
    """Return the names of the functions that every platform must provide."""
    tree = parsed(SOURCE / "platforms" / "contract.py")
    seam = next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Backend"
    )
    return [node.name for node in seam.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("platform", ABSENT)
def test_every_platform_has_all_functions_that_the_common_code_calls(platform):
    setting = ELSEWHERE.partition("failed = {}")[0]
    argv = [sys.executable, "-c", setting + SEAM, str(SOURCE.parent), platform, ABSENT[platform]]
    done = subprocess.run([*argv, *verbs()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spawn" in verbs()  # make sure that the contract was read
    assert json.loads(done.stdout) == [FOLDERS[platform], []]


START = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from corral.cli import main
from corral.platforms import current

class Looking:
    '''Wrap the backend, to list the modules just before a target is spawned.'''
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def spawn(self, plan, stdio):
        loaded = sorted(set(sys.modules) - before)
        import json, os
        os.write(1, json.dumps(loaded).encode())
        os._exit(0)

real = current.load()
current.load = lambda: Looking(real)
sys.exit(main(["run", *sys.argv[2:], "--", "/bin/true"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux backend")
@pytest.mark.parametrize("flags", [[], ["--timeout", "1m"]], ids=["bare", "flags"])
def test_the_start_path_imports_no_slow_modules(flags, tmp_path):
    """Check what `corral run -- /bin/true` imports before its target starts. Only the second of two
    runs counts, because the first one also probes the host and caches the findings.
    """
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for _ in range(2):
        argv = [sys.executable, "-I", "-S", "-c", START, str(SOURCE.parent), *flags]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "corral.cli.run" in loaded  # make sure that the list is from a real run
    assert loaded & SLOW == set()


WHOLE = """
import os, sys
out = os.dup(1)  # a run gives up its stdout
sys.path.insert(0, sys.argv[1])
from corral.cli import main
code = main(["run", "--", *sys.argv[2:]])
os.write(out, " ".join(name for name in sys.modules if name.startswith("corral")).encode())
sys.exit(code)
"""
MAX_MODULES = 79
"""The highest number of corral's modules that a plain run may import, on a host with namespaces and
without a cgroup for the user.

Each module costs about 0.15 ms and ten system calls.
"""
BY_HOST = "systemd_scope dbus outer_filter tier_landlock subreaper run_directories stream_relay"
BY_NEED = {
    "corral.platforms.linux.mechanisms.seccomp_rules",
    "corral.platforms.linux.mechanisms.seccomp_init_rules",
    "corral.platforms.linux.mechanisms.seccomp_compiler",
    "corral.platforms.linux.discarded_writes",
    "corral.denials.kept",
    "corral.policy.secret_files",
    "corral.policy.secret_paths",
    "corral.programs.runtimes",
}
"""Modules that a run imports only in some cases: to compile a filter, to discard or deny something,
or to execute a program that does not belong to the system.
"""


def modules_of_run(home, command):
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-I", "-S", "-c", WHOLE, str(SOURCE.parent), *command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux backend")
def test_a_plain_run_imports_no_more_modules_than_allowed(tmp_path):
    # The first run imports more modules, because it probes the host and compiles the filters. It
    # caches both, so the second run is a plain run.
    modules_of_run(tmp_path, ["/bin/true"])
    loaded = modules_of_run(tmp_path, ["/bin/true"])
    assert loaded & BY_NEED == set()
    counted = {name for name in loaded if name.rpartition(".")[2] not in BY_HOST.split()}
    assert len(counted) <= MAX_MODULES, sorted(counted)
    shutil.rmtree(tmp_path / ".cache/corral/filters")
    # Sanity check: a run that has to compile its seccomp filters again imports the modules for it.
    compiling = modules_of_run(tmp_path, ["/bin/true"])
    assert compiling & BY_NEED == {name for name in BY_NEED if "seccomp" in name}


@pytest.mark.skipif(sys.platform != "linux", reason="needs a Linux backend")
def test_a_run_that_discards_a_file_imports_the_module_for_it(tmp_path):
    write = [sys.executable, "-I", "-S", "-c", "import os; open(os.environ['HOME'] + '/x', 'w')"]
    assert "corral.platforms.linux.discarded_writes" in modules_of_run(tmp_path, write)


REFERENCE = """
import sys
sys.path.insert(0, sys.argv[1])
from corral.cli import what_to_run
what_to_run.start_directory(["npm:@scope/name"])
what_to_run.name_server(["npm:@scope/name"])
print(" ".join(sys.modules))
"""


def test_naming_a_package_imports_no_module_of_clients():
    """Check that parsing a reference to a package does not import `clients`, which also imports
    `typing`, `shutil` and `difflib`. These imports take thirty milliseconds.
    """
    argv = [sys.executable, "-I", "-S", "-c", REFERENCE, str(SOURCE.parent)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "corral.servers.reference" in loaded  # make sure that the list contains imported modules
    assert not {"corral.clients", *SLOW} & loaded


POSIX_ONLY = {
    "crypt", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "readline", "resource",
    "spwd", "syslog", "termios", "tty",
}  # fmt: skip
ANY_HOST = [
    path
    for folder in ("unit", "abi", "windows", "macos")
    for path in sorted((pathlib.Path(__file__).parents[1] / folder).rglob("*.py"))
]


def unguarded_imports(tree: ast.Module) -> set[str]:
    """Return the modules that are imported whenever this file is imported, on any system.

    An import inside `if`, `try` or a function is guarded, so it does not count.
    """
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_unguarded_imports_are_found():
    """Find unguarded imports in a sample, to show that the next test would find them."""
    text = "import os, pty\nfrom termios import *\nif os:\n    import grp\ntry:\n    import pwd\nexcept ImportError:\n    pass"
    assert unguarded_imports(ast.parse(text)) == {"os", "pty", "termios"}


@pytest.mark.parametrize("path", ANY_HOST, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_tests_for_any_host_can_be_collected_on_windows(path):
    """Check that each test file can be imported on Windows, because pytest runs no tests at all if
    one file cannot be imported.
    """
    assert not unguarded_imports(ast.parse(path.read_text(encoding="utf-8"))) & POSIX_ONLY
