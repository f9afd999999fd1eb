"""The rules of the folder listing, checked on the import graph; and the start path, checked by running it."""

import ast
import importlib.util
import json
import os
import pathlib
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
SYSTEMS = ("linux", "macos", "windows")
NATIVE = {
    "resource",
    "fcntl",
    "pwd",
    "grp",
    "termios",
    "tty",
    "pty",
    "msvcrt",
    "winreg",
    "_winapi",
    "syslog",
}
SLOW = {
    "typing", "dataclasses", "enum", "re", "json", "tomllib", "socket", "subprocess", "signal",
    "pathlib", "inspect", "argparse", "asyncio", "shutil", "contextlib", "difflib", "hashlib",
    "tempfile", "threading", "logging",
}  # fmt: skip


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
    """What a module imports when it runs, leaving out what only type checkers see."""
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

    walk(ast.parse(path.read_text()))
    return found


def place(path: pathlib.Path) -> str:
    return path.relative_to(SOURCE).parts[0]


def test_the_graph_is_seen():
    """The control: the rules below would hold for an empty graph too."""
    assert len(FILES) > 40
    assert "ctypes" in imports(SOURCE / "abi" / "linux.py", lazy=False)
    assert "corral.abi" in imports(SOURCE / "linux" / "ids.py", lazy=False)
    assert "json" in imports(SOURCE / "report.py", lazy=True)
    assert "json" not in imports(SOURCE / "report.py", lazy=False)
    assert "fcntl" in imports(SOURCE / "linux" / "birth.py", lazy=False)
    assert "fcntl" not in imports(SOURCE / "linux" / "birth.py", lazy=False, guarded=False)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_abi_imports_ctypes(path):
    found = {name.partition(".")[0] for name in imports(path, lazy=True)}
    assert "ctypes" not in found or place(path) == "abi"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_operating_systems_do_not_know_each_other(path):
    found = {name.split(".")[1] for name in imports(path, lazy=True) if name.startswith("corral.")}
    others = set(SYSTEMS) - {place(path)}
    if place(path) in SYSTEMS:
        assert not found & others
    if place(path) in {"network", "servers", "abi"}:
        assert not found & set(SYSTEMS)
    if place(path) == "abi":
        assert found <= {"abi"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_native_modules_are_imported_where_they_exist(path):
    """Every module imports on every system, so a native one waits in a function or behind sys.platform."""
    found = {name.partition(".")[0] for name in imports(path, lazy=False, guarded=False)}
    assert not found & NATIVE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_output_prints(path):
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not calls


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_is_named_after_nothing(path):
    assert path.stem not in {
        "utils",
        "util",
        "helpers",
        "helper",
        "common",
        "base",
        "manager",
        "misc",
    }


ELSEWHERE = """
import json, sys
sys.path.insert(0, sys.argv[1])
NATIVE = set(sys.argv[3].split(","))

class Missing:
    '''Another system: its modules are not there.'''
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


@pytest.mark.skipif(sys.platform == "win32", reason="has no fcntl to play the others with")
@pytest.mark.parametrize("platform", ABSENT)
def test_every_module_imports_on_every_system(platform):
    """Only as far as one system can play another: the names of its modules and of itself."""
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
    """What the flow asks of a system."""
    tree = ast.parse((SOURCE / "backend.py").read_text())
    seam = next(
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Backend"
    )
    return [node.name for node in seam.body if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("platform", ABSENT)
def test_every_system_answers_what_the_flow_asks(platform):
    setting = ELSEWHERE.partition("failed = {}")[0]
    argv = [sys.executable, "-c", setting + SEAM, str(SOURCE.parent), platform, ABSENT[platform]]
    done = subprocess.run([*argv, *verbs()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "birth" in verbs()  # the control: the seam was read
    assert json.loads(done.stdout) == [FOLDERS[platform], []]


START = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
from corral.cli import main
from corral.platforms import current

class Looking:
    '''The backend, looked at in the moment before a target is born.'''
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def birth(self, plan, stdio):
        loaded = sorted(set(sys.modules) - before)
        import json, os
        os.write(1, json.dumps(loaded).encode())
        os._exit(0)

real = current.load()
current.load = lambda: Looking(real)
sys.exit(main(["run", *sys.argv[2:], "--", "/bin/true"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a run needs a backend")
@pytest.mark.parametrize("flags", [[], ["--timeout", "1m"]], ids=["bare", "flags"])
def test_the_start_path_is_short(flags, tmp_path):
    """What `corral run -- /bin/true` has imported when its target is born, with its findings cached."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for _ in range(2):
        argv = [sys.executable, "-I", "-S", "-c", START, str(SOURCE.parent), *flags]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "corral.cli.run" in loaded  # the control: this is the list of a real run
    assert loaded & SLOW == set()
