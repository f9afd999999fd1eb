"""Run servers in the directory layouts that package managers create. Each server must either
run, or be refused with a hint whose flags make it run.
"""

from __future__ import annotations

import os
import shlex
import shutil

import pytest

NODE = "/usr/bin/node"
PYTHON = os.path.realpath("/usr/bin/python3")
VERSION = os.path.basename(PYTHON)
pytestmark = pytest.mark.rig("node")


class Layout:
    """A user's home directory in which a test creates files and runs commands."""

    def __init__(self, user, home):
        self.user, self.home = user, home
        self.env = user.environment(HOME=str(home), PATH=f"{home}/.local/bin:/usr/bin:/bin")

    def file(self, path, text="", mode=0o644):
        place = self.home / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)
        return str(place)

    def link(self, path, target):
        place = self.home / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def package(self, path, text):
        self.file(f"{path}/package.json", '{"main": "index.js"}')
        self.file(f"{path}/index.js", text)

    def venv(self, path):
        text = f"home = {os.path.dirname(PYTHON)}\ninclude-system-site-packages = false\n"
        self.file(f"{path}/pyvenv.cfg", text)
        self.link(f"{path}/bin/python", PYTHON)
        site = f"{path}/lib/{VERSION}/site-packages"
        self.file(f"{site}/installed.py")
        return site

    def run(self, *command, flags=()):
        for directory, _, names in os.walk(self.home):
            for path in (directory, *(f"{directory}/{name}" for name in names)):
                os.chown(path, self.user.owner, self.user.owner, follow_symlinks=False)
        return self.user.run(*command, flags=flags, env=self.env, cwd=self.home)

    def runs(self, *command, flags=()):
        done = self.run(*command, flags=flags)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def runs_when_typed(self, *command):
        """Check that the command is refused, and run it again with the flags from the hint. Return
        these flags and the command's output.
        """
        done = self.run(*command)
        assert (done.returncode, done.stdout) == (125, b""), done.stderr.decode()
        words = shlex.split(done.stderr.decode().splitlines()[-1])
        flags = tuple(words[words.index("--read") :])
        return flags, self.runs(*command, flags=flags)


@pytest.fixture
def layout(user, scratch):
    home = scratch / "home"
    home.mkdir()
    return Layout(user, home)


@pytest.mark.parametrize("tool", ["npm", "pnpm", "git"])
def test_a_server_with_packages_in_the_node_modules_of_its_workspace_runs(layout, tool):
    layout.file("mono/package.json", '{"workspaces": ["packages/*"]}' if tool == "npm" else "{}")
    if tool == "pnpm":
        layout.file("mono/pnpm-workspace.yaml", "packages:\n  # all\n  - 'packages/*'\n")
    if tool == "git":
        layout.file("mono/.git/HEAD")
    layout.package("mono/node_modules/dep", "module.exports = 'dep'")
    layout.package("mono/packages/shared", "module.exports = 'shared'")
    layout.link("mono/node_modules/@org/shared", "../../packages/shared")
    code = "console.log(require('dep'), require('@org/shared'))"
    layout.package("mono/packages/server", code)
    server = str(layout.home / "mono/packages/server/index.js")
    assert layout.runs(NODE, server) == "dep shared"


def test_a_server_that_its_workspace_does_not_list_runs_after_the_hint_is_followed(layout):
    layout.file("mono/package.json", '{"workspaces": ["packages/*", "!packages/server"]}')
    layout.package("mono/node_modules/dep", "module.exports = 'dep'")
    layout.package("mono/packages/server", "console.log(require('dep'))")
    server = str(layout.home / "mono/packages/server/index.js")
    done = layout.run(NODE, server)
    assert (done.returncode, b"Cannot find module 'dep'" in done.stderr) == (1, True)
    hint = f"--read {layout.home}/mono/node_modules"
    assert hint in done.stderr.decode()
    assert layout.runs(NODE, server, flags=tuple(hint.split())) == "dep"


def test_a_server_with_packages_in_its_projects_pnpm_store_runs(layout):
    store = "proj/node_modules/.pnpm"
    layout.package(f"{store}/b@1/node_modules/b", "module.exports = 'b'")
    layout.package(f"{store}/a@1/node_modules/a", "module.exports = 'a' + require('b')")
    layout.link(f"{store}/a@1/node_modules/b", "../../b@1/node_modules/b")
    layout.link("proj/node_modules/a", ".pnpm/a@1/node_modules/a")
    layout.package("proj", "console.log(require('a'))")
    assert layout.runs(NODE, str(layout.home / "proj/index.js")) == "ab"


