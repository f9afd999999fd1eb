"""Resolve typed Windows commands to programs, using a fake disk."""

import ntpath
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import CommandError, UnchosenReadsError
from corral.policy.model import Grant
from corral.programs import windows_py_launcher, windows_resolve
from corral.programs.windows_disk import HostDisk

HOME = "C:\\Users\\Ann"
ENVIRONMENT = {
    "Path": 'C:\\Windows\\System32;"C:\\Program Files\\nodejs";C:\\Users\\Ann\\bin;.;relative;;\\\\server\\share',
    "PATHEXT": ".COM;.EXE;.BAT;.CMD;.VBS;.JS;.PY",
    "SystemRoot": "C:\\Windows",
    "ProgramFiles": "C:\\Program Files",
}
NODE = "C:\\Program Files\\nodejs\\node.exe"
PYTHON = "C:\\Users\\Ann\\AppData\\Local\\Programs\\Python\\Python312\\python.exe"
VENV = "C:\\work\\venv"
BATCH = '@IF EXIST "%~dp0\\node.exe" (\r\n  "%~dp0\\node.exe"  "%~dp0\\..\\srv\\cli.js" %*\r\n) ELSE (\r\n  node  "%~dp0\\..\\srv\\cli.js" %*\r\n)\r\n'


class Table:
    """A fake disk that ignores case as NTFS does. `files` maps paths to contents, and `links` maps
    paths to their targets. `aliases` lists app execution aliases, whose targets cannot be read.
    """

    def __init__(self, files, links=(), aliases=()):
        self.files = {path.lower(): content for path, content in files.items()}
        self.names_of = {path.lower(): path for path in files}
        self.links = dict(links)
        self.aliases = {path.lower() for path in aliases}

    def kind(self, path):
        lower = self.real(path).lower()
        if lower in self.aliases:
            return "alias"
        if lower in self.files:
            return "file"
        return (
            "directory"
            if any(name.startswith(lower.rstrip("\\") + "\\") for name in self.files)
            else ""
        )

    def read(self, path):
        return self.files.get(self.real(path).lower(), b"")

    def names(self, path):
        below = path.lower() + "\\"
        return sorted(
            {
                self.names_of[name][len(below) :].split("\\")[0]
                for name in self.files
                if name.startswith(below)
            }
        )

    def real(self, path):
        for link, target in self.links.items():
            if path.lower() == link.lower() or path.lower().startswith(link.lower() + "\\"):
                return target + path[len(link) :]
        return path

    def identity(self, path):
        assert self.kind(path), path
        return 1, hash(path.lower())


def files(**more):
    return {
        NODE: b"MZ node",
        "C:\\Windows\\System32\\where.exe": b"MZ",
        PYTHON: b"MZ python",
        ntpath.dirname(PYTHON) + "\\Lib\\os.py": b"",
        **more,
    }


def resolve(*argv, disk, cwd="C:\\work", environment=ENVIRONMENT, subprocess=False, **more):
    return windows_resolve.resolve(
        argv, environment=environment, cwd=cwd, home=HOME, subprocess=subprocess, disk=disk, **more
    )


def refused(*argv, disk, **more):
    with pytest.raises(CommandError) as caught:
        resolve(*argv, disk=disk, **more)
    return caught.value


def test_a_name_is_found_on_path():
    found = resolve(
        "node",
        "srv\\index.js",
        disk=Table(files(**{"C:\\work\\srv\\index.js": b"", "C:\\work\\srv\\package.json": b"{}"})),
    )
    assert found.path == NODE
    assert found.argv == (NODE, "C:\\work\\srv\\index.js")
    assert found.reads == (NODE, "C:\\work\\srv")
    assert found.typed == ("node", "srv\\index.js")
    assert found.cwd == ""


@pytest.mark.parametrize(
    "name",
    [
        "node",
        "NODE",
        "node.exe",
        "Node.EXE",
        NODE,
        NODE.replace("\\", "/"),
        "c:\\program files\\nodejs\\node",
    ],
)
def test_different_spellings_find_the_same_program(name):
    assert resolve(name, disk=Table(files())).path.lower() == NODE.lower()


