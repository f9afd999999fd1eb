"""Resolve typed commands, and check that the resolved files suffice to run them.

Each program is run in bubblewrap, where only the system's directories and the program's `reads` and
`links` are visible. Then the program is run without its `reads`, and must fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import rigs
from corral.errors import CommandError, SandboxError, UnchosenReadsError
from corral.paths.posix import is_inside
from corral.policy.model import Grant
from corral.programs.arguments import Invocation, read_arguments
from corral.programs.needed_files import home_names, is_shared
from corral.programs.resolve import resolve

if TYPE_CHECKING:
    from corral.programs.model import Program

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX program names")

SYSTEM_VIEW = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
for directory in ("/bin", "/sbin", "/lib", "/lib64"):
    if os.path.islink(directory):
        SYSTEM_VIEW += ["--symlink", os.readlink(directory), directory]
    elif os.path.isdir(directory):
        SYSTEM_VIEW += ["--ro-bind", directory, directory]


needs_view = pytest.mark.rig("bwrap")
NODE = "/usr/bin/node"
CAT = "/usr/bin/cat" if os.path.exists("/usr/bin/cat") else "/bin/cat"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="tests the behaviour of Linux")
needs_node = pytest.mark.rig("node")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "user"
    (made / ".ssh").mkdir(parents=True)
    (made / ".ssh" / "id").write_text("secret")
    return made


def granted(path: object, access: str = "read") -> Grant:
    return Grant(path=str(path), access=access, device=0, inode=0, directory=True, owner=0, group=0)


class Resolver:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = ["/usr/local/bin", "/usr/bin", "/bin"]
        self.cwd = home
        self.environment: dict[str, str] = {}

    def __call__(
        self, *argv: object, subprocess: bool = False, read: object = (), root: object = ""
    ) -> Program:
        return resolve(
            grants=[granted(path) for path in ([read] if isinstance(read, Path) else read)],
            root=str(root),
            argv=[str(word) for word in argv],
            environment={"PATH": ":".join(self.path), **self.environment},
            cwd=str(self.cwd),
            home=str(self.home),
            subprocess=subprocess,
        )


@pytest.fixture
def run(home: Path) -> Resolver:
    return Resolver(home)


def view(program: Program, *, reads: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["bwrap", *SYSTEM_VIEW, "--clearenv", "--setenv", "PATH", ":".join(program.search)]
    if reads:
        for path in program.reads:
            command += ["--ro-bind", path, path]
        for path, target in program.links:
            command += ["--symlink", target, path]
        if program.cwd:
            command += ["--chdir", program.cwd]
    else:
        command += ["--chdir", "/"]
    command += ["--argv0", program.argv[0]] if program.argv[0] != program.path else []
    return subprocess.run(
        [*command, "--", program.path, *program.argv[1:]],
        capture_output=True,
        text=True,
        check=False,
    )


def works(program: Program) -> str:
    """Run the program with only its files visible, and return its output. Also check that the
    program fails without its `reads`.
    """
    rigs.need("bwrap")
    assert program.reads, program.describe()
    result = view(program)
    assert result.returncode == 0, f"{program.describe()}\n{result.stderr}"
    assert view(program, reads=False).returncode != 0, "the control: without the reads it must fail"
    return result.stdout.strip()


def program_at(path: Path, text: str | None = None) -> Path:
    """Create a script with this text and return its path. If no text is given, create a native
    program instead: a copy of cat.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        shutil.copy(os.path.realpath(CAT), path)
    else:
        path.write_text(text)
    path.chmod(0o755)
    return path


def file_at(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def link(path: Path, target: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(str(target))
    return path


@pytest.fixture(scope="session")
def made_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    return made


@pytest.fixture
def venv(made_venv: Path, home: Path) -> Path:
    """Copy a real venv. It was made without pip, because pip's scripts would contain the path of
    the original.
    """
    return Path(shutil.copytree(made_venv, home / "proj" / ".venv", symlinks=True))


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


# --- names, PATH, errors


def test_relative_and_empty_path_entries_are_never_searched(run: Resolver, home: Path) -> None:
    planted = program_at(home / "bin" / "server")
    run.cwd = home / "bin"
    for entries in (["."], [""], ["bin"], ["../bin"], []):
        run.path = entries
        with pytest.raises(CommandError) as caught:
            run("server")
        assert caught.value.exit_code == 127
        assert caught.value.hint
    run.path = [".", str(home / "bin")]
    assert run("server").path == str(planted)


def test_a_program_in_the_working_directory_needs_a_slash(run: Resolver, home: Path) -> None:
    (home / "directory").mkdir()
    program_at(home / "program")
    program_at(home / "two; words")
    hints = {"directory": "type ./directory", "program": "type ./program"}
    hints["two; words"] = "type './two; words'"  # without quotes, the shell would also run `words`
    for name, hint in hints.items():
        with pytest.raises(CommandError) as caught:
            run(name)
        assert str(caught.value.hint).endswith(hint)
    with pytest.raises(CommandError) as caught:
        run("nowhere")
    assert "./" not in str(caught.value.hint)


def test_a_script_in_the_working_directory_needs_its_interpreter(run: Resolver, home: Path) -> None:
    hints = {"server.py": "python3 server.py", "server.js": "node server.js"}
    for name, command in hints.items():
        # Sanity check: there is no such hint while the script does not exist.
        with pytest.raises(CommandError) as caught:
            run(name)
        assert "did you mean" not in str(caught.value.hint)
        (home / name).write_text("")
        with pytest.raises(CommandError) as caught:
            run(name)
        assert caught.value.hint == f"did you mean {command}?"


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("server.py", "#!/usr/bin/env python3\n", "chmod +x {}"),
        ("server", "\x7fELF", "chmod +x {}"),
        ("server.py", "print()\n", "write python3 {}"),
        ("passwd", "root:x:0:0\n", "name the program that runs it"),
    ],
)
def test_the_hint_for_a_file_that_is_not_executable_works(
    home: Path, run: Resolver, name: str, text: str, hint: str
) -> None:
    path = home / name
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(CommandError) as caught:
        run(str(path))
    assert caught.value.hint == hint.format(path)