@pytest.mark.parametrize("count", [2, 6])
def test_a_server_with_packages_in_pnpms_global_store_runs_after_the_hint_is_followed(
    layout, count
):
    """Run a server whose packages are in pnpm's global store. There each package has its own
    directory, which contains symlinks to its dependencies. The server must run with the flags in
    corral's hint.
    """
    links = ".local/share/pnpm/store/v10/links/@"
    for number in range(count):
        inner = f"{links}/p{number}/1.0.0/hash/node_modules"
        after = f" + require('p{number + 1}')" if number + 1 < count else ""
        layout.package(f"{inner}/p{number}", f"module.exports = '{number}'{after}")
        if after:
            name = f"p{number + 1}"
            layout.link(
                f"{inner}/{name}", layout.home / f"{links}/{name}/1.0.0/hash/node_modules/{name}"
            )
    layout.link("proj/node_modules/p0", layout.home / f"{links}/p0/1.0.0/hash/node_modules/p0")
    layout.package("proj", "console.log(require('p0'))")
    flags, said = layout.runs_when_typed(NODE, str(layout.home / "proj/index.js"))
    assert said == "".join(map(str, range(count)))
    assert len(flags) == (4 if count == 2 else 2)


def test_a_server_in_a_uv_workspace_runs(layout):
    layout.file("ws/pyproject.toml", '[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    site = layout.venv("ws/.venv")
    for name in ("one", "two"):
        layout.file(f"ws/packages/{name}/pyproject.toml", "[project]\n")
        layout.file(f"ws/packages/{name}/src/{name}.py", f"name = '{name}'\n")
        layout.file(f"{site}/_{name}.pth", f"{layout.home}/ws/packages/{name}/src\n")
    python = str(layout.home / "ws/.venv/bin/python")
    assert layout.runs(python, "-c", "import one, two; print(one.name, two.name)") == "one two"
    code = "import one, two; print(one.name, two.name)"
    script = layout.file("ws/packages/one/main.py", code)
    assert layout.runs(python, script) == "one two"


def test_an_editable_uv_tool_runs_after_the_hint_is_followed(layout):
    layout.file("src/tool/pyproject.toml", "[project]\n")
    layout.file("src/tool/src/tool.py", "name = 'tool'\n")
    site = layout.venv(".local/share/uv/tools/tool")
    layout.file(f"{site}/_tool.pth", f"{layout.home}/src/tool/src\n")
    own = layout.home / ".local/share/uv/tools/tool/bin"
    layout.file(own / "tool", f"#!{own}/python\nimport tool; print(tool.name)\n", 0o755)
    layout.link(".local/bin/tool", own / "tool")
    for typed in ("tool", str(layout.home / ".local/bin/tool")):
        flags, said = layout.runs_when_typed(typed)
        assert (flags, said) == (("--read", f"{layout.home}/src/tool/src"), "tool")


def test_a_server_in_a_poetry_environment_in_the_cache_runs_after_the_hint_is_followed(layout):
    layout.file("src/app/pyproject.toml", "[project]\n")
    layout.file("src/app/app/__init__.py")
    layout.file("src/app/app/__main__.py", "print('app')")
    venv = ".cache/pypoetry/virtualenvs/app-x1-py3"
    site = layout.venv(venv)
    layout.file(f"{site}/app.pth", f"{layout.home}/src/app\n")
    python = str(layout.home / venv / "bin/python")
    assert layout.runs_when_typed(python, "-m", "app")[1] == "app"
    script = layout.file("src/app/main.py", "import app; print('script')")
    assert layout.runs(python, script) == "script"  # the script needs no flags


def test_a_server_in_a_conda_environment_runs(layout):
    prefix = layout.home / "miniconda3/envs/x"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy(PYTHON, prefix / f"bin/{VERSION}")
    layout.link("miniconda3/envs/x/bin/python", VERSION)
    layout.link(f"miniconda3/envs/x/lib/{VERSION}", f"/usr/lib/{VERSION}")
    script = layout.file("server.py", "import json, sys; print(sys.prefix)")
    assert layout.runs(str(prefix / "bin/python"), script) == str(prefix)


def test_a_server_in_a_git_worktree_runs(layout):
    layout.file("main/.git/worktrees/wt/HEAD")
    layout.package("main/node_modules/dep", "module.exports = 'dep'")
    layout.file("wt/.git", f"gitdir: {layout.home}/main/.git/worktrees/wt\n")
    layout.package("wt", "console.log('alone')")
    server = str(layout.home / "wt/index.js")
    assert layout.runs(NODE, server) == "alone"
    layout.link("wt/node_modules", "../main/node_modules")
    layout.package("wt", "console.log(require('dep'))")
    flags, said = layout.runs_when_typed(NODE, server)
    assert (flags, said) == (("--read", f"{layout.home}/main/node_modules"), "dep")


def test_a_server_in_a_git_submodule_runs(layout):
    layout.file("parent/.git/modules/sub/HEAD")
    layout.package("parent", "")
    layout.file("parent/sub/.git", "gitdir: ../.git/modules/sub\n")
    layout.package("parent/sub/node_modules/dep", "module.exports = 'dep'")
    layout.package("parent/sub", "console.log(require('dep'))")
    server = str(layout.home / "parent/sub/index.js")
    assert layout.runs(NODE, server) == "dep"
    layout.package("parent/lib", "module.exports = 'lib'")
    layout.link("parent/sub/node_modules/lib", "../../lib")
    layout.package("parent/sub", "console.log(require('lib'))")
    assert layout.runs_when_typed(NODE, server)[1] == "lib"
