"""Test how corral reads launchers, using samples made by the real tools. A launcher is a file that
only starts another program.
"""

import io
import os
import shutil
import struct
import subprocess
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rigs
from corral.programs import windows_pe_resources, windows_shims

SCRIPT = "import sys\nprint(sys.argv)\n"


def distlib_launcher(tmp_path, executable, kind="t", bits="64"):
    """Make a launcher as pip does on Windows, with pip's own code and launchers."""
    scripts = pytest.importorskip("pip._vendor.distlib.scripts", reason="needs pip")
    maker = scripts.ScriptMaker(None, str(tmp_path))
    maker._is_nt = True
    # Always write the line that pip writes on Windows. On POSIX pip may write a /bin/sh line
    # instead.
    maker._build_shebang = lambda path, words: b"#!" + path + words + b"\n"
    maker.executable = executable
    maker.variants = {""}
    ending = {"64": "", "arm": "-arm"}[bits]
    folder = os.path.dirname(scripts.__file__)
    path = os.path.join(folder, f"{kind}64{ending}.exe")
    if not os.path.exists(path):
        pytest.skip("this pip comes without its launchers for Windows")
    with open(path, "rb") as file:
        stub = file.read()
    maker._get_launcher = lambda _: stub
    (made,) = maker.make("tool = tool:main")
    with open(made, "rb") as file:
        return file.read()


@pytest.mark.parametrize("bits", ["64", "arm"])
@pytest.mark.parametrize(
    "executable",
    [
        "C:\\venv\\Scripts\\python.exe",
        "C:\\Program Files\\Python 3\\python.exe",
        '"C:\\a b\\python.exe"',
    ],
)
def test_pips_launcher_is_read(tmp_path, executable, bits):
    raw = distlib_launcher(tmp_path, executable, bits=bits)
    found = windows_shims.launcher(raw)
    assert (found.kind, found.python, found.arguments) == ("script", executable.strip('"'), ())


def test_pips_launcher_without_its_script_is_not_read(tmp_path):
    raw = distlib_launcher(tmp_path, "C:\\python.exe")
    assert windows_shims.launcher(raw[: raw.index(b"#!C:")]) is None


def zipped():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("__main__.py", SCRIPT)
    return data.getvalue()


@pytest.mark.parametrize(
    ("line", "python", "arguments"),
    [
        (b"#!C:\\py\\python.exe\n", "C:\\py\\python.exe", ()),
        (b"#!C:\\py\\python.exe -I -X utf8\r\n", "C:\\py\\python.exe", ("-I", "-X", "utf8")),
        (b'#!"C:\\p y\\python.exe" -E\n', "C:\\p y\\python.exe", ("-E",)),
        (b"#!<launcher_dir>\\python.exe\n", "<launcher_dir>\\python.exe", ()),
        (b"#!python.exe\n", "python.exe", ()),
        (b"#!/usr/bin/env python3\n", "/usr/bin/env", ("python3",)),
    ],
)
def test_the_interpreter_line_before_a_launchers_zip_archive_is_found(line, python, arguments):
    found = windows_shims.launcher(b"MZ" + bytes(200) + line + zipped())
    assert (found.python, found.arguments) == (python, arguments)


@pytest.mark.parametrize(
    "line", [b"", b"#!\n", b"#!C:\\python.exe", b"#!a\nb\n", b"#!\xff\xfe\n", b"#!a\0b\n"]
)
def test_a_file_without_a_line_before_the_zip_is_not_read(line):
    assert windows_shims.launcher(b"MZ" + bytes(200) + line + zipped()) is None


def test_a_zip_that_is_not_a_program_is_not_read():
    assert windows_shims.launcher(b"#!C:\\python.exe\n" + zipped()) is None


@pytest.mark.parametrize(
    ("mark", "kind"), [(b"UVSC", "script"), (b"UVPY", "python"), (b"UVUV", "script")]
)
def test_uvs_trailer_is_read(mark, kind):
    path = "C:\\p\u00fc\\python.exe".encode()
    raw = b"MZ" + bytes(64) + zipped() + path + struct.pack("<I", len(path)) + mark
    assert windows_shims.launcher(raw) == windows_shims.Launcher(
        kind=kind, python="C:\\p\u00fc\\python.exe"
    )


@pytest.mark.parametrize("length", [0, 9999, 2**32 - 1])
def test_uvs_trailer_with_a_wrong_value_is_not_read(length):
    assert windows_shims.launcher(b"MZ" + bytes(64) + struct.pack("<I", length) + b"UVSC") is None


