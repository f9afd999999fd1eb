"""Attack with a server's own files: symlinks, `.pth` files and `#!` lines that lead to the user's
other files.

Each attack is a newly downloaded server. corral must refuse to start it, with a hint that suggests
flags. As a sanity check, the server starts with these flags.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil

import pytest
from attempts import BOTH_TIERS, by_tier, give, give_directory

NODE = "/usr/bin/node"
LOOK_JS = """
const fs = require("fs")
try { console.log(fs.readFileSync(process.argv[2], "utf8")) } catch (error) { console.log(error.code) }
"""
LOOK_PY = """
import sys
try:
    print(open(sys.argv[1]).read())
except OSError as error:
    print(error.strerror)
"""
SYSTEM_PYTHON = os.path.realpath("/usr/bin/python3")


def link(user, path, target):
    give_directory(user, path.parent)
    os.symlink(target, path)


def put(user, path, text="", mode=0o644):
    give_directory(user, path.parent)
    return give(user, path, text, mode)


def python_environment(user, path, *, base="/usr/bin", python=SYSTEM_PYTHON):
    put(user, path / "pyvenv.cfg", f"home = {base}\ninclude-system-site-packages = false\n")
    version = os.path.basename(SYSTEM_PYTHON)
    give_directory(user, path / "lib" / version / "site-packages")
    link(user, path / "bin/python", python)
    return path / "lib" / version / "site-packages"


@pytest.fixture
def private(user, scratch):
    """Create a private project next to the server. The target may read it only with a grant."""
    place = scratch / "work/private"
    put(user, place / "package.json", '{"name": "private"}')
    put(user, place / "pyproject.toml", "[project]\n")
    put(user, place / "server.js", LOOK_JS)
    put(user, place / "server.py", LOOK_PY)
    put(user, place / "notes.txt", "mine")
    put(user, place / ".venv/notes.txt", "mine")
    site = python_environment(user, place / ".venv")
    put(user, site / "own.pth", f"{place}\n")
    put(user, place / "node_modules/x/package.json", "{}")
    put(user, place / "node_modules/notes.txt", "mine")
    return place


@pytest.fixture
def project(user, scratch):
    place = scratch / "work/project"
    give_directory(user, place / ".git")
    put(user, place / "package.json", '{"name": "project"}')
    put(user, place / "server.js", LOOK_JS)
    put(user, place / "server.py", LOOK_PY)
    return place


def entry(user, project, private):
    link(user, project / "node_modules/x", "../../private")
    return (NODE, str(project / "server.js"))


def scoped_entry(user, project, private):
    link(user, project / "node_modules/@a/x", str(private))
    return (NODE, str(project / "server.js"))


def entry_of_a_linked_package(user, project, private):
    """Start a server from a project with two packages. In the second package, plant a symlink to
    the private project. The symlink through which the first package finds the second is allowed.
    """
    put(user, project / "packages/a/package.json", "{}")
    put(user, project / "packages/a/server.js", LOOK_JS)
    put(user, project / "packages/b/package.json", "{}")
    link(user, project / "node_modules/b", "../packages/b")
    link(user, project / "packages/b/node_modules/x", str(private))
    return (NODE, str(project / "packages/a/server.js"))


def node_modules(user, project, private):
    link(user, project / "node_modules", "../private/node_modules")
    return (NODE, str(project / "server.js"))


def script(user, project, private):
    link(user, project / "main.js", "../private/server.js")
    return (NODE, str(project / "main.js"))


def directory(user, project, private):
    """Plant a symlink to another repository, and start that repository's server through it."""
    give_directory(user, private / ".git")
    link(user, project / "lib", "../private")
    return (NODE, str(project / "lib/server.js"))


def shebang(user, project, private):
    put(user, project / "run", f"#!{private}/.venv/bin/python\n{LOOK_PY}", 0o755)
    return (str(project / "run"),)


def trampoline(user, project, private):
    start = """'''exec' "$(dirname -- "$(realpath -- "$0")")"/'../private/.venv/bin/python' "$0" "$@"\n' '''\n"""
    put(user, project / "run", f"#!/bin/sh\n{start}{LOOK_PY}", 0o755)
    return (str(project / "run"),)


def shim(user, project, private):
    put(
        user, project / "run", '#!/bin/sh\nexec node  "$basedir/../private/server.js" "$@"\n', 0o755
    )
    return (str(project / "run"),)