def test_the_current_directory_is_never_searched():
    disk = Table(files(**{"C:\\work\\tool.exe": b"MZ"}))
    error = refused("tool", disk=disk)
    assert error.exit_code == 127
    assert ".\\tool" in error.hint
    assert resolve(".\\tool", disk=disk).path == "C:\\work\\tool.exe"


def test_a_program_in_the_working_directory_does_not_hide_the_one_on_path():
    disk = Table(
        files(**{"C:\\work\\node.exe": b"MZ evil", "C:\\work\\relative\\node.exe": b"MZ evil"})
    )
    assert resolve("node", disk=disk).path == NODE


def test_relative_and_remote_entries_of_path_are_ignored():
    """Check that corral ignores relative entries and network shares in PATH. The meaning of a
    relative entry depends on the current directory, and a share belongs to another machine.
    """
    disk = Table(
        files(
            **{"relative\\tool.exe": b"MZ", "tool.exe": b"MZ", "\\\\server\\share\\tool.exe": b"MZ"}
        )
    )
    assert refused("tool", disk=disk).exit_code == 127


@pytest.mark.parametrize(
    "name",
    ["\\\\server\\share\\x.exe", "//server/share/x.exe", "\\\\.\\pipe\\x", "\\\\?\\C:\\x.exe"],
)
def test_shares_and_devices_are_refused(name):
    assert refused(name, disk=Table(files())).exit_code == 126