RESOURCES = """
UV_TRAMPOLINE_KIND RCDATA {{ "\\x{kind:02x}" }}
UV_PYTHON_PATH RCDATA {{ "{path}" }}
1 RCDATA {{ "numbered" }}
OTHER 42 {{ "of another type" }}
"""
COMPILERS = {"x86_64": "x86_64-w64-mingw32", "i686": "i686-w64-mingw32"}


def program_with(tmp_path, kind, path, machine="x86_64"):
    """Make a real executable with these resources, using a real resource compiler and linker."""
    tools = COMPILERS[machine]
    rigs.need("mingw")
    text = RESOURCES.format(kind=kind, path=path.replace("\\", "\\\\"))
    (tmp_path / "r.rc").write_text(text)
    (tmp_path / "m.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([f"{tools}-windres", "r.rc", "r.o"], cwd=tmp_path, check=True)
    subprocess.run([f"{tools}-gcc", "-s", "-o", "m.exe", "m.c", "r.o"], cwd=tmp_path, check=True)
    return (tmp_path / "m.exe").read_bytes()


@pytest.mark.parametrize("machine", COMPILERS)
def test_uvs_resources_are_read(tmp_path, machine):
    raw = program_with(tmp_path, 1, "C:\\py\\python.exe", machine)
    assert windows_pe_resources.resources(raw) == {
        "UV_TRAMPOLINE_KIND": b"\x01",
        "UV_PYTHON_PATH": b"C:\\py\\python.exe",
    }
    assert windows_shims.launcher(raw) == windows_shims.Launcher(
        kind="script", python="C:\\py\\python.exe"
    )
    for at in range(0, len(raw), 97):  # a truncated file must not cause an exception
        assert windows_pe_resources.resources(raw[:at]) in (
            {},
            windows_pe_resources.resources(raw),
            {"UV_TRAMPOLINE_KIND": b"\x01"},
            {"UV_PYTHON_PATH": b"C:\\py\\python.exe"},
        )


def test_uvs_resources_of_a_proxy_are_read(tmp_path):
    raw = program_with(tmp_path, 2, "..\\python.exe")
    assert windows_shims.launcher(raw) == windows_shims.Launcher(
        kind="python", python="..\\python.exe"
    )
    raw = program_with(tmp_path, 7, "..\\python.exe")
    assert windows_shims.launcher(raw) is None


@given(st.data())
def test_random_program_files_raise_no_exception(data):
    """Read random headers, which must not cause an exception or an endless loop."""
    head = bytearray(data.draw(st.binary(min_size=512, max_size=1024)))
    head[:2] = b"MZ"
    struct.pack_into("<I", head, 60, 64)
    head[64:68] = b"PE\0\0"
    struct.pack_into("<H", head, 64 + 24, data.draw(st.sampled_from([0x10B, 0x20B])))
    windows_pe_resources.resources(bytes(head))
    windows_shims.launcher(bytes(head))


NPM = (
    "@ECHO off\r\nGOTO start\r\n:find_dp0\r\nSET dp0=%~dp0\r\nEXIT /b\r\n:start\r\nSETLOCAL\r\nCALL :find_dp0\r\n\r\n"
    'IF EXIST "%dp0%\\node.exe" (\r\n  SET "_prog=%dp0%\\node.exe"\r\n) ELSE (\r\n  SET "_prog=node"\r\n'
    "  SET PATHEXT=%PATHEXT:;.JS;=;%\r\n)\r\n\r\n"
    'endLocal & goto #_undefined_# 2>NUL || title %COMSPEC% & "%_prog%"  "%dp0%\\..\\pkg\\cli.js" %*\r\n'
)
OLD_NPM = (
    '@IF EXIST "%~dp0\\node.exe" (\r\n  "%~dp0\\node.exe"  "%~dp0\\..\\pkg\\cli.js" %*\r\n) ELSE (\r\n'
    '  @SETLOCAL\r\n  @SET PATHEXT=%PATHEXT:;.JS;=;%\r\n  node  "%~dp0\\..\\pkg\\cli.js" %*\r\n)'
)
PNPM = (
    '@SETLOCAL\r\n@IF NOT DEFINED NODE_PATH (\r\n  @SET "NODE_PATH=C:\\x\\node_modules"\r\n) ELSE (\r\n'
    '  @SET "NODE_PATH=C:\\x\\node_modules;%NODE_PATH%"\r\n)\r\n'
    '@IF EXIST "%~dp0\\node.exe" (\r\n  "%~dp0\\node.exe"  "%~dp0\\..\\pkg\\cli.js" %*\r\n) ELSE (\r\n'
    '  @SET PATHEXT=%PATHEXT:;.JS;=;%\r\n  node  "%~dp0\\..\\pkg\\cli.js" %*\r\n)\r\n'
)
NATIVE = NPM.split("\r\n\r\n", maxsplit=1)[0] + '\r\n"%dp0%\\..\\pkg\\tool.exe"   %*\r\n'
HERE = "C:\\p\\node_modules\\.bin"
CLI = f"{HERE}\\..\\pkg\\cli.js"


@pytest.mark.parametrize("text", [NPM, OLD_NPM, PNPM], ids=["npm", "old npm", "pnpm"])
def test_batch_files_of_package_managers_are_read(text):
    found = windows_shims.batch(text.encode(), HERE)
    assert found == windows_shims.Shim(program="node", arguments=(CLI,), beside=f"{HERE}\\node.exe")


def test_a_batch_file_for_a_program_is_read():
    found = windows_shims.batch(NATIVE.encode(), HERE)
    assert found == windows_shims.Shim(program=f"{HERE}\\..\\pkg\\tool.exe")


def test_arguments_of_the_interpreter_are_read():
    text = NPM.replace('"%_prog%"  ', '"%_prog%" --no-warnings ')
    assert windows_shims.batch(text.encode(), HERE).arguments == ("--no-warnings", CLI)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@echo off\r\n",
        "node cli.js\r\n",
        NPM + "calc.exe\r\n",
        NPM.replace(" %*", " %* & calc"),
        NPM.replace("SETLOCAL", "SET PATH=C:\\evil;%PATH%"),
        NPM.replace("cli.js", "%NAME%.js"),
        OLD_NPM.replace("cli.js", "other.js", 1),
        OLD_NPM.replace('"%~dp0\\..\\pkg\\cli.js"', '"%~dp0\\..\\pkg\\cli.js"x'),
        PNPM.replace("NODE_PATH", "NODE_OPTIONS"),
        NPM.replace("cli.js", "cli.js\0"),
    ],
    ids=range(11),
)
def test_other_batch_files_are_not_read(text):
    assert windows_shims.batch(text.encode(), HERE) is None