def pyenv(user, project, private):
    """Plant a script that looks like a pyenv shim and names the private project as PYENV_ROOT."""
    put(user, private / "versions/1/bin/run", f"#!/usr/bin/python3\n{LOOK_PY}", 0o755)
    put(user, private / "version", "1\n")
    text = f'#!/bin/sh\nexport PYENV_ROOT="{private}"\nexec "$program"\n'
    put(user, project / "run", text, 0o755)
    return (str(project / "run"),)


def linked_pyenv(user, project, private):
    """Plant a symlink in the server's project. It leads to a pyenv shim in the private project."""
    pyenv(user, private, private)
    link(user, project / "run", str(private / "run"))
    return (str(project / "run"),)


def linked_environment(user, project, private):
    link(user, project / "venv", "../private/.venv")
    return (str(project / "venv/bin/python"), str(project / "server.py"))


def pth(user, project, private):
    site = python_environment(user, project / "venv")
    put(user, site / "x.pth", f"{private}\n")
    return (str(project / "venv/bin/python"), str(project / "server.py"))


def finder(user, project, private):
    site = python_environment(user, project / "venv")
    text = f"MAPPING: dict[str, str] = {{'x': '{private}'}}\n"
    put(user, site / "__editable___x_finder.py", text)
    return (str(project / "venv/bin/python"), str(project / "server.py"))


def base(user, project, private):
    put(user, private / f"lib/{os.path.basename(SYSTEM_PYTHON)}/os.py")
    give_directory(user, private / "bin")
    python_environment(user, project / "venv", base=f"{private}/bin")
    return (str(project / "venv/bin/python"), str(project / "server.py"))


def interpreter(user, project, private):
    give_directory(user, private / "bin")
    shutil.copy(SYSTEM_PYTHON, private / "bin/python3")
    link(user, project / "python3", str(private / "bin/python3"))
    return (str(project / "python3"), "-S", str(project / "server.py"))


def managed_python(user, private):
    """Make a version manager's Python in which the private project is installed in editable mode,
    and return its path.
    """
    prefix = user.home / ".pyenv/versions/planted"
    shutil.rmtree(prefix, ignore_errors=True)
    give_directory(user, prefix / "bin")
    shutil.copy(SYSTEM_PYTHON, prefix / "bin/python3")
    site = prefix / "lib" / os.path.basename(SYSTEM_PYTHON) / "site-packages"
    put(user, site / "own.pth", f"{private}\n")
    return prefix / "bin/python3"


def managed_shebang(user, project, private):
    put(user, project / "run", f"#!{managed_python(user, private)} -S\n{LOOK_PY}", 0o755)
    return (str(project / "run"),)


def managed_link(user, project, private):
    link(user, project / "python3", str(managed_python(user, private)))
    return (str(project / "python3"), "-S", str(project / "server.py"))


def managed_base(user, project, private):
    python = managed_python(user, private)
    put(user, python.parent.parent / "lib" / os.path.basename(SYSTEM_PYTHON) / "os.py")
    python_environment(user, project / "venv", base=python.parent, python=python)
    settings = f"home = {python.parent}\ninclude-system-site-packages = true\n"
    put(user, project / "venv/pyvenv.cfg", settings)
    return (str(project / "venv/bin/python"), "-S", str(project / "server.py"))


ATTACKS = {
    made.__name__: made
    for made in (
        entry, scoped_entry, entry_of_a_linked_package, node_modules, script, directory, shebang,
        trampoline, shim, pyenv, linked_pyenv,
        linked_environment, pth, finder, base, interpreter, managed_shebang, managed_link,
        managed_base,
    )
}  # fmt: skip
NODES = {
    "entry",
    "scoped_entry",
    "entry_of_a_linked_package",
    "node_modules",
    "script",
    "directory",
    "shim",
}
CASES = [
    pytest.param(name, marks=pytest.mark.rig("node") if name in NODES else ()) for name in ATTACKS
]
INSIDE = {"node_modules": "node_modules/notes.txt"}


def flags_in(done):
    """Return the flags that the hint of a refusal suggests."""
    [hint] = [line for line in done.stderr.decode().splitlines() if "hint:" in line]
    words = shlex.split(hint)
    return tuple(words[words.index("--read") :])


@BOTH_TIERS
@pytest.mark.parametrize("name", CASES)
def test_a_fresh_checkout_cannot_choose_readable_paths(user, project, private, name):
    notes = str(private / INSIDE.get(name, "notes.txt"))
    command = (*ATTACKS[name](user, project, private), notes)
    refused = user.run(*command)
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    assert b"Traceback" not in refused.stderr
    flags = flags_in(refused)
    allowed = user.run(*command, flags=flags)
    if name.endswith("base"):
        # With the flags, Python starts. It then fails because the planted standard library contains
        # only os.py.
        assert b"No module named 'encodings'" in allowed.stderr
        return
    assert allowed.returncode == 0, (flags, allowed.stderr)
    if str(private) in flags or notes.startswith(flags[1]):
        assert allowed.stdout == b"mine\n"