def test_a_quoted_command_line_is_one_word(run: Resolver, home: Path) -> None:
    program_at(home / "bin" / "server")
    run.path = [str(home / "bin")]
    with pytest.raises(CommandError) as caught:
        run("server --port 1")
    assert "leave out the quotes" in str(caught.value.hint)
    # Sanity check: an unknown program gets another hint.
    with pytest.raises(CommandError) as caught:
        run("nowhere --port 1")
    assert "leave out the quotes" not in str(caught.value.hint)


def test_a_command_with_a_slash_is_relative_to_the_callers_directory(
    run: Resolver, home: Path
) -> None:
    program_at(home / "a" / "server")
    run.cwd = home / "a"
    assert run("./server").path == str(home / "a" / "server")
    run.cwd = home
    assert run("a/../a/server").path == str(home / "a" / "server")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda p: None, 127),
        (lambda p: p.mkdir(), 126),
        (lambda p: p.write_text("x"), 126),
        (lambda p: p.symlink_to(p.name), 126),
        (lambda p: p.symlink_to("nowhere"), 127),
        (lambda p: os.mkfifo(p, 0o755), 126),
    ],
    ids=["missing", "directory", "no x bit", "loop", "dangling", "fifo"],
)
def test_a_file_that_cannot_be_executed_is_an_error_with_the_shells_code(
    run: Resolver, home: Path, make, code
) -> None:
    make(home / "thing")
    with pytest.raises(CommandError) as caught:
        run("./thing")
    assert caught.value.exit_code == code


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], ["/usr/bin/true", "\ud800"]])
def test_words_that_are_not_a_command_are_errors(run: Resolver, argv: list[str]) -> None:
    with pytest.raises(CommandError):
        run(*argv)
    assert run("/usr/bin/true", "\udcff").argv == ("/usr/bin/true", "\udcff")


def test_the_identity_is_that_of_the_file_at_the_end_of_all_links(
    run: Resolver, home: Path
) -> None:
    real = program_at(home / "opt" / "server" / "run")
    link(home / "one", "two")
    link(home / "two", real)
    program = run(home / "one")
    status = os.stat(real)
    assert (program.path, program.real) == (str(home / "one"), str(real))
    assert (program.device, program.inode) == (status.st_dev, status.st_ino)
    assert program.links == ((str(home / "one"), "two"), (str(home / "two"), str(real)))
    for path, seen in zip(program.reads, program.seen, strict=True):
        assert seen == (os.stat(path).st_dev, os.stat(path).st_ino)


def test_a_program_behind_a_link_into_another_directory_needs_a_grant(
    run: Resolver, home: Path
) -> None:
    program_at(home / "real" / "node")
    (home / "other").mkdir()
    link(home / "links" / "node", "../other/../real/node")
    script = file_at(home / "s" / "x.js", "found")
    with pytest.raises(UnchosenReadsError, match="links/node leads to"):
        run(home / "links" / "node", script)
    assert works(run(home / "links" / "node", script, read=home / "real")) == "found"


# --- Python


SHOW = "import sys, {module}; print(sys.prefix, {module}.__file__)"


def test_a_venv_keeps_its_prefix_and_its_packages(run: Resolver, venv: Path) -> None:
    module = file_at(site_of(venv) / "installed_one.py")
    program = run(venv / "bin" / "python", "-c", SHOW.format(module="installed_one"))
    assert program.path == str(venv / "bin" / "python")
    assert works(program) == f"{venv} {module}"


@needs_view
def test_a_python_started_by_its_resolved_path_does_not_find_its_venvs_packages(
    run: Resolver, venv: Path
) -> None:
    file_at(site_of(venv) / "installed_one.py")
    program = run(venv / "bin" / "python", "-c", SHOW.format(module="installed_one"))
    lost = run(program.real, "-c", SHOW.format(module="installed_one"))
    assert view(lost).returncode != 0


def test_a_venv_made_by_uv_works(run: Resolver, home: Path) -> None:
    uv = pytest.importorskip("uv").find_uv_bin()
    venv = home / "proj" / ".venv"
    command = [uv, "venv", "--offline", "--python", sys.executable, str(venv)]
    subprocess.run(command, check=True, capture_output=True)
    module = file_at(site_of(venv) / "installed_one.py")
    program = run(venv / "bin" / "python3", "-c", SHOW.format(module="installed_one"))
    assert works(program) == f"{venv} {module}"


def test_uvs_own_pythons_are_reached_through_a_linked_directory(
    run: Resolver, home: Path, venv: Path
) -> None:
    """Check that Python starts and finds its packages in uv's layout. There .venv/bin/python is a
    link into a directory below ~/.local/share/uv/python, and this directory is a link, too.
    """
    pythons = home / ".local" / "share" / "uv" / "python"
    minor = link(pythons / "cpython-3-linux", os.path.realpath(sys.base_prefix))
    (venv / "bin" / "python").unlink()
    link(venv / "bin" / "python", minor / "bin" / f"python3.{sys.version_info.minor}")
    file_at(venv / "pyvenv.cfg", f"home = {minor}/bin\ninclude-system-site-packages = false\n")
    module = file_at(site_of(venv) / "installed_one.py")
    program = run(venv / "bin" / "python", "-c", SHOW.format(module="installed_one"))
    assert (str(minor), os.path.realpath(sys.base_prefix)) in program.links
    assert works(program) == f"{venv} {module}"


def test_a_venv_of_copies_finds_its_base_in_pyvenv_cfg(run: Resolver, home: Path) -> None:
    venv = home / "copied"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--copies", venv], check=True)
    program = run(venv / "bin" / "python", "-c", "import sys, json; print(sys.prefix)")
    assert works(program) == str(venv)


def test_a_pth_line_makes_an_editable_project_readable(
    run: Resolver, home: Path, venv: Path
) -> None:
    file_at(home / "proj" / "pyproject.toml")
    file_at(home / "proj" / "lib" / "pyproject.toml")
    module = file_at(home / "proj" / "lib" / "src" / "edited.py")
    file_at(home / "proj" / "lib" / "private.txt")
    file_at(site_of(venv) / "_editable_impl_edited.pth", f"{module.parent}\n")
    program = run(venv / "bin" / "python", "-c", SHOW.format(module="edited"))
    assert works(program) == f"{venv} {module}"
    assert str(module.parent) in program.reads, "only what the line names"


