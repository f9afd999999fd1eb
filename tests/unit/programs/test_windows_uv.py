"""Test how corral reads the launchers (trampolines) that uv writes for scripts. To get real
launchers, the test installs a package with uv for Windows under Wine.
"""

import base64
import io
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import pytest

import rigs
from corral.programs import windows_pe_resources, windows_shims

RECIPE = 1  # part of the cache's key: increase it when the code below changes
VERSION = "0.13.7"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps")
COMPILER = "x86_64-w64-mingw32-gcc"
# The source of bcryptprimitives.dll, from which uv gets random numbers. Debian 12's Wine lacks it.
RANDOM = """
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE place, SIZE_T size) { return RtlGenRandom(place, size); }
"""
WHEEL = {
    "demo.py": "def main():\n    pass\n",
    "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo = demo:main\n[gui_scripts]\ndemow = demo:main\n",
    "demo-1.0.dist-info/RECORD": "",
}
INSTALL = """
import base64, io, os, subprocess, sys, zipfile
zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read())).extractall("C:\\\\work")
wheel = "C:\\\\work\\\\demo-1.0-py3-none-any.whl"
where = ["--python", sys.executable, "--prefix", "C:\\\\work\\\\here"]
done = subprocess.run(
    ["C:\\\\work\\\\uv.exe", "pip", "install", "--offline", "--no-index", "--cache-dir", "C:\\\\work\\\\cache", *where, wheel],
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
)
for name in ("demo", "demow"):
    path = f"C:\\\\work\\\\here\\\\Scripts\\\\{name}.exe"
    if os.path.exists(path):
        print(base64.b64encode(open(path, "rb").read()).decode())
    else:
        print("missing:", done.stdout.decode(errors="replace"), file=sys.stderr)
"""


def packed(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def build(target: pathlib.Path) -> None:
    from windows import rig

    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        wheel = (
            *PIP,
            "--platform",
            "win_amd64",
            "--only-binary=:all:",
            f"uv=={VERSION}",
            "-d",
            scratch,
        )
        subprocess.run(wheel, check=True, capture_output=True)
        with zipfile.ZipFile(next(place.glob("uv-*.whl"))) as archive:
            uv = archive.read(next(name for name in archive.namelist() if name.endswith("/uv.exe")))
        (place / "random.c").write_text(RANDOM)
        library = place / "bcryptprimitives.dll"
        subprocess.run(
            [COMPILER, "-shared", "-o", library, place / "random.c", "-ladvapi32"], check=True
        )
        files = {
            "uv.exe": uv,
            library.name: library.read_bytes(),
            "demo-1.0-py3-none-any.whl": packed(WHEEL),
        }
        done = rig.run(["python", "-c", INSTALL], stdin=packed(files))
    lines = done.output.split()
    assert len(lines) == 2, done
    for name, line in zip(("demo", "demow"), lines, strict=True):
        (target / f"{name}.exe").write_bytes(base64.b64decode(line))


@pytest.fixture(scope="module")
def samples():
    from vm import rig as machines

    rigs.need("wine")
    target = rigs.cache(f"uv-trampolines-{VERSION}-{RECIPE}")
    if not target.exists():
        with machines.building(target) as partial:
            build(partial)
    return target


@pytest.mark.skipif(sys.platform != "linux", reason="the rig is for Linux")
@pytest.mark.parametrize("name", ["demo", "demow"])
def test_trampolines_of_the_real_uv_are_read(samples, name):
    raw = (samples / f"{name}.exe").read_bytes()
    found = windows_pe_resources.resources(raw)
    assert found["UV_TRAMPOLINE_KIND"] == b"\x01"
    with zipfile.ZipFile(io.BytesIO(found["UV_SCRIPT_DATA"])) as archive:
        assert archive.namelist() == ["__main__.py"]
    launcher = windows_shims.launcher(raw)
    assert launcher.kind == "script"
    assert launcher.python.lower().startswith("c:\\python\\python")