@given(st.text(max_size=300), st.integers(0, len(NPM)))
def test_text_inserted_into_a_batch_file_is_not_executed(text, at):
    """Insert lines into a batch file. corral must either refuse the file or find a single command
    in it. This command must contain neither variables nor line breaks.
    """
    found = windows_shims.batch((NPM[:at] + text + NPM[at:]).encode("utf-8", "surrogatepass"), HERE)
    if found is not None:
        assert not any(
            mark in word for word in (found.program, *found.arguments) for mark in "%\0\r\n"
        )


@pytest.mark.rig("node")
def test_batch_files_of_the_installed_npm_are_read(tmp_path):
    """Check that corral finds the program and the script in files written by the installed npm's
    cmd-shim.
    """
    root = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("npm"))))
    writer = os.path.join(root, "node_modules", "cmd-shim")
    if not os.path.isdir(writer):
        pytest.skip("this npm comes without cmd-shim")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "cli.js").write_text("#!/usr/bin/env node\n")
    (tmp_path / "pkg" / "plain.exe").write_text("MZ")
    script = "const s = require(process.argv[1]); s('pkg/cli.js', '.bin/cli').then(() => s('pkg/plain.exe', '.bin/plain'))"
    subprocess.run(["node", "-e", script, writer], cwd=tmp_path, check=True)
    found = windows_shims.batch((tmp_path / ".bin" / "cli.cmd").read_bytes(), HERE)
    assert found == windows_shims.Shim(program="node", arguments=(CLI,), beside=f"{HERE}\\node.exe")
    found = windows_shims.batch((tmp_path / ".bin" / "plain.cmd").read_bytes(), HERE)
    assert found == windows_shims.Shim(program=f"{HERE}\\..\\pkg\\plain.exe")


def test_scoops_shim_file_is_read():
    text = 'path = "C:\\scoop\\apps\\tool\\current\\tool.exe"\r\nargs = --portable "a b"\r\n'
    found = windows_shims.scoop(text)
    assert found == windows_shims.Shim(
        program="C:\\scoop\\apps\\tool\\current\\tool.exe", arguments=("--portable", "a b")
    )
    assert windows_shims.scoop("path = %USERPROFILE%\\x.exe") is None
    assert windows_shims.scoop("nothing") is None


def test_pyvenv_cfg_is_read():
    text = "home = C:\\Python\r\ninclude-system-site-packages = false\r\nversion = 3.12.1\r\n"
    assert windows_shims.settings(text)["home"] == "C:\\Python"