def test_a_pth_line_of_a_venv_may_lead_only_into_a_grant(
    run: Resolver, home: Path, venv: Path
) -> None:
    file_at(home / "dev" / "lib" / "pyproject.toml")
    module = file_at(home / "dev" / "lib" / "src" / "edited.py")
    file_at(site_of(venv) / "_editable_impl_edited.pth", f"{module.parent}\n")
    command = (venv / "bin" / "python", "-c", SHOW.format(module="edited"))
    with pytest.raises(UnchosenReadsError) as caught:
        run(*command)
    assert caught.value.reads == (str(module.parent),)
    assert caught.value.hint == f"to let the server read it, add --read {module.parent}"
    assert str(module.parent) not in run(*command, read=module.parent).reads


def test_a_setuptools_finder_is_parsed_and_never_executed(
    run: Resolver, home: Path, venv: Path
) -> None:
    file_at(home / "proj" / "setup.py")
    module = file_at(home / "proj" / "edited" / "__init__.py")
    finder = f"""
        import sys
        from importlib.machinery import PathFinder
        MAPPING: dict[str, str] = {{'edited': {str(module.parent)!r}}}
        class Finder:
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                place = MAPPING.get(name)
                return PathFinder.find_spec(name, [place.rpartition("/")[0]]) if place else None
        def install():
            sys.meta_path.append(Finder)
        """
    file_at(site_of(venv) / "__editable___edited_1_0_finder.py", textwrap.dedent(finder))
    file_at(
        site_of(venv) / "__editable__.edited-1.0.pth",
        "import __editable___edited_1_0_finder as f; f.install()\n",
    )
    program = run(venv / "bin" / "python", "-c", SHOW.format(module="edited"))
    assert works(program) == f"{venv} {module}"


@pytest.mark.parametrize(
    "source", ["MAPPING = open('/x')", "MAPPING = {", "MAPPING = {1: 2}", "(" * 5000, ""]
)
def test_a_setuptools_finder_without_a_literal_mapping_is_ignored(
    run: Resolver, venv: Path, source: str
) -> None:
    before = run(venv / "bin" / "python").reads
    file_at(site_of(venv) / "__editable___x_finder.py", source)
    assert run(venv / "bin" / "python").reads == before


def test_a_pth_line_cannot_name_a_path_outside_of_projects(
    run: Resolver, home: Path, venv: Path
) -> None:
    before = run(venv / "bin" / "python").reads
    file_at(home / "Documents" / "letters" / "a.txt")
    file_at(home / "pyproject.toml")
    lines = [home, home / ".ssh", home / "Documents" / "letters", home.parent, "/", "/etc", "/tmp"]
    file_at(site_of(venv) / "planted.pth", "\n".join(map(str, lines)) + "\n")
    assert run(venv / "bin" / "python").reads == before
    file_at(home / "Documents" / "letters" / "pyproject.toml")
    with pytest.raises(UnchosenReadsError, match="Documents/letters"):
        run(venv / "bin" / "python")


def test_a_home_in_pyvenv_cfg_counts_only_if_it_has_a_python(
    run: Resolver, home: Path, venv: Path
) -> None:
    before = set(run(venv / "bin" / "python").reads)
    file_at(home / "private" / "bin" / "python", "x")
    settings = (venv / "pyvenv.cfg").read_text().splitlines()
    others = [line for line in settings if not line.startswith("home")]
    file_at(venv / "pyvenv.cfg", "\n".join([f"home = {home}/private/bin", *others]))
    assert set(run(venv / "bin" / "python").reads) <= before


def test_the_users_own_packages_are_readable_only_outside_a_venv(
    run: Resolver, home: Path, venv: Path
) -> None:
    real = run(sys.executable).real
    site = home / ".local" / "lib" / os.path.basename(real) / "site-packages"
    file_at(site / "mine.py")
    assert str(site) in run(real).reads
    assert str(site) not in run(real, "-I").reads
    assert str(site) not in run(venv / "bin" / "python").reads


def test_a_python_beside_other_programs_can_read_only_its_own_files(
    run: Resolver, home: Path
) -> None:
    python = program_at(home / ".local" / "bin" / "python3.11")
    file_at(home / ".local" / "lib" / "python3.11" / "os.py")
    file_at(home / ".local" / "lib" / "python3.9" / "os.py")
    file_at(home / ".local" / "lib" / "libpython3.11.so.1.0")
    lib = home / ".local" / "lib"
    wanted = {str(python), str(lib / "python3.11"), str(lib / "libpython3.11.so.1.0")}
    assert set(run(python).reads) == wanted


@LINUX
def test_the_systems_python_needs_no_reads(run: Resolver) -> None:
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("no python in /usr/bin")
    program = run("python3", "-c", "pass")
    assert (program.path, program.reads, program.links) == ("/usr/bin/python3", (), ())


# --- #! lines


def test_a_console_script_is_run_by_its_venvs_python(run: Resolver, venv: Path) -> None:
    python = venv / "bin" / "python"
    script = program_at(
        venv / "bin" / "server", f"#!{python}\nimport sys; print(sys.prefix, sys.argv)\n"
    )
    program = run(script, "--flag")
    assert program.argv == (str(python), str(script), "--flag")
    assert works(program) == f"{venv} ['{script}', '--flag']"


def test_a_tool_that_is_linked_into_the_users_bin_works(
    run: Resolver, home: Path, venv: Path
) -> None:
    """Check that a tool runs in its virtual environment in the layout of pipx and uv tool, where
    ~/.local/bin/tool is a link to ~/.local/share/uv/tools/tool/bin/tool.
    """
    script = program_at(
        venv / "bin" / "tool", f"#!{venv}/bin/python\nimport sys; print(sys.prefix)\n"
    )
    run.path.insert(0, str(link(home / ".local" / "bin" / "tool", script).parent))
    assert works(run("tool")) == str(venv)