@BOTH_TIERS
@pytest.mark.parametrize("name", CASES)
def test_a_servers_directory_cannot_choose_readable_paths(user, project, private, name):
    """Start the attacks with a command from the server's own manifest. The user has not chosen the
    paths in this command, so corral must refuse it until the user grants them.
    """
    notes = str(private / INSIDE.get(name, "notes.txt"))
    command = (*ATTACKS[name](user, project, private), notes)
    put(user, project / "corral.toml", f"version = 1\n[server]\ncommand = {json.dumps(command)}\n")
    refused = user.corral("run", str(project))
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    allowed = user.corral("run", *flags_in(refused), str(project))
    assert allowed.returncode == (1 if name.endswith("base") else 0), allowed.stderr


def test_pyvenv_cfg_cannot_make_another_directory_beside_a_python_readable(user, project, private):
    """Set `home` in `pyvenv.cfg` to a directory next to the interpreter's `bin`. corral must not
    make this directory readable, because in a conda installation it could contain all environments.
    """
    prefix = managed_python(user, private).parent.parent
    put(user, prefix / "lib" / os.path.basename(SYSTEM_PYTHON) / "os.py")
    notes = put(user, prefix / "notes/notes.txt", "mine")
    python_environment(user, project / "venv", base=prefix / "notes")
    command = (str(project / "venv/bin/python"), str(project / "server.py"), notes)
    assert user.run(*command).stdout == b"No such file or directory\n"
    allowed = user.run(*command, flags=("--read", os.path.dirname(notes)))
    assert allowed.stdout == b"mine\n", allowed.stderr


@BOTH_TIERS
@pytest.mark.parametrize("words", ["{0}/.venv/bin/python server.py", "python3 {0}/server.py"])
def test_a_servers_directory_cannot_start_the_users_programs(user, project, private, words):
    command = [*words.format(private).split(), str(private / "notes.txt")]
    put(user, project / "corral.toml", f"version = 1\n[server]\ncommand = {json.dumps(command)}\n")
    refused = user.corral("run", str(project))
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    allowed = user.corral("run", *flags_in(refused), "--read", str(private), str(project))
    assert (allowed.returncode, allowed.stdout) == (0, b"mine\n"), allowed.stderr


@pytest.mark.rig("node")
def test_a_run_cannot_choose_readable_paths_of_the_next_run(user, project, private):
    """Let the first run plant a symlink to the private project in its write grant. The second run
    has the same command and policy. corral must refuse it, and not make the private project
    readable.
    """
    code = (
        "const {mkdirSync, symlinkSync} = require('fs'), to = `${process.argv[3]}/node_modules`\n"
        "mkdirSync(to, {recursive: true}); try { symlinkSync('../../private', `${to}/x`) } catch {}\n"
    )
    put(user, project / "server.js", code + LOOK_JS)
    command = (NODE, str(project / "server.js"), str(private / "notes.txt"), str(project))
    flags = ("--write", str(project))
    first = user.run(*command, flags=flags)
    assert (first.returncode, first.stdout) == (0, b"ENOENT\n"), first.stderr
    assert os.path.islink(project / "node_modules/x")
    second = user.run(*command, flags=flags)
    assert (second.returncode, second.stdout) == (125, b"")
    third = user.run(*command, flags=(*flags, *flags_in(second)))
    assert (third.returncode, third.stdout) == (0, b"mine\n")


def test_a_granted_file_cannot_choose_its_interpreter(user, private):
    """Start a program that is in a write grant. Its `#!` line names the private project. corral
    must not grant this project, because an earlier run could have written the line.
    """
    path = user.home / "bin/rewritten-server"
    put(user, path, f"#!{private}/.venv/bin/python\n{LOOK_PY}", 0o755)
    command = (str(path), str(private / "notes.txt"))
    refused = user.run(*command, flags=("--write", str(path)))
    trusted = user.run(*command, flags=("--read", str(private)))
    path.unlink()
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    assert b"leads to" in refused.stderr
    # Sanity check: with a grant for the private project, the program starts and reads the notes.
    assert (trusted.returncode, trusted.stdout) == (0, b"mine\n"), trusted.stderr


