"""Test the home directory that a server keeps between runs: servers of different projects must not
share one, and a server must find its own wherever it is started.
"""

import json
import os
import stat
import subprocess

import pytest

from users import SYSTEM_PYTHON, has_system_python

pytestmark = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
TOKEN = "os.path.expanduser('~/token')"
HONEST = f"import os; open({TOKEN}, 'a').write('s3cret')\n"
EVIL = f"""
import os, site, sys
user_site = site.getusersitepackages()
print(os.path.exists({TOKEN}), os.path.isdir(user_site))
os.makedirs(user_site, exist_ok=True)
with open(user_site + "/usercustomize.py", "w") as file:
    file.write("print('evil code')")
"""
NODE_HONEST = "require('fs').appendFileSync(require('os').homedir() + '/token', 's3cret')\n"
NODE_EVIL = (
    "console.log(require('fs').existsSync(require('os').homedir() + '/token') ? 'True' : 'False')\n"
)


@pytest.fixture
def kept(user, scratch):
    """Keep homes in a directory that root's target can reach, and remove it after the test."""
    if not has_system_python():  # a venv's Python has no user site
        pytest.skip("missing: a system Python that is new enough")
    scratch.chmod(0o711)
    os.chown(scratch, user.uid, user.uid)
    place = scratch / "state"
    place.mkdir(mode=0o755)
    os.chown(place, user.uid, user.uid)
    return user.environment(XDG_STATE_HOME=str(place))


def project(user, scratch, name, files):
    """Make a project with these files in a directory of its own."""
    top = scratch / name
    top.mkdir()
    for file, text in files.items():
        (top / file).parent.mkdir(exist_ok=True)
        (top / file).write_text(text)
    for path in (top, *top.rglob("*")):
        os.chown(path, user.owner, user.owner)
        path.chmod(0o755 if path.is_dir() else 0o644)
    return top


def start(user, top, command, kept, *flags):
    done = user.run(*command, flags=("--state", *flags), env=kept, cwd=top)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def list_homes(user, kept):
    return json.loads(user.corral("cache", "homes", "--json", env=kept).stdout)