@pytest.mark.parametrize(
    "line", ["'''exec' '{python}' \"$0\" \"$@\"", "'''exec' \"{python}\" \"$0\" \"$@\"",
             "'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\""],
)  # fmt: skip
def test_the_shell_trampoline_for_a_long_python_path_is_followed(
    run: Resolver, venv: Path, line: str
) -> None:
    text = (
        "#!/bin/sh\n"
        + line.format(python=venv / "bin" / "python")
        + "\n' '''\nimport sys; print(sys.prefix)\n"
    )
    script = program_at(venv / "bin" / "server", text)
    program = run(script)
    assert program.argv == (str(venv / "bin" / "python"), str(script))
    assert works(program) == str(venv)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/usr/bin/env node", []),
        ("#! /usr/bin/env  node ", []),
        ("#!/usr/bin/env -S node --flag -x", ["--flag", "-x"]),
        ("#!/usr/bin/env -S node '--a b'", ["--a b"]),
        ("#!/usr/bin/env --split-string=node -x", ["-x"]),
    ],
)
def test_env_is_replaced_by_the_program_that_it_would_run(
    run: Resolver, home: Path, line: str, words: list[str]
) -> None:
    node = program_at(home / ".nvm" / "versions" / "node" / "v20" / "bin" / "node")
    run.path.insert(0, str(node.parent))
    script = program_at(home / "srv" / "server", line + "\n")
    assert run(script, "arg").argv == (str(node), *words, str(script), "arg")


@LINUX
@pytest.mark.parametrize(
    "line", ["#!/usr/bin/echo", "#! \t/usr/bin/echo\t a  b \t", "#!/usr/bin/echo a\0b c", "#!/usr/bin/env echo",
             "#!/usr/bin/env -S echo a 'b  c'", "#!/usr/bin/echo " + "x" * 300, "#!/usr/bin/env -S  echo"],
)  # fmt: skip
def test_the_kernel_splits_a_shebang_line_the_same_way(
    run: Resolver, home: Path, line: str
) -> None:
    script = program_at(home / "srv" / "server", line + "\n")
    kernel = subprocess.run([script, "arg"], capture_output=True, check=True)
    program = run(script, "arg")
    assert program.path == "/usr/bin/echo"
    assert subprocess.run(program.argv, capture_output=True, check=True).stdout == kernel.stdout


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env", "#!/usr/bin/env -i cat", "#!/usr/bin/env cat -u", "#!/usr/bin/env A=1 cat", "#!",
             "#!cat", "#!/usr/bin/cat\r", "#!/nowhere/cat", "#!/usr/bin/env -S cat ${HOME}", "#!/" + "a" * 300],
)  # fmt: skip
def test_shebang_lines_that_cannot_be_followed_are_refused(
    run: Resolver, home: Path, line: str
) -> None:
    script = program_at(home / "srv" / "server", line + "\n")
    with pytest.raises(CommandError) as caught:
        run(script)
    assert caught.value.exit_code in {126, 127}
    program_at(script, "#!/usr/bin/env cat\n")
    assert run(script).argv == (CAT, str(script)), "the control: a line that can be followed"


def test_nested_interpreters_end_where_the_kernel_ends(run: Resolver, home: Path) -> None:
    program_at(home / "s" / "0", f"#!{CAT}\n")
    for depth in range(1, 5):
        program_at(home / "s" / str(depth), f"#!{home}/s/{depth - 1}\n")
    chain = [str(home / "s" / str(n)) for n in range(4)]
    assert run(chain[3]).argv == (CAT, *chain)
    with pytest.raises(CommandError):
        run(home / "s" / "4")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=150,
)
@given(
    head=st.one_of(
        st.binary(max_size=300),
        st.builds(bytes.__add__, st.sampled_from([b"#!", b"#!/usr/bin/env ", b"#!/usr/bin/env -S", b"#!/bin/sh\n'''exec' ",
                                                  b'#!/bin/sh\n  exec node  "$basedir/', b"#!x\n# asdf-plugin: ",
                                                  b'#!x\nexport PYENV_ROOT="/']), st.binary(max_size=300)),
    ),
    tail=st.sampled_from([b"", b'" "$@"\n', b"\nasdf exec x", b'"\nexec "$program"']),
)  # fmt: skip
@example(head=b"#!/bin/sh\n'''exec' /\0", tail=b"")
def test_random_bytes_in_a_script_raise_only_a_command_error(
    run: Resolver, home: Path, head: bytes, tail: bytes
) -> None:
    script = home / "s" / "any"
    script.parent.mkdir(exist_ok=True)
    script.write_bytes(head + tail)
    script.chmod(0o755)
    try:
        program = run(script)
    except CommandError:
        return
    assert program.path.startswith("/")


# --- version managers


def pyenv_root() -> str:
    root = os.path.expanduser("~/.pyenv")
    rigs.need("pyenv")
    return root


@pytest.mark.parametrize(
    "chosen", ["", "3.12", "3", "system", "3.9:3.12", "nothing:3.11", "python-3.10"]
)
@pytest.mark.parametrize("source", ["environment", "file"])
def test_pyenv_shims_lead_where_pyenv_which_leads(home: Path, source: str, chosen: str) -> None:
    root = pyenv_root()
    path = f"{root}/shims:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(home), "PYENV_ROOT": root}
    if source == "file":
        file_at(home / ".python-version", chosen.replace(":", "\n"))
    elif chosen:
        environment["PYENV_VERSION"] = chosen
    command = [f"{root}/libexec/pyenv", "which", "python3"]
    asked = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, check=False
    )
    arguments = {
        "environment": environment,
        "cwd": str(home),
        "home": str(home),
        "subprocess": False,
    }
    if asked.returncode:
        with pytest.raises(CommandError):
            resolve(["python3"], **arguments)
    else:
        assert resolve(["python3"], **arguments).path == asked.stdout.strip()


def test_a_pyenv_shim_works_without_pyenv(home: Path) -> None:
    root = pyenv_root()
    program = resolve(
        ["python3", "-c", "import json, sys; print(sys.prefix)"],
        environment={"PATH": f"{root}/shims:/usr/bin", "PYENV_ROOT": root}, cwd=str(home), home=str(home), subprocess=False,
    )  # fmt: skip
    assert program.path.startswith(f"{root}/versions/")
    assert works(program) == os.path.dirname(os.path.dirname(program.path))


SHIM = """#!/usr/bin/env bash
set -e
program="${0##*/}"
export PYENV_ROOT="%s"
exec "%s/libexec/pyenv" exec "$program" "$@"
"""


