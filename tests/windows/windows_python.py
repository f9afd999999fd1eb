"""Build a real CPython for Windows from PyPI's wheels. Its version is that of the Python that runs
these tests.

panda3d's wheels contain python3xx.dll as python.org signed it, and every extension of the standard
library. The pure Python modules are the same on all systems, so they are copied from the running
interpreter. Only python.exe is compiled here.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

import rigs
from vm import rig

RECIPE = 2  # increase this when the build changes, so that the cached build is not used
PANDA3D = "1.10.16"
MINOR = f"{sys.version_info.major}{sys.version_info.minor}"
COMPILER, RESOURCES = "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-windres"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
FOR_WINDOWS = ("--platform", "win_amd64", "--python-version", MINOR, "--only-binary=:all:")
# pytest needs colorama only on Windows, so pip on this host would not install it by itself.
PACKAGES = ("pytest", "pytest-timeout", "colorama", "pip")
ANY_VERSION = ("colorama", "pip")
# corral copies this launcher into each virtual environment that it makes, but starts the real python.exe.
REDIRECTOR = "Lib/venv/scripts/nt/python.exe"
UNUSED = (
    *("site-packages", "dist-packages", "lib-dynload", "config-*", "__pycache__", "test", "tests"),
    *("idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
)
SHIM = f"""\
#include <windows.h>
int wmain(int argc, wchar_t **argv) {{
    HMODULE python = LoadLibraryW(L"python{MINOR}.dll");
    int (*main)(int, wchar_t **) = python ? (void *)GetProcAddress(python, "Py_Main") : 0;
    return main ? main(argc, argv) : 120;
}}
"""
# Without this manifest Windows and Wine report the version of Windows 8.
MANIFEST = """\
<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<assembly xmlns="urn:schemas-microsoft-com:asm.v1" manifestVersion="1.0">
<compatibility xmlns="urn:schemas-microsoft-com:compatibility.v1"><application>
<supportedOS Id="{8e0f7a12-bfb3-4fe8-b9a5-48fd50a15a9a}"/>
</application></compatibility></assembly>
"""


def installed(name: str) -> pathlib.Path:
    """Return a directory like the one that Python's installer makes, with pytest in
    site-packages.
    """
    version = importlib.metadata.version("pytest")
    target = rigs.cache(f"windows-python-{MINOR}-{PANDA3D}-pytest-{version}-{RECIPE}")
    if not target.exists():
        with rig.building(target) as partial, tempfile.TemporaryDirectory() as scratch:
            try:
                build(pathlib.Path(scratch), partial)
            except subprocess.CalledProcessError as error:
                rigs.broken(name, f"Python for Windows could not be built: {error} {error.stderr}")
    return target


def build(scratch: pathlib.Path, target: pathlib.Path) -> None:
    unpack_libraries(scratch, target)
    stdlib = sysconfig.get_path("stdlib")
    shutil.copytree(stdlib, target / "Lib", ignore=shutil.ignore_patterns(*UNUSED))
    call(*PIP, "install", *FOR_WINDOWS, "--no-compile", "--target", site(target), *pinned())
    # Mark the compiled files as unchecked, because comparing them with their sources is slow under
    # Wine.
    compiled = ("compileall", "-q", "--invalidation-mode", "unchecked-hash")
    call(sys.executable, "-m", *compiled, "-s", target, "-p", "C:/Python", target / "Lib")
    compile_shim(scratch, target / "python.exe")
    (target / REDIRECTOR).parent.mkdir(exist_ok=True)
    shutil.copy(target / "python.exe", target / REDIRECTOR)


def site(target: pathlib.Path) -> pathlib.Path:
    return target / "Lib/site-packages"


def pinned() -> list[str]:
    """Return the packages to install. Their versions are those of this host, so that the tests
    under Wine use the same pytest.
    """
    return [
        name if name in ANY_VERSION else f"{name}=={importlib.metadata.version(name)}"
        for name in PACKAGES
    ]


def unpack_libraries(scratch: pathlib.Path, target: pathlib.Path) -> None:
    call(*PIP, "download", *FOR_WINDOWS, "--no-deps", f"panda3d=={PANDA3D}", "-d", scratch)
    (target / "DLLs").mkdir()
    with zipfile.ZipFile(next(scratch.glob("panda3d-*.whl"))) as wheel:
        for entry in wheel.namelist():
            folder, _, name = entry.rpartition("/")
            # Skip the libraries of Windows itself and of the free-threaded build.
            wanted = not name.startswith("api-ms-") and f"cp{MINOR}t-" not in name
            if folder == "deploy_libs" and wanted:
                beside = name.lower().startswith(("python", "vcruntime"))
                place = target / name if beside else target / "DLLs" / name
                place.write_bytes(wheel.read(entry))


def compile_shim(scratch: pathlib.Path, program: pathlib.Path) -> None:
    (scratch / "shim.c").write_text(SHIM)
    (scratch / "shim.manifest").write_text(MANIFEST)
    (scratch / "shim.rc").write_text('1 24 "shim.manifest"\n')
    call(RESOURCES, "shim.rc", "manifest.o", cwd=scratch)
    call(COMPILER, "-municode", "-O1", "-s", "shim.c", "manifest.o", "-o", program, cwd=scratch)


def call(*argv: object, cwd: pathlib.Path | None = None) -> None:
    subprocess.run(list(map(str, argv)), cwd=cwd, check=True, capture_output=True, text=True)