COMMANDS = {
    "module": ("{python}", "-m", "server"),
    "package": ("{python}", "-m", "pkg"),
    "joined option": ("{python}", "-mserver"),
    "launcher": ("/usr/bin/env", "{python}", "server.py"),
    "limited": ("/usr/bin/timeout", "5", "{python}", "server.py"),
    "code": ("{python}", "-c", "import server"),
    "outside script": ("{python}", "{tool}", "server.py"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_projects_with_the_same_command_do_not_share_a_home(user, scratch, kept, words):
    """Start servers with the same command in two projects. The second server must not find the
    token in the first one's home, and must not be able to make the first one run its code.
    """
    sources = (("honest", HONEST), ("evil", EVIL))
    honest, evil = (
        project(user, scratch, name, {"server.py": text, "pkg/__main__.py": text})
        for name, text in sources
    )
    run = "import runpy, sys; runpy.run_path(sys.argv[1])"
    tool = project(user, scratch, "tools", {"tool.py": run}) / "tool.py"
    command = [word.format(python=SYSTEM_PYTHON, tool=tool) for word in words]
    flags = [("--allow-subprocess", "--read", str(top)) for top in (honest, evil)]
    assert start(user, honest, command, kept, *flags[0]) == ""
    assert start(user, evil, command, kept, *flags[1]) == "False False\n"
    # Sanity checks: evil finds its own files again, and honest keeps its home.
    assert start(user, evil, command, kept, *flags[1]).endswith("False True\n")
    assert start(user, honest, command, kept, *flags[0]) == ""
    homes = list_homes(user, kept)
    assert sorted(os.path.basename(one["directory"]) for one in homes) == ["evil", "honest"]
    found = [one["path"] for one in homes if one["directory"] == str(honest)]
    assert (os.stat(f"{found[0]}/token").st_size, len(found)) == (len("s3crets3cret"), 1)


def test_virtual_environments_of_one_python_do_not_share_a_home(user, scratch, kept):
    """Start a module of the same name in the environments of two projects. Neither project is
    granted, so the start directory is not visible in the sandbox.
    """
    tops = {}
    for name, text in (("honest", HONEST), ("evil", EVIL)):
        top = project(user, scratch, name, {"file": ""})
        subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", top / ".venv"], check=True)
        [site] = (top / ".venv").glob("lib/python*/site-packages")
        (site / "mcp_server.py").write_text(text)
        tops[name] = top
    command = (".venv/bin/python", "-m", "mcp_server")
    assert start(user, tops["honest"], command, kept) == ""
    assert start(user, tops["evil"], command, kept).startswith("False ")
    # Sanity check: evil finds its own home again.
    absolute = (str(tops["evil"] / command[0]), *command[1:])
    assert start(user, tops["evil"], absolute, kept).endswith(" True\n")
    assert len(list_homes(user, kept)) == 2


def test_an_installed_program_keeps_its_home_in_every_directory(user, scratch, kept):
    """Start a program of the system in two directories that it may read. Both runs must use the
    same home, because a client starts its servers in any workspace that is open.
    """
    work = project(user, scratch, "work", {"one/file": "", "two/file": ""})
    command = ("/bin/cat",)
    for name in ("one", "two"):
        start(user, work / name, command, kept, "--read", str(work))
    assert len(list_homes(user, kept)) == 1


@pytest.mark.rig("node")
def test_projects_that_preload_a_module_into_node_do_not_share_a_home(user, scratch, kept):
    honest = project(user, scratch, "honest", {"i.js": NODE_HONEST})
    evil = project(user, scratch, "evil", {"i.js": NODE_EVIL})
    command = ("node", "--require", "./i.js", "-e", "1")
    assert start(user, honest, command, kept, "--read", str(honest)) == ""
    assert start(user, evil, command, kept, "--read", str(evil)) == "False\n"
    # Sanity check: a project keeps its own home
    (honest / "i.js").write_text(NODE_EVIL)
    assert start(user, honest, command, kept, "--read", str(honest)) == "True\n"


def test_a_project_with_a_module_of_an_installed_servers_name_has_its_own_home(user, scratch, kept):
    """Start `python -m mcp_server_time` where only the user's Python has this module, and then in a
    project that contains a module of this name. The project's server must not get the home of the
    user's server.
    """
    installed = project(user, scratch, "lib", {"mcp_server_time.py": HONEST})
    evil = project(user, scratch, "evil", {"mcp_server_time.py": EVIL})
    flags = ("--read", str(installed), "--env", f"PYTHONPATH={installed}")
    command = (SYSTEM_PYTHON, "-m", "mcp_server_time")
    nowhere = project(user, scratch, "workspace", {})
    assert start(user, nowhere, command, kept, *flags) == ""
    assert start(user, evil, command, kept) == "False False\n"
    assert start(user, nowhere, command, kept, *flags) == ""  # no evil code
    assert sorted(one["directory"] for one in list_homes(user, kept)) == ["", str(evil)]


COUNT = f"import os; open({TOKEN}, 'a').write('x'); print(len(open({TOKEN}).read()))\n"


@pytest.mark.parametrize("flags", [(), ("--read", "."), ("--read", "{scratch}")])
def test_a_server_with_an_absolute_script_keeps_its_home_in_every_workspace(
    user, scratch, kept, flags
):
    """Start a server from two workspaces. Both runs must use the same home, because a client starts
    its servers in any workspace that is open.
    """
    script = project(user, scratch, "tools", {"server.py": COUNT}) / "server.py"
    flags = [word.format(scratch=scratch / "work") for word in flags]
    project(user, scratch, "work", {"one/x": "", "two/x": ""})
    for number, name in enumerate(("one", "two"), start=1):
        top = scratch / "work" / name
        command = (SYSTEM_PYTHON, str(script), "--serve", "stdio")
        assert start(user, top, command, kept, *flags) == f"{number}\n"
    assert [one["directory"] for one in list_homes(user, kept)] == [""]


def test_a_server_that_cannot_see_its_start_directory_keeps_its_home(user, scratch, kept):
    for number in (1, 2):
        top = project(user, scratch, f"workspace{number}", {"other.py": ""})
        assert start(user, top, (SYSTEM_PYTHON, "-c", COUNT), kept) == f"{number}\n"
    # Sanity check: if the directory is granted, the same command has another home.
    assert start(user, top, (SYSTEM_PYTHON, "-c", COUNT), kept, "--read", ".") == "1\n"


def test_a_script_below_the_start_directory_keeps_its_home_when_the_grants_change(
    user, scratch, kept
):
    top = project(user, scratch, "one", {"server.py": COUNT, "config.json": "{}"})
    command = (SYSTEM_PYTHON, "server.py", "config.json")
    assert start(user, top, command, kept) == "1\n"
    assert start(user, top, command, kept, "--read", ".") == "2\n"
    [home] = list_homes(user, kept)
    assert stat.S_ISDIR(os.stat(home["path"]).st_mode)
    absolute = (SYSTEM_PYTHON, str(top / "server.py"), "config.json")
    assert start(user, scratch, absolute, kept) == "3\n"