def test_pyenv_versions_are_chosen_as_pyenv_does(run: Resolver, home: Path) -> None:
    root = home / ".pyenv"
    run.path.insert(0, str(program_at(root / "shims" / "tool", SHIM % (root, root)).parent))
    for version in ("3.9.1", "3.12.1", "3.12.10", "3.12.11rc1", "3.13.0t", "3.13-dev"):
        program_at(root / "versions" / version / "bin" / "tool")
    (root / "versions" / "3.8.0").mkdir()
    program_at(home / "outside" / "bin" / "tool")

    def chosen(text: str) -> str:
        run.environment = {"PYENV_VERSION": text} if text else {}
        return run("tool").path.removeprefix(f"{root}/versions/").removesuffix("/bin/tool")

    assert chosen("3.12") == "3.12.10"
    assert chosen("3.13t") == "3.13.0t"
    assert chosen("3.8.0:3.9.1") == "3.9.1", "the first that has the command"
    file_at(root / "version", "3.12.1\n")
    assert chosen("") == "3.12.1"
    run.cwd = home / "proj" / "deep"
    file_at(home / "proj" / ".python-version", "# mine\n3.9.1\n")
    run.cwd.mkdir()
    assert chosen("") == "3.9.1"
    file_at(home / "proj" / ".python-version", "../../outside\n")
    with pytest.raises(CommandError) as caught:
        chosen("")
    assert "3.12.10" in (caught.value.hint or "")


def test_a_node_of_nvm_is_readable_with_its_prefix(run: Resolver, home: Path) -> None:
    prefix = home / ".nvm" / "versions" / "node" / "v20.1.0"
    run.path.insert(0, str(program_at(prefix / "bin" / "node").parent))
    script = file_at(home / "srv" / "index.js", "hello")
    program = run("node", script)
    assert program.reads == (str(prefix), str(script.parent))
    assert program.search[0] == str(prefix / "bin")
    assert works(program) == "hello"


def test_a_node_of_fnm_is_reached_through_a_linked_directory(run: Resolver, home: Path) -> None:
    prefix = home / ".local" / "share" / "fnm" / "node-versions" / "v20" / "installation"
    program_at(prefix / "bin" / "node")
    shell = link(home / ".local" / "state" / "fnm_multishells" / "12_34", prefix)
    run.path.insert(0, str(shell / "bin"))
    program = run("node", file_at(home / "srv" / "index.js", "hello"))
    assert program.path == str(shell / "bin" / "node")
    assert program.links == ((str(shell), str(prefix)),)
    assert works(program) == "hello"


def volta(home: Path, *versions: str) -> Path:
    root = home / ".volta"
    program_at(root / "bin" / "volta-shim")
    link(root / "bin" / "node", "volta-shim")
    for version in versions:
        program_at(root / "tools" / "image" / "node" / version / "bin" / "node")
    return root


def test_volta_chooses_node_by_default_and_by_package_json(run: Resolver, home: Path) -> None:
    root = volta(home, "20.1.0", "18.2.0")
    run.path.insert(0, str(root / "bin"))
    with pytest.raises(CommandError) as caught:
        run("node")
    assert "volta install" in (caught.value.hint or "")
    file_at(
        root / "tools" / "user" / "platform.json",
        json.dumps({"node": {"runtime": "20.1.0", "npm": None}}),
    )
    script = file_at(home / "srv" / "index.js", "hello")
    assert works(run("node", script)) == "hello"
    assert "/20.1.0/" in run("node").path
    file_at(home / "srv" / "package.json", json.dumps({"volta": {"extends": "../shared.json"}}))
    file_at(home / "shared.json", json.dumps({"volta": {"node": "18.2.0"}}))
    run.cwd = home / "srv"
    assert "/18.2.0/" in run("node").path


def test_a_package_installed_by_volta_works(run: Resolver, home: Path) -> None:
    root = volta(home, "20.1.0")
    link(root / "bin" / "server", "volta-shim")
    package = root / "tools" / "image" / "packages" / "@org" / "server"
    real = program_at(
        package / "lib" / "node_modules" / "@org" / "server" / "cli.js", "#!/usr/bin/env node\n"
    )
    script = link(package / "bin" / "server", real)
    settings = {"name": "server", "package": "@org/server", "platform": {"node": "20.1.0"}}
    file_at(root / "tools" / "user" / "bins" / "server.json", json.dumps(settings))
    program = run(root / "bin" / "server")
    assert program.argv[1:] == (str(script),)
    assert "/20.1.0/bin/node" in program.path
    assert works(program) == "#!/usr/bin/env node"


def test_mise_chooses_by_its_files(run: Resolver, home: Path) -> None:
    data = home / ".local" / "share" / "mise"
    program_at(home / ".local" / "bin" / "mise")
    run.path.insert(0, str(link(data / "shims" / "node", home / ".local" / "bin" / "mise").parent))
    for version in ("20.1.0", "18.2.0", "16.0.0"):
        program_at(data / "installs" / "node" / version / "bin" / "node")
    link(data / "installs" / "node" / "20", "./20.1.0")
    with pytest.raises(CommandError) as caught:
        run("node")
    assert "installs" in (caught.value.hint or "")
    file_at(home / ".config" / "mise" / "config.toml", '[tools]\nnode = "20"\n')
    script = file_at(home / "srv" / "index.js", "hello")
    assert works(run("node", script)) == "hello"
    assert run("node").real == str(data / "installs" / "node" / "20.1.0" / "bin" / "node")
    run.cwd = home / "srv"
    file_at(home / "srv" / ".tool-versions", "python 3.1\nnode 18.2.0 # old\n")
    assert "/18.2.0/" in run("node").path
    file_at(home / "srv" / "mise.toml", '[tools]\nnode = { version = "16.0.0" }\n')
    assert "/16.0.0/" in run("node").path
    run.environment = {"MISE_NODE_VERSION": "18.2.0"}
    assert "/18.2.0/" in run("node").path