@pytest.mark.parametrize("path", ["\\\\server\\x", "\\/server\\x", "//server/x", "\\\\.\\pipe\\x"])
def test_a_share_is_never_opened(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "//" not in path:
        # On Linux this path is an ordinary file name. The directory exists, so only corral's own
        # check can keep it from being opened.
        (tmp_path / path).mkdir(parents=True)
        assert (tmp_path / path).is_dir()
    disk = HostDisk()
    assert (disk.kind(path), disk.read(path), disk.names(path), disk.real(path)) == (
        *("", b"", []),
        path,
    )
    (tmp_path / "x").mkdir()
    assert disk.kind("x") == "directory"  # Sanity check: a local directory is opened


def test_extensions_are_tried_in_the_order_of_pathext():
    disk = Table(
        files(**{"C:\\Users\\Ann\\bin\\x.cmd": BATCH.encode(), "C:\\Users\\Ann\\bin\\x.exe": b"MZ"})
    )
    assert resolve("x", disk=disk).path == "C:\\Users\\Ann\\bin\\x.exe"
    other = {**ENVIRONMENT, "PATHEXT": ".CMD;.EXE"}
    disk.files["c:\\users\\ann\\srv\\cli.js"] = b""
    assert resolve("x", disk=disk, environment=other).path == NODE


def test_npms_batch_file_is_followed():
    disk = Table(files(**{
        "C:\\work\\node_modules\\.bin\\srv.cmd": BATCH.encode(),
        "C:\\work\\node_modules\\srv\\cli.js": b"",
        "C:\\work\\package.json": b"{}",
    }))  # fmt: skip
    found = resolve("node_modules\\.bin\\srv.cmd", "--port", "1", disk=disk)
    assert found.argv == (NODE, "C:\\work\\node_modules\\srv\\cli.js", "--port", "1")
    assert found.reads == (NODE, "C:\\work")
    assert found.cwd == "C:\\work"


def test_a_package_of_a_project_is_readable_with_its_neighbours():
    """Check that the whole project is readable, not only the directory with the package's own
    package.json. The package also needs other packages, which npm has installed beside it.
    """
    for top in ("C:\\work", f"{HOME}\\.corral\\cache\\store\\trees\\0123"):
        script = f"{top}\\node_modules\\@a\\srv\\dist\\cli.js"
        disk = Table(files(**{
            script: b"",
            f"{top}\\node_modules\\@a\\srv\\package.json": b"{}",
            f"{top}\\node_modules\\dep\\package.json": b"{}",
            f"{top}\\package.json": b"{}",
        }))  # fmt: skip
        assert resolve("node", script, disk=disk).reads == (NODE, top)
    home = f"{HOME}\\node_modules\\srv"  # corral never treats the home directory as a project
    disk = Table(files(**{f"{home}\\cli.js": b"", f"{HOME}\\package.json": b"{}"}))
    assert resolve("node", f"{home}\\cli.js", disk=disk).reads == (NODE, home)


def test_npms_batch_file_of_a_global_package_is_followed():
    """Check that the started package is readable, and that the other global packages are not."""
    npm = "C:\\Users\\Ann\\AppData\\Roaming\\npm"
    text = BATCH.replace("..\\srv", "node_modules\\@a\\srv").encode()
    disk = Table(
        files(
            **{
                f"{npm}\\srv.cmd": text,
                f"{npm}\\node_modules\\@a\\srv\\cli.js": b"",
                f"{npm}\\node_modules\\b\\x.js": b"",
            }
        )
    )
    found = resolve(f"{npm}\\srv", disk=disk)
    assert found.reads == (NODE, f"{npm}\\node_modules\\@a\\srv")


def test_other_batch_files_need_processes():
    disk = Table(files(**{"C:\\work\\x.bat": b"@echo off\r\nnode %1\r\n"}))
    assert "cmd.exe" in refused(".\\x", disk=disk).message
    found = resolve(".\\x", disk=disk, subprocess=True)
    assert found.path == "C:\\work\\x.bat"


@pytest.mark.parametrize("name", ["npx", "npm", "uvx"])
def test_installers_are_refused(name):
    disk = Table(files(**{f"C:\\Users\\Ann\\bin\\{name}.cmd": b"@echo off\r\nrem anything\r\n"}))
    assert "install" in refused(name, "srv", disk=disk, subprocess=True).hint


def venv(**more):
    return Table(files(**{
        f"{VENV}\\pyvenv.cfg": f"home = {ntpath.dirname(PYTHON)}\r\nversion = 3.12.1\r\n".encode(),
        f"{VENV}\\Scripts\\python.exe": b"MZ redirector",
        f"{VENV}\\Lib\\site-packages\\srv\\__init__.py": b"",
        **more,
    }))  # fmt: skip


def test_the_python_of_a_virtual_environment_is_followed():
    found = resolve("venv\\Scripts\\python", "-m", "srv", disk=venv())
    assert found.argv == (PYTHON, "-m", "srv")
    assert found.environment == (("__PYVENV_LAUNCHER__", f"{VENV}\\Scripts\\python.exe"),)
    assert found.reads == (VENV, ntpath.dirname(PYTHON))
    assert f"set __PYVENV_LAUNCHER__={VENV}" in found.describe()


def test_a_plain_python_needs_no_variable():
    found = resolve(PYTHON, "-m", "srv", disk=venv())
    assert found.environment == ()
    assert found.reads == (ntpath.dirname(PYTHON),)


def test_an_environment_without_its_base_is_an_error():
    disk = venv()
    del disk.files[PYTHON.lower()]
    assert "does not exist" in refused(f"{VENV}\\Scripts\\python.exe", disk=disk).message


def launcher(python):
    path = python.encode()
    return b"MZ" + bytes(64) + path + struct.pack("<I", len(path)) + b"UVSC"


@pytest.mark.parametrize(
    "python", [f"{VENV}\\Scripts\\python.exe", "python.exe", "..\\Scripts\\python.exe"]
)
def test_a_script_of_an_environment_is_followed(python):
    """Follow the script's launcher to the environment's python.exe, and from there to the real
    Python.
    """
    script = f"{VENV}\\Scripts\\srv.exe"
    found = resolve(script, "--flag", disk=venv(**{script: launcher(python)}))
    assert found.argv == (PYTHON, script, "--flag")
    assert found.environment == (("__PYVENV_LAUNCHER__", f"{VENV}\\Scripts\\python.exe"),)
    assert found.reads == (VENV, ntpath.dirname(PYTHON))


SITE = f"{VENV}\\Lib\\site-packages"


def test_editable_installs_are_readable():
    finder = "MAPPING: dict[str, str] = {'b': 'C:\\\\other\\\\b'}\nNAMESPACES = {}\n"
    disk = venv(**{
        f"{SITE}\\_a.pth": b"C:\\projects\\a\\src\r\nimport evil; evil.run()\r\n",
        f"{SITE}\\__editable___b_finder.py": finder.encode(),
        f"{SITE}\\plain.pth": b"C:\\Users\\Ann\\Documents\r\nC:\\nothing\r\nC:\\Windows\r\n",
        "C:\\projects\\a\\pyproject.toml": b"",
        "C:\\projects\\a\\src\\a.py": b"",
        "C:\\other\\b\\__init__.py": b"",
        "C:\\other\\setup.py": b"",
        "C:\\Users\\Ann\\Documents\\diary.txt": b"",
    })  # fmt: skip
    found = resolve("venv\\Scripts\\python", "-m", "a", disk=disk)
    assert set(found.reads) == {VENV, ntpath.dirname(PYTHON), "C:\\projects\\a", "C:\\other"}


def test_an_environment_inside_its_own_project_is_readable():
    """Use the layout of `uv sync`: the project contains the environment, and a file in the
    environment refers to the project.
    """
    disk = venv(
        **{
            f"{SITE}\\_a.pth": b"C:\\work\\src\r\n",
            "C:\\work\\pyproject.toml": b"",
            "C:\\work\\src\\a.py": b"",
        }
    )
    found = resolve("venv\\Scripts\\python", "-m", "a", disk=disk)
    assert set(found.reads) == {"C:\\work", ntpath.dirname(PYTHON)}


SERVER = "C:\\Users\\Ann\\server"
PRIVATE = "C:\\Users\\Ann\\private"


def server_directory():
    return venv(**{
        f"{SERVER}\\corral.toml": b"",
        f"{SERVER}\\src\\index.js": b"",
        f"{SERVER}\\tool.exe": b"MZ",
        f"{SITE}\\_a.pth": f"{PRIVATE}\\src\r\n".encode(),
        f"{PRIVATE}\\package.json": b"{}",
        f"{PRIVATE}\\src\\index.js": b"",
        f"{PRIVATE}\\pyproject.toml": b"",
        f"{PRIVATE}\\tool.exe": b"MZ",
    })  # fmt: skip


def read_grant(path):
    return Grant(path=path, access="read", device=0, inode=0, directory=True, owner=0, group=0)


@pytest.mark.parametrize(
    "command", [["node", f"{PRIVATE}\\src\\index.js"], [f"{PRIVATE}\\tool.exe"]]
)
def test_a_servers_author_cannot_make_other_files_readable(command):
    disk = server_directory()
    with pytest.raises(UnchosenReadsError) as caught:
        resolve(*command, disk=disk, root=SERVER)
    assert caught.value.reads == (command[-1],)
    assert f'--read "{command[-1]}"' in caught.value.hint
    # Sanity checks: the command is accepted if the user grants the directory, or if the user, and
    # not the server's author, chose the command.
    granted = resolve(*command, disk=disk, root=SERVER, grants=[read_grant(PRIVATE)])
    assert PRIVATE not in granted.reads  # the grant itself makes the directory readable
    assert PRIVATE in resolve(*command, disk=disk).reads


@pytest.mark.parametrize("command", [["node", f"{SERVER}\\src\\index.js"], [f"{SERVER}\\tool.exe"]])
def test_a_servers_own_directory_is_readable(command):
    assert SERVER in resolve(*command, disk=server_directory(), root=SERVER).reads


def test_a_servers_author_cannot_make_editable_installs_readable():
    disk, python = server_directory(), f"{VENV}\\Scripts\\python.exe"
    assert PRIVATE not in resolve(python, "-m", "a", disk=disk, root=SERVER).reads
    # Sanity check: if the user typed the command, the editable install is readable.
    assert PRIVATE in resolve(python, "-m", "a", disk=disk).reads


def test_uvs_proxy_for_python_is_followed():
    proxy = "C:\\Users\\Ann\\.local\\bin\\python3.12.exe"
    raw = launcher(PYTHON)[:-4] + b"UVPY"
    found = resolve(proxy, "x.py", disk=Table(files(**{proxy: raw, "C:\\work\\x.py": b""})))
    assert found.argv == (PYTHON, "C:\\work\\x.py")
    assert found.environment == ()


def test_the_setuptools_launcher_is_followed():
    script = f"{VENV}\\Scripts\\old-script.py"
    disk = venv(
        **{
            f"{VENV}\\Scripts\\old.exe": b"MZ",
            script: f"#!{VENV}\\Scripts\\python.exe\r\nimport x\r\n".encode(),
        }
    )
    assert resolve(f"{VENV}\\Scripts\\old.exe", disk=disk).argv == (PYTHON, script)


def test_scoops_shim_is_followed():
    shim = b'path = "C:\\Users\\Ann\\scoop\\apps\\tool\\current\\tool.exe"\r\n'
    disk = Table(files(**{
        "C:\\Users\\Ann\\scoop\\shims\\tool.exe": b"MZ",
        "C:\\Users\\Ann\\scoop\\shims\\tool.shim": shim,
        "C:\\Users\\Ann\\scoop\\apps\\tool\\current\\tool.exe": b"MZ",
    }))  # fmt: skip
    found = resolve("C:\\Users\\Ann\\scoop\\shims\\tool.exe", disk=disk)
    assert found.path.endswith("current\\tool.exe")
    assert found.reads == ("C:\\Users\\Ann\\scoop\\apps\\tool\\current",)


def test_a_launcher_that_starts_itself_is_an_error():
    script = f"{VENV}\\Scripts\\loop.exe"
    error = refused(script, disk=venv(**{script: launcher(script)}))
    assert "it leads through more than" in error.message


@pytest.mark.parametrize("words", [("python", "-V"), ("python3", "-V"), ("py", "-3.12", "-V")])
def test_store_aliases_of_python_are_followed(words, monkeypatch):
    """Check that corral follows an app execution alias to the registered Python, for example one
    that Python's install manager has registered.
    """
    alias = f"C:\\Users\\Ann\\bin\\{words[0]}.exe"
    real = "C:\\Users\\Ann\\AppData\\Local\\Python\\pythoncore-3.12-64\\python.exe"
    disk = Table(files(**{real: b"MZ"}), aliases=[alias])
    environment = {**ENVIRONMENT, "Path": "C:\\Users\\Ann\\bin"}
    error = refused(*words, disk=disk, environment=environment)
    assert "is registered" in error.message
    assert "python.org" in error.hint
    monkeypatch.setattr(windows_py_launcher, "installed", lambda: {"3.12": real})
    found = resolve(*words, disk=disk, environment=environment)
    assert found.argv == (real, "-V")
    assert found.reads == (real.rpartition("\\")[0],)


@pytest.mark.parametrize("target", ["..\\pythoncore-3.14-64\\python.exe", "{base}\\python.exe"])
def test_launchers_of_the_install_manager_are_followed(target):
    manager = "C:\\Users\\Ann\\AppData\\Local\\Python"
    base = f"{manager}\\pythoncore-3.14-64"
    text = target.format(base=base).encode()
    disk = Table(files(**{
        f"{base}\\python.exe": b"MZ",
        f"{manager}\\bin\\python.exe": b"MZ",
        f"{manager}\\bin\\python.exe.__target__": text,
        f"{manager}\\bin\\tool.exe": b"MZ",
        f"{manager}\\bin\\tool.exe.__target__": text,
        f"{manager}\\bin\\tool.exe.__script__.py": b"print()",
        f"{manager}\\bin\\gone.exe": b"MZ",
        f"{manager}\\bin\\gone.exe.__target__": b"..\\none\\python.exe",
    }))  # fmt: skip
    found = resolve(f"{manager}\\bin\\python.exe", "-m", "x", disk=disk)
    assert found.argv == (f"{base}\\python.exe", "-m", "x")
    assert found.reads == (base,)
    script = resolve(f"{manager}\\bin\\tool.exe", "a", disk=disk)
    assert script.argv == (f"{base}\\python.exe", f"{manager}\\bin\\tool.exe.__script__.py", "a")
    assert "does not exist" in refused(f"{manager}\\bin\\gone.exe", disk=disk).message


def test_programs_of_the_store_are_refused():
    alias = "C:\\Users\\Ann\\bin\\node.exe"
    environment = {**ENVIRONMENT, "Path": "C:\\Users\\Ann\\bin"}
    error = refused("node", disk=Table(files(), aliases=[alias]), environment=environment)
    assert "Store" in error.message
    assert "python.org" in error.hint
    path = "C:\\Program Files\\WindowsApps\\PythonSoftwareFoundation.Python.3.12\\python.exe"
    assert "Store" in refused(path, disk=Table(files(**{path: b"MZ"}))).message


def test_voltas_shim_is_refused():
    disk = Table(files(**{"C:\\Program Files\\nodejs\\volta-shim.exe": b"MZ"}))
    assert "volta which" in refused("node", disk=disk).hint


@pytest.mark.parametrize("name", ["x.py", "x.js", "x.ps1"])
def test_scripts_are_not_programs_on_windows(name):
    disk = Table(files(**{f"C:\\work\\{name}": b""}))
    assert refused(f".\\{name}", disk=disk).exit_code == 126


def test_a_linked_node_is_followed():
    """Use the layout of nvm for Windows, in which the directory on PATH is a link. corral must use
    the node in the link's target.
    """
    disk = Table(
        {"C:\\nvm\\v22\\node.exe": b"MZ"}, links={"C:\\Program Files\\nodejs": "C:\\nvm\\v22"}
    )
    found = resolve("node", disk=disk)
    assert found.path == NODE
    assert found.real == "C:\\nvm\\v22\\node.exe"
    assert found.reads == ("C:\\nvm\\v22\\node.exe",)


@pytest.mark.parametrize(
    "script",
    [
        "C:\\Users\\Ann\\x.js",
        "C:\\Users\\Ann\\Documents\\x.js",
        "C:\\x.js",
        "D:\\x.js",
        "C:\\Users\\x.js",
        "C:\\Users\\Ann\\.ssh\\x.js",
    ],
)
def test_only_the_script_in_a_shared_directory_is_readable(script):
    found = resolve("node", script, disk=Table(files(**{script: b""})))
    assert found.reads == (NODE, script)


def test_a_program_of_windows_needs_no_reads():
    assert resolve("where", disk=Table(files())).reads == ()


@pytest.mark.parametrize("argv", [(), ("",), ("a\0b",), ("nothing",), ("C:\\nothing.exe",)])
def test_missing_and_empty_commands_are_refused(argv):
    assert refused(*argv, disk=Table(files())).exit_code == 127


@given(st.text(max_size=40))
def test_any_word_is_found_or_refused(name):
    """Resolve random words. A word may be refused only with a CommandError, and a bare name must
    not be found in the current directory.
    """
    disk = Table(files(**{"C:\\work\\evil.exe": b"MZ"}))
    try:
        found = resolve(name, disk=disk)
    except CommandError:
        return
    if not any(mark in name for mark in "\\/:"):
        assert not found.path.lower().startswith("c:\\work")


INSTALLED = {
    "3.9": "C:\\39\\python.exe",
    "3.12": "C:\\312\\python.exe",
    "3.12-32": "C:\\312x\\python.exe",
    "3.13t": "C:\\t\\python.exe",
    "2.7": "C:\\27\\python.exe",
}


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("", "C:\\312\\python.exe"),
        ("3", "C:\\312\\python.exe"),
        ("2", "C:\\27\\python.exe"),
        ("3.9", "C:\\39\\python.exe"),
        ("3.12-32", "C:\\312x\\python.exe"),
        ("3.13t", "C:\\t\\python.exe"),
        ("3.14", ""),
        ("3.1", ""),
    ],
)
def test_the_py_launcher_chooses_the_requested_version(wanted, path):
    assert windows_py_launcher.choose(INSTALLED, wanted) == path


def test_the_py_launcher_uses_an_active_virtual_environment():
    disk = venv(**{"C:\\Windows\\py.exe": b"MZ"})
    found = resolve(
        "C:\\Windows\\py.exe",
        "-m",
        "srv",
        disk=disk,
        environment={**ENVIRONMENT, "VIRTUAL_ENV": VENV},
    )
    assert found.argv == (PYTHON, "-m", "srv")
    assert found.environment
    assert refused("C:\\Windows\\py.exe", "-3.99", "x.py", disk=disk).exit_code == 127