def test_a_downloaded_file_cannot_choose_its_interpreter(user, private):
    """Start a program in a download directory, where no file marks a server's root. Its `#!` line
    names the private project. corral must refuse to start it.
    """
    path = user.home / "Downloads/server"
    put(user, path, f"#!{private}/.venv/bin/python\n{LOOK_PY}", 0o755)
    command = (str(path), str(private / "notes.txt"))
    refused = user.run(*command)
    trusted = user.run(*command, flags=("--read", str(private)))
    path.unlink()
    assert (refused.returncode, refused.stdout) == (125, b""), refused.stderr
    assert b"leads to" in refused.stderr
    # Sanity check: with a grant for the private project, the program starts and reads the notes.
    assert (trusted.returncode, trusted.stdout) == (0, b"mine\n"), trusted.stderr


@pytest.mark.parametrize(
    "mark", [pytest.param("package.json", marks=pytest.mark.rig("node")), "bin"]
)
def test_removing_a_projects_marker_file_does_not_make_its_parent_readable(
    user, scratch, project, private, mark
):
    """Let an earlier run remove the file that marks the server's root. The directory above must not
    become the root instead.
    """
    work = scratch / "work"
    put(user, work / "package.json", "{}")
    shutil.rmtree(project / ".git")
    if mark == "package.json":
        os.unlink(project / mark)
        command, grant = (NODE, str(project / "server.js")), project
    else:
        grant = work / "bin"
        give_directory(user, grant)
        shutil.copy(SYSTEM_PYTHON, grant / "python3")
        put(user, grant / "server.py", LOOK_PY)
        command = (str(grant / "python3"), "-S", str(grant / "server.py"))
    done = user.run(*command, str(private / "notes.txt"), flags=("--write", str(grant)))
    assert done.returncode == 0, done.stderr
    assert done.stdout in {b"ENOENT\n", b"No such file or directory\n"}
    flags = ("--write", str(grant), "--read", str(private))
    done = user.run(*command, str(private / "notes.txt"), flags=flags)
    assert (done.returncode, done.stdout) == (0, b"mine\n")


@BOTH_TIERS
@pytest.mark.rig("node")
def test_node_modules_above_the_servers_project_are_not_readable(user, scratch, project, private):
    notes = put(user, scratch / "work/node_modules/x/notes.txt", "mine")
    command = (NODE, str(project / "server.js"), notes)
    done = user.run(*command)
    assert (done.returncode, done.stdout) == (0, by_tier(user, b"ENOENT\n", b"EACCES\n"))
    done = user.run(*command, flags=("--read", str(scratch / "work/node_modules")))
    assert (done.returncode, done.stdout) == (0, b"mine\n")


def test_editable_projects_of_a_typed_interpreter_are_readable(user, private):
    """Start a version manager's Python by a path that the user typed. The projects installed in it
    in editable mode must be readable. This is the sanity check for the attacks with such a Python.
    """
    python = managed_python(user, private)
    server = put(user, user.home / "unpacked/server.py", LOOK_PY)
    done = user.run(str(python), "-S", server, str(private / "notes.txt"))
    shutil.rmtree(user.home / "unpacked")
    assert (done.returncode, done.stdout) == (0, b"mine\n"), done.stderr


@BOTH_TIERS
@pytest.mark.rig("node")
def test_packages_beside_an_unpacked_server_open_nothing_else(user, scratch, private):
    """Start a server from a directory next to `node_modules`. Their parent must not count as the
    server's root, because everything in it would become readable.
    """
    put(user, scratch / "work/node_modules/x/package.json", "{}")
    server = put(user, scratch / "work/unpacked/server.js", LOOK_JS)
    command = (NODE, server, str(private / "notes.txt"))
    done = user.run(*command)
    assert (done.returncode, done.stdout) == (0, by_tier(user, b"ENOENT\n", b"EACCES\n"))
    done = user.run(*command, flags=("--read", str(private)))
    assert (done.returncode, done.stdout) == (0, b"mine\n")


@BOTH_TIERS
def test_a_users_own_link_is_followed(user, project):
    """Start the program through a symlink that is outside every server's directory. This is the
    sanity check for the attacks with symlinks.
    """
    give_directory(user, user.home / "bin")
    path = user.home / "bin/own-server"
    path.unlink(missing_ok=True)
    put(user, project / "run", f"#!/usr/bin/python3\n{LOOK_PY}", 0o755)
    os.symlink(project / "run", path)
    done = user.run(str(path), str(project / "package.json"))
    path.unlink()
    assert (done.returncode, done.stdout) == (0, b'{"name": "project"}\n')