def test_asdf_chooses_by_tool_versions(run: Resolver, home: Path) -> None:
    root = home / ".asdf"
    shim = '#!/usr/bin/env bash\n# asdf-plugin: nodejs 20.1.0\nexec asdf exec "node" "$@"\n'
    run.path.insert(0, str(program_at(root / "shims" / "node", shim).parent))
    program_at(root / "installs" / "nodejs" / "20.1.0" / "bin" / "node")
    with pytest.raises(CommandError) as caught:
        run("node")
    assert "asdf set nodejs" in (caught.value.hint or "")
    file_at(home / ".tool-versions", "nodejs 20.1.0\n")
    assert works(run("node", file_at(home / "srv" / "index.js", "hello"))) == "hello"


def test_a_project_cannot_add_a_runtime(run: Resolver, home: Path) -> None:
    """Check that a project's file can choose a runtime only among the installed ones. The file is
    not trusted, because clients start servers in any directory that the user opens.
    """
    root = home / ".asdf"
    shim = '#!/usr/bin/env bash\n# asdf-plugin: nodejs 20.1.0\nexec asdf exec "node" "$@"\n'
    run.path.insert(0, str(program_at(root / "shims" / "node", shim).parent))
    program_at(root / "installs" / "nodejs" / "20.1.0" / "bin" / "node")
    other = program_at(home / "project" / "evil" / "bin" / "node").parent.parent
    file_at(home / ".tool-versions", "nodejs 20.1.0\n")
    file_at(home / "project" / ".tool-versions", f"nodejs path:{other}\n")
    run.cwd = home / "project"
    assert "/20.1.0/" in run("node").path
    # This file is trusted, because it is in the user's home and not in the project.
    file_at(home / ".tool-versions", f"nodejs path:{other}\n")
    assert run("node").path == str(other / "bin" / "node")


def test_shims_that_start_each_other_are_an_error(run: Resolver, home: Path) -> None:
    root = home / ".pyenv"
    shim = program_at(root / "shims" / "tool", SHIM % (root, root))
    link(root / "versions" / "1.0" / "bin" / "tool", shim)
    run.environment = {"PYENV_VERSION": "1.0"}
    with pytest.raises(CommandError) as caught:
        run(shim)
    assert caught.value.exit_code == 126


# --- the server's own files


@needs_node
@pytest.mark.parametrize("mark", ["package.json", "manifest.json", "corral.toml"])
def test_the_project_of_a_script_is_the_nearest_marked_directory(
    run: Resolver, home: Path, mark: str
) -> None:
    file_at(home / "package.json", "{}")
    file_at(home / "work" / "srv" / mark, "{}")
    file_at(home / "work" / "srv" / "shared.js", "module.exports = 'shared'")
    file_at(home / "work" / "srv" / "dist" / "index.js", "console.log(require('../shared.js'))")
    run.cwd = home / "work" / "srv"
    program = run("node", "dist/index.js")
    assert program.reads == (str(home / "work" / "srv"),)
    assert program.cwd == str(home / "work" / "srv")
    assert works(program) == "shared"


@needs_node
def test_a_relative_script_is_resolved_if_the_working_directory_is_hidden(
    run: Resolver, home: Path
) -> None:
    file_at(home / "srv" / "index.js", "console.log('here')")
    program = run("node", "srv/index.js")
    assert program.cwd == ""
    assert program.argv == (NODE, str(home / "srv" / "index.js"))
    assert works(program) == "here"


@needs_node
@pytest.mark.parametrize("place", [".", "Downloads", ".ssh", ".local/bin", ".config", "../other"])
def test_a_script_in_a_shared_directory_is_readable_alone(
    run: Resolver, home: Path, place: str
) -> None:
    if place == "../other":
        (home.parent / "other" / ".ssh").mkdir(parents=True)
    file_at(home / place / "package.json", "{}")
    script = Path(os.path.normpath(file_at(home / place / "index.js", "console.log('alone')")))
    program = run("node", script)
    assert program.reads == (str(script),)
    assert works(program) == "alone"


def test_arguments_after_the_script_are_not_granted(run: Resolver, home: Path) -> None:
    file_at(home / "srv" / "server.py")
    file_at(home / "data" / "x.db")
    program = run("python3", home / "srv" / "server.py", home / "data" / "x.db", home / "data")
    assert not any(is_inside(str(home / "data"), path) for path in program.reads)


def test_a_native_server_in_a_shared_bin_is_readable_alone(run: Resolver, home: Path) -> None:
    tool = program_at(home / ".local" / "bin" / "tool")
    file_at(home / ".local" / "lib" / "other" / "secret")
    assert run(tool).reads == (str(tool),)
    cargo = program_at(home / ".cargo" / "bin" / "tool")
    file_at(home / ".cargo" / "credentials.toml")
    assert run(cargo).reads == (str(cargo),)
    own = program_at(home / "apps" / "x" / "bin" / "tool")
    file_at(home / "apps" / "x" / "lib" / "libx.so")
    assert run(own).reads == (str(home / "apps" / "x"),)


@needs_node
def test_a_command_of_an_installed_npm_package_works(run: Resolver, home: Path) -> None:
    modules = home / "proj" / "node_modules"
    file_at(home / "proj" / "package.json", "{}")
    file_at(home / "proj" / "private.txt")
    file_at(modules / "dep" / "index.js", "module.exports = 'dep'")
    program_at(modules / "srv" / "cli.js", "#!/usr/bin/env node\nconsole.log(require('dep'))\n")
    run.path.insert(0, str(link(modules / ".bin" / "srv", "../srv/cli.js").parent))
    program = run("srv")
    assert program.argv == (NODE, str(modules / ".bin" / "srv"))
    assert program.reads == (str(modules),)
    assert works(program) == "dep"


@needs_node
def test_pnpm_links_and_its_shell_shim_are_followed(run: Resolver, home: Path) -> None:
    modules = home / "proj" / "node_modules"
    store = modules / ".pnpm"
    file_at(store / "dep@1" / "node_modules" / "dep" / "index.js", "module.exports = 'dep'")
    file_at(store / "srv@1" / "node_modules" / "srv" / "cli.js", "console.log(require('dep'))")
    link(store / "srv@1" / "node_modules" / "dep", "../../dep@1/node_modules/dep")
    link(modules / "srv", ".pnpm/srv@1/node_modules/srv")
    shim = textwrap.dedent(r"""
        #!/bin/sh
        basedir=$(dirname "$(echo "$0" | sed -e 's,\\,/,g')")
        if [ -x "$basedir/node" ]; then
          exec "$basedir/node"  "$basedir/../srv/cli.js" "$@"
        else
          exec node  "$basedir/../srv/cli.js" "$@"
        fi
        """).lstrip()
    program = run(program_at(modules / ".bin" / "srv", shim), "x")
    assert program.argv == (NODE, str(modules / "srv" / "cli.js"), "x")
    assert works(program) == "dep"
    assert program.reads == (str(modules),)


@needs_node
def test_a_workspace_finds_its_hoisted_and_linked_packages(run: Resolver, home: Path) -> None:
    root = home / "mono"
    file_at(root / "package.json", '{"workspaces": ["packages/*"]}')
    file_at(root / "node_modules" / "dep" / "index.js", "module.exports = 'dep'")
    file_at(root / "packages" / "shared" / "package.json", '{"main": "i.js"}')
    file_at(root / "packages" / "shared" / "i.js", "module.exports = 'shared'")
    link(root / "node_modules" / "@org" / "shared", "../../packages/shared")
    file_at(root / "packages" / "srv" / "package.json", "{}")
    script = file_at(
        root / "packages" / "srv" / "i.js", "console.log(require('dep'), require('@org/shared'))"
    )
    file_at(root / ".env", "SECRET=1")
    program = run("node", script)
    assert works(program) == "dep shared"
    assert not any(is_inside(str(root / ".env"), path) for path in program.reads)
    assert program.notes == ()


@needs_node
def test_packages_installed_directly_in_home_are_readable(run: Resolver, home: Path) -> None:
    file_at(home / "node_modules" / "dep" / "index.js", "module.exports = 'dep'")
    script = file_at(home / "srv" / "i.js", "console.log(require('dep'))")
    assert run("node", script).reads == (str(script.parent),)
    script = file_at(home / "i.js", "console.log(require('dep'))")
    assert works(run("node", script)) == "dep"


@needs_node
def test_links_planted_by_a_server_make_nothing_readable(run: Resolver, home: Path) -> None:
    file_at(home / "srv" / "package.json", "{}")
    letters = file_at(home / "Documents" / "letters" / "a.txt").parent
    script = file_at(home / "srv" / "i.js")
    link(home / "srv" / "sub" / "node_modules", letters)
    file_at(home / "srv" / "sub" / "i.js")
    link(home / "srv" / "node_modules" / "planted", letters)
    link(home / "srv" / "node_modules" / "keys", home / ".ssh")
    assert run("node", script).reads == (str(home / "srv"),)
    nested = run("node", home / "srv" / "sub" / "i.js")
    assert str(letters) not in nested.reads
    file_at(letters / "package.json", "{}")
    with pytest.raises(UnchosenReadsError, match="node_modules/planted leads to"):
        run("node", script)
    assert run("node", script, read=letters).reads == (str(home / "srv"),)


def test_a_module_in_the_callers_project_is_readable(run: Resolver, home: Path, venv: Path) -> None:
    file_at(home / "proj" / "pyproject.toml")
    file_at(home / "proj" / "pkg" / "__main__.py", "print('ran')")
    run.cwd = home / "proj"
    program = run(venv / "bin" / "python", "-m", "pkg")
    assert program.cwd == str(home / "proj")
    assert works(program) == "ran"
    assert str(home / "proj") not in run(venv / "bin" / "python", "-m", "json.tool").reads
    assert str(home / "proj") not in run(venv / "bin" / "python", "-I", "-m", "pkg").reads


def test_a_project_does_not_replace_an_installed_module(
    run: Resolver, home: Path, venv: Path
) -> None:
    """Check that `python -m pkg` runs the installed module, not a module with this name in the
    project. The project is not trusted, because a client starts servers in any project that the
    user opens.
    """
    file_at(home / "proj" / "pyproject.toml")
    file_at(home / "proj" / "pkg" / "__main__.py", "print('the project')")
    run.cwd = home / "proj"
    # Sanity check: if no module is installed, the project's module runs.
    assert str(home / "proj") in run(venv / "bin" / "python", "-m", "pkg").reads
    [site] = venv.glob("lib/python*/site-packages")
    file_at(site / "pkg" / "__main__.py", "print('installed')")
    program = run(venv / "bin" / "python", "-m", "pkg")
    assert str(home / "proj") not in program.reads
    assert f"{home}/proj/pkg is not readable, because" in " ".join(program.notes)
    assert works(program) == "installed"


def test_only_programs_of_homebrew_are_readable(run: Resolver, home: Path) -> None:
    """Check that Homebrew's programs, libraries and TLS certificates are readable. Services keep
    their data and passwords in `var` and in the rest of `etc`, so these must not be readable.
    """
    prefix = home / "brew"
    node = program_at(prefix / "Cellar" / "node" / "25" / "bin" / "node")
    for name in ("var/postgres/base", "etc/redis.conf", "etc/openssl@3/cert.pem", "lib/libx.so"):
        file_at(prefix / name)
    shortcut = link(prefix / "bin" / "node", node)
    reads = run(shortcut, file_at(home / "srv" / "s.js")).reads
    bound = {os.path.relpath(path, prefix) for path in reads if path.startswith(str(prefix))}
    assert bound == {"Cellar", "bin", "lib", "etc/openssl@3"}


@pytest.mark.parametrize(
    "directory", ["/", "/home", "/root", "/tmp", "/opt", "/var", "/etc", "/etc/x", "/proc/1", "/home/someone", "~",
                  "~/..", "~/.ssh", "~/.ssh/deep", "~/.local", "~/.config", "~/Downloads", "/run/user/1000", "/mnt/c"],
)  # fmt: skip
def test_some_directories_are_never_readable_as_a_whole(home: Path, directory: str) -> None:
    assert is_shared(os.path.normpath(directory.replace("~", str(home))), home_names(str(home)))


@pytest.mark.parametrize(
    "directory",
    [
        "/opt/x",
        "/opt/homebrew",
        "/home/linuxbrew/.linuxbrew",
        "/srv/x",
        "~/dev",
        "~/.local/share/x",
    ],
)
def test_directories_of_one_program_may_be_readable_as_a_whole(home: Path, directory: str) -> None:
    assert not is_shared(directory.replace("~", str(home)), home_names(str(home)))


def test_a_home_behind_a_link_counts_as_home(tmp_path: Path) -> None:
    (tmp_path / "data" / "user").mkdir(parents=True)
    linked = link(tmp_path / "home", tmp_path / "data" / "user")
    homes = home_names(str(linked))
    assert is_shared(str(tmp_path / "data" / "user"), homes)
    assert is_shared(str(tmp_path / "data"), homes)
    assert not is_shared(str(tmp_path / "data" / "other"), homes)


# --- arguments of runtimes


@pytest.mark.parametrize(
    ("kind", "words", "expected"),
    [
        ("python", ["s.py", "-m", "x"], Invocation(script=0)),
        ("python", ["-I", "-X", "dev", "-Wd", "-W", "error", "s.py"], Invocation(script=6, flags="I")),
        ("python", ["-uIX", "dev", "s.py"], Invocation(script=2, flags="uI")),
        ("python", ["--check-hash-based-pycs", "never", "s.py"], Invocation(script=2)),
        ("python", ["-c", "s.py", "t.py"], Invocation()),
        ("python", ["-um", "pkg", "t.py"], Invocation(module="pkg", flags="u")),
        ("python", ["-mpkg"], Invocation(module="pkg")),
        ("python", ["-m"], Invocation()),
        ("python", ["-"], Invocation()),
        ("python", [], Invocation()),
        ("node", ["s.js"], Invocation(script=0)),
        ("node", ["--require", "./a.js", "--import=b", "-r", "c", "s.js", "d"], Invocation(script=5)),
        ("node", ["--max-old-space-size=99", "--", "s.js"], Invocation(script=2)),
        ("node", ["-e", "code", "s.js"], Invocation()),
        ("node", ["--eval=code", "s.js"], Invocation()),
        ("deno", ["run", "-A", "--config", "d.json", "s.ts"], Invocation(script=4)),
        ("bun", ["s.ts"], Invocation(script=0)),
        ("java", ["-Xmx1g", "-jar", "s.jar"], Invocation(script=2)),
        ("java", ["-jar"], Invocation()),
        ("script", ["-c", "s.sh"], Invocation()),
        ("", ["s"], Invocation()),
    ],
)  # fmt: skip
def test_the_script_is_found_among_the_arguments(
    kind, words: list[str], expected: Invocation
) -> None:
    assert read_arguments(kind, words) == expected


# --- messages


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["npx", "-y", "@a/server@1.2.3", "--key", "k"], "`corral run npm:@a/server@1.2.3` "),
        (["npx", "--call", "x", "server"], "corral does not support its option --call"),
        (["npx", "--frobnicate"], "`corral run npm:NAME` "),
        (["uvx", "--frobnicate", "x"], "`corral run pypi:NAME` "),
        (["uvx", "--from", "server", "tool"], "`corral run 'pypi:server#tool'` "),
        (["uvx", "--with", "x; y", "server"], "`corral run --with 'x; y' pypi:server` "),
        (["uvx", "--with", "other", "server"], "`corral run --with other pypi:server` "),
        (["pipx", "run", "server"], "installs packages at startup"),
        (["uv", "--directory", "/x", "run", "server"], " /x/.venv/bin/server"),
        (["npm", "start"], "install the server first"),
        (["docker", "run", "image"], "daemon"),
    ],
)
def test_runners_are_refused_unless_processes_are_allowed(
    run: Resolver, home: Path, words: list[str], expected: str
) -> None:
    run.path.insert(0, str(program_at(home / "tools" / words[0]).parent))
    with pytest.raises(SandboxError) as refused:
        run(*words)
    assert expected in f"{refused.value.message} {refused.value.hint}"
    assert "--allow-subprocess" in str(refused.value.hint)
    assert expected in " ".join(run(*words, subprocess=True).notes)


@pytest.mark.parametrize("words", [["uv", "--version"], ["pipx", "list"], ["npm", "view", "y"]])
def test_a_program_named_like_a_runner_is_a_command(
    run: Resolver, home: Path, words: list[str]
) -> None:
    run.path.insert(0, str(program_at(home / "tools" / words[0]).parent))
    assert not run(*words).notes


def test_explain_notes_a_shell_script_only_if_it_may_start_no_programs(
    run: Resolver, home: Path
) -> None:
    script = program_at(home / "srv" / "start", "#!/bin/sh\nexec x\n")
    assert run(script).notes
    assert not run(script, subprocess=True).notes


def test_the_description_of_a_program_names_all_files_that_it_may_read(
    run: Resolver, home: Path, venv: Path
) -> None:
    shortcut = link(home / "shortcut", venv / "bin" / "python")
    program = run(shortcut, file_at(home / "srv" / "s.py"))
    text = program.describe()
    for item in (*program.reads, *program.argv, *(path for path, _ in program.links), program.real):
        assert item in text
    assert len(program.why) == len(program.reads)


PROBE = """
import os, sys
before = set(sys.modules)
from corral.programs.resolve import resolve
heavy = {"typing", "dataclasses", "enum", "re", "json", "tomllib", "socket", "subprocess", "signal", "pathlib",
         "shutil", "contextlib", "argparse", "difflib", "hashlib", "ast"}
started = []
sys.addaudithook(lambda event, _: started.append(event) if event.startswith(
    ("subprocess", "os.fork", "os.exec", "os.spawn", "os.posix_spawn", "os.system")) else None)
program = resolve(sys.argv[1:], environment=os.environ, cwd="/", home=os.environ["HOME"], subprocess=False)
print(sorted(heavy & set(sys.modules) - before), started, program.path)
"""


def test_resolving_imports_no_slow_module_and_starts_no_process(home: Path) -> None:
    root = home / ".pyenv"
    shim = program_at(root / "shims" / "tool", SHIM % (root, root))
    tool = program_at(root / "versions" / "3.12.1" / "bin" / "tool")
    command = [sys.executable, "-S", "-c", PROBE, str(shim)]
    source = str(Path(__file__).parents[3] / "src")
    environment = {"PATH": "/usr/bin:/bin", "PYENV_VERSION": "3.12", "PYTHONPATH": source}
    environment["HOME"] = str(home)
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"[] [] {tool}"
