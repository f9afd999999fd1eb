"""Attack corral as the author of a server could: through packages, registries, bundles and
configurations.
"""

from __future__ import annotations

import io
import json
import os
import pathlib
import subprocess
import tarfile

import pytest
from test_bundles import manifest, packed, put, start
from test_packages import ONE_USER, REFUSED, entries, on_terminal, publish, said

from corral.cli import what_to_run
from corral.cli.option_parser import Options
from corral.errors import UnchosenReadsError
from corral.supervisor.prepare import prepare
from registries import Registries, wheel

STRANGER = 65532
LOOK = """
import json, os, sys

def main():
    def seen(path):
        try:
            return open(path).read()
        except OSError as error:
            return error.strerror
    print(json.dumps([seen(path) for path in sys.argv[1:]]))
"""


def own(user, path: pathlib.Path, text: str, mode: int = 0o644) -> pathlib.Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path.parent, user.uid, user.uid)
    os.chown(path, user.uid, user.uid)
    return path


@pytest.fixture
def project(user, scratch) -> pathlib.Path:
    """Create a project of the user, to which an editable install can refer."""
    own(user, scratch / "project" / "pyproject.toml", "[project]\n")
    return own(user, scratch / "project" / "notes.txt", "mine").parent


@ONE_USER
def test_a_wheel_cannot_open_the_users_project(user, env, registry, tools, project):
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    notes = str(project / "notes.txt")
    for name, line in (("evil", str(project)), ("good", "./other")):
        files = {f"{name}.py": LOOK, f"{name}.pth": f"{line}\n"}
        registry.publish_wheel(name, "1.0", files, {name: f"{name}:main"})
    refused = user.corral("run", "pypi:evil==1.0", notes, env=env)
    assert refused.returncode == REFUSED
    assert f"evil.pth leads to {project}" in refused.stderr.decode()
    assert refused.stderr.decode().endswith(f"--read {project}\n")
    allowed = user.corral("run", "--read", str(project), "pypi:evil==1.0", notes, env=env)
    assert said(allowed) == ["mine"]
    assert said(user.corral("run", "pypi:good==1.0", notes, env=env)) != ["mine"]
    # Sanity check: with a grant for the project, the file can be read.
    granted = user.corral("run", "--read", str(project), "pypi:good==1.0", notes, env=env)
    assert said(granted) == ["mine"]


@ONE_USER
def test_a_wheel_cannot_replace_the_interpreter(user, env, registry, tools):
    """Put a script and a file with names such as `../../bin/python` into wheels. Installing the
    wheels must not replace the interpreter.
    """
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    climbing = "../" * 4 + "bin/python"
    cases = {
        "one": wheel("one", "1.0", {"one.py": LOOK}, {"one": "one:main", climbing: "one:main"}),
        "two": wheel("two", "1.0", {"two.py": LOOK, climbing: "#!/bin/sh\n"}, {"two": "two:main"}),
    }
    for name, content in cases.items():
        registry.publish_file(name, f"{name}-1.0-py3-none-any.whl", content)
        done = user.corral("run", f"pypi:{name}==1.0#{name}", env=env)
        assert done.returncode == REFUSED or said(done) == []
        assert b"Traceback" not in done.stderr
    for row in entries(user, env):
        link = pathlib.Path(row["path"], "bin", "python")
        assert (link.is_symlink(), os.listdir(link.parent)) == (True, ["python"])


@ONE_USER
def test_a_package_cannot_start_the_users_program(user, env, registry, npm, project):
    tool = own(user, project / "tool", "#!/bin/sh\necho mine\n", 0o755)
    for name, line in (("evil", tool), ("good", "/bin/sh")):
        files = {"main": f"#!{line}\necho own\n"}
        registry.publish_npm(name, "1.0.0", files, bin={name: "main"})
    refused = user.corral("run", "npm:evil@1.0.0", env=env)
    assert refused.returncode == REFUSED
    assert f"main leads to {project}" in refused.stderr.decode()
    done = user.corral("run", "npm:good@1.0.0", env=env)
    assert (done.returncode, done.stdout) == (0, b"own\n")


@ONE_USER
def test_a_setting_that_had_no_effect_on_an_installation_causes_no_new_one(
    user, env, registry, npm, scratch
):
    """Install with a setting that makes no difference to this package. A later start without the
    setting must use this installation.
    """
    archive = publish(registry)
    settings = scratch / ".npmrc"
    # Sanity check: a setting that could make a difference leads to a new installation.
    for scope, fetched in (("@acme", 1), ("", 1), ("@other", 2)):
        text = f"{scope}:registry=http://127.0.0.1:9/\n" if scope else ""
        own(user, settings, text)
        assert said(user.corral("run", "npm:server@1.0.0", env=env))["version"] == "1.0.0"
        assert registry.asked.count(archive) == fetched


@ONE_USER
def test_packages_of_another_index_are_not_shared(user, env, registry, tools):
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    body = "def main():\n    import dep\n    print(dep.name)\n"
    other = Registries()
    try:
        for one, name in ((registry, "main"), (other, "other")):
            one.publish_wheel("dep", "1.0.0", {"dep.py": f"name = '{name}'"}, {})
        registry.publish_wheel("thing", "1.0.0", {"thing.py": body}, {"thing": "thing:main"})
        more = {**env, "UV_INDEX": f"{other.url}/simple"}
        words = ("run", "--with", "dep", "pypi:thing")
        assert user.corral(*words, env=more).stdout == b"other\n"
        assert user.corral(*words, env=env).stdout == b"main\n"
        # Sanity check: if the other index has no `dep`, both starts use the same installation.
        del other.files["/simple/dep/"]
        assert user.corral("cache", "rm", "thing", env=env).returncode == 0
        assert user.corral(*words, env=more).stdout == b"main\n"
        asked = len(registry.asked)
        assert user.corral(*words, env=env).stdout == b"main\n"
        assert len(registry.asked) == asked
    finally:
        other.close()


FORGES = """
import glob, os, zipfile
def get_requires_for_build_wheel(settings=None): return []
def build_wheel(place, settings=None, metadata=None):
    staging = os.environ["UV_CACHE_DIR"].removesuffix(".downloads")
    for lock in glob.glob(staging + "/*.lock"):
        with open(lock) as file: text = file.read()
        with open(lock, "w") as file: file.write(text.replace("{theirs}", "{ours}"))
    name = "thing-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(place, name), "w") as wheel:
        wheel.writestr("thing.py", "def main(): print('theirs')")
        info = "thing-1.0.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\nthing = thing:main\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
BACKEND = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@ONE_USER
def test_a_script_cannot_claim_to_come_from_another_index(user, env, registry, tools):
    """Let a package's build script forge the lock file, so that the package seems to come from the
    user's own index. A start with that index must not use this installation.
    """
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    other = Registries()
    try:
        backend = FORGES.replace("{theirs}", other.url).replace("{ours}", registry.url)
        files = {
            "pyproject.toml": f'{BACKEND}[project]\nname = "thing"\nversion = "1.0.0"\n',
            "backend.py": backend,
            "PKG-INFO": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0.0\n",
        }
        other.publish_file("thing", "thing-1.0.0.tar.gz", archive("thing-1.0.0", files))
        body = {"thing.py": "def main(): print('ours')"}
        registry.publish_wheel("thing", "1.0.0", body, {"thing": "thing:main"})
        words = ("run", "--allow-install-scripts", "pypi:thing")
        theirs = user.corral(*words, env={**env, "UV_DEFAULT_INDEX": f"{other.url}/simple"})
        assert theirs.stdout == b"theirs\n", theirs.stderr.decode()
        (row,) = entries(user, env)
        lock = next(pathlib.Path(row["path"]).glob("*.lock")).read_text()
        assert registry.url in lock  # Sanity check: the lock file is forged
        assert other.url not in lock
        assert user.corral(*words, env=env).stdout == b"ours\n"
    finally:
        other.close()


def archive(top: str, files: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


@ONE_USER
def test_packages_of_another_registry_are_not_shared(user, env, registry, npm):
    """Install a package while an environment variable names another registry, as with `env` in a
    project's configuration. A start with the user's own registry must not use this installation.
    """
    other = Registries()
    try:
        for place, text in ((other, "theirs"), (registry, "ours")):
            files = {"main.js": f"console.log(JSON.stringify('{text}'))"}
            place.publish_npm("server", "1.0.0", files, bin={"server": "main.js"})
        theirs = {**env, "npm_config_registry": f"{other.url}/"}
        assert said(user.corral("run", "npm:server@1.0.0", env=theirs)) == "theirs"
        assert said(user.corral("run", "npm:server@1.0.0", env=env)) == "ours"
        asked = len(other.asked)
        assert said(user.corral("run", "npm:server@1.0.0", env=theirs)) == "theirs"
        assert len(other.asked) == asked
        assert user.corral("cache", "rm", "npm:server@1.0.0", env=env).returncode == 0
        assert entries(user, env) == []
    finally:
        other.close()


def test_a_cache_of_another_user_is_not_used(user, env, scratch):
    """Give the store to another user, or let everyone write to it. corral must refuse the store,
    because another user may have written its files.

    This happens when `sudo` keeps the HOME of an ordinary user.
    """
    path = put(user, scratch, manifest())
    # Sanity check: the user's own store works.
    assert user.corral("run", path, env=env).returncode == 0
    store = pathlib.Path(env["XDG_CACHE_HOME"], "corral", "store")
    reason = f"belongs to user {STRANGER}" if user.uid == 0 else "only you can write to"
    for place in (store, store / "trees", store / "entries"):
        if user.uid == 0:
            os.chown(place, STRANGER, STRANGER)
        else:
            place.chmod(0o777)
        done = user.corral("run", path, env=env)
        assert (done.returncode, reason in done.stderr.decode()) == (REFUSED, True)
        os.chown(place, user.uid, user.uid)
        place.chmod(0o700)
    assert user.corral("run", path, env=env).returncode == 0


@ONE_USER
def test_a_bundle_does_not_get_another_bundles_values(user, env, scratch):
    """Run a bundle that has the name of another bundle. corral stores the user's values under the
    name, and any bundle can choose it. Without an approval, the second bundle must not get the
    values.
    """
    notes = own(user, scratch / "notes" / "a.txt", "mine").parent
    kept = own(
        user,
        pathlib.Path(env["XDG_CONFIG_HOME"], "corral", "bundles.toml"),
        f'[hello]\nkey = "hunter2"\ndir = "{notes}"\n',
        0o600,
    )
    settings = {"key": {"type": "string"}, "dir": {"type": "directory"}}
    words = ["${user_config.key}", "${user_config.dir}"]
    honest = put(user, scratch, manifest(server=start(words), user_config=settings))
    evil = scratch / "evil.mcpb"
    evil.write_bytes(packed(manifest(server=start([*words, "x"]), user_config=settings)))
    os.chown(evil, user.uid, user.uid)
    shown = user.corral("approve", "--json", honest, env=env)
    assert "get your value of key in bundles.toml" in json.loads(shown.stdout)["asks"]
    assert user.corral("approve", "--yes", honest, env=env).returncode == 0
    assert said(user.corral("run", honest, env=env))["args"] == ["hunter2", str(notes)]
    refused = user.corral("run", str(evil), env=env)
    assert refused.returncode == REFUSED
    assert b"get your value of key" in refused.stderr
    assert b"hunter2" not in refused.stderr
    # Values that the user types as flags need no approval.
    flags = ("--config", "key=typed", "--config", f"dir={notes}")
    assert said(user.corral("run", *flags, str(evil), env=env))["args"][0] == "typed"
    kept.unlink()


@ONE_USER
def test_a_bundle_cannot_start_the_users_virtual_environment(user, env, scratch, project):
    """Start the Python of the user's virtual environment from a bundle. corral must refuse it,
    because the target could read all projects that are installed in that environment.
    """
    venv = scratch / "venv"
    code = f"import venv; venv.create({str(venv)!r}, with_pip=False)"
    with user.popen([user.python, "-c", code], env=env, stdin=subprocess.DEVNULL) as making:
        assert making.wait(60) == 0
    (site,) = venv.glob("lib/python*/site-packages")
    own(user, site / "mine.pth", f"{project}\n")
    server = start([str(project / "notes.txt")])
    server["mcp_config"]["command"] = str(venv / "bin" / "python3")
    done = user.corral("run", put(user, scratch, manifest(server=server)), env=env)
    assert done.returncode == REFUSED
    assert f"leads to {venv} and 1 more" in done.stderr.decode()
    # Sanity check: the same Python starts if the user types the command and grants the project.
    reader = "print(open(__import__('sys').argv[1]).read())"
    argv = (str(venv / "bin" / "python3"), "-c", reader, str(project / "notes.txt"))
    assert user.run(*argv, env=env).returncode == REFUSED
    assert user.run(*argv, env=env, flags=("--read", str(project))).stdout == b"mine\n"


@ONE_USER
def test_a_script_of_a_bundle_cannot_name_an_interpreter_outside_by_a_relative_path(
    user, env, scratch, project
):
    """Start a script with the `/bin/sh` lines that pip writes for an interpreter with a long path.
    The path contains `../` and leads out of the store to the user's virtual environment. corral
    must refuse the script.
    """
    venv = project / ".venv"
    code = f"import venv; venv.create({str(venv)!r}, with_pip=False)"
    with user.popen([user.python, "-c", code], env=env, stdin=subprocess.DEVNULL) as making:
        assert making.wait(60) == 0
    (site,) = venv.glob("lib/python*/site-packages")
    own(user, site / "mine.pth", f"{project}\n")
    up = "../" * 30 + str(venv).lstrip("/")
    line = (
        f"""'''exec' "$(dirname -- "$(realpath -- "$0")")"/'{up}/bin/python3' "$0" "$@"\n' '''\n"""
    )
    text = f"#!/bin/sh\n{line}print(open({str(project / 'notes.txt')!r}).read())\n"
    server = {
        "type": "binary",
        "entry_point": "server/run",
        "mcp_config": {"command": "${__dirname}/server/run", "args": []},
    }
    path = put(user, scratch, manifest(server=server), {"server/run": text})
    refused = user.corral("run", path, env=env)
    assert (refused.returncode, refused.stdout) == (REFUSED, b""), refused.stderr
    assert f"leads to {venv}" in refused.stderr.decode()
    words = refused.stderr.decode().splitlines()[-1].split()
    allowed = user.corral("run", *words[words.index("--read") :], path, env=env)
    assert allowed.stdout == b"mine\n", allowed.stderr


STEERING = {
    "PYTHONPATH": "./evil",
    "PYTHONWARNINGS": "all:0:antigravity.x:0:0",
    "LD_PRELOAD": "./evil.so",
    "XDG_CONFIG_HOME": "./config",
    "HOME": "./home",
    "CORRAL_REGISTRY": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://127.0.0.1:1",
    "NODE_EXTRA_CA_CERTS": "/home/me/.ssh",
    "RES_OPTIONS": "ndots:15",
    "LOCALDOMAIN": "evil.example",
    "SSLKEYLOGFILE": "/home/me/.bashrc",
    "MAMBA_ROOT_PREFIX": "/",
}


@ONE_USER
@pytest.mark.parametrize("name", ["MAMBA_ROOT_PREFIX", "PATH"])
def test_a_projects_configuration_cannot_open_files_behind_its_links(user, env, scratch, name):
    """Let a project's configuration set PATH or a version manager's variable to a directory of the
    project. corral must refuse this. Otherwise it would trust the symlinks in this directory, and
    let the server read the files to which they lead.
    """
    key = own(user, scratch / "private" / "key.py", "print('mine')\n")
    place = own(user, scratch / "cloned" / ".mcp.json", "")
    (place.parent / "link").symlink_to("../private/key.py")
    launcher = own(user, scratch / "corral", "", 0o755)
    entry = {"command": user.python, "args": [str(place.parent / "link")]}
    values = {"MAMBA_ROOT_PREFIX": str(scratch), "PATH": f"{place.parent}:/usr/bin:/bin"}
    for variables, text in (
        ({}, f"leads to {key.parent}"),
        ({name: values[name]}, f"{name} in the server's env"),
    ):
        place.write_text(json.dumps({"mcpServers": {"one": {**entry, "env": variables}}}))
        refused = user.corral("wrap", "--corral", str(launcher), str(place), env=env)
        assert refused.returncode == 1
        assert text in refused.stdout.decode()
    # Sanity check: the server starts if the user's own environment names the directory.
    own_choice = {**env, name: values[name]}
    started = user.corral("run", "--", entry["command"], *entry["args"], env=own_choice)
    assert started.stdout == b"mine\n", started.stderr


@ONE_USER
@pytest.mark.parametrize(
    "more",
    [
        {"args": ["../private/server.py"]},
        {"args": ["link/../server.py"]},
        {"args": ["${ABSENT:-../private}/server.py"]},
        {"cwd": "../private"},
        {"cwd": "whole"},
    ],
)
def test_a_projects_configuration_cannot_start_another_project(user, env, scratch, more):
    """Start another project's script from a project's configuration. corral must refuse it, because
    a server may read the files beside its script.
    """
    own(user, scratch / "private" / "server.py", "print('mine')\n")
    own(user, scratch / "cloned" / "server.py", "print('its own')\n")
    (scratch / "private" / "inner").mkdir()
    (scratch / "cloned" / "link").symlink_to("../private/inner")
    (scratch / "cloned" / "whole").symlink_to("../private")
    launcher = own(user, scratch / "corral", "", 0o755)
    entry = {"command": user.python, "args": ["server.py"]}

    def wrapped(entry: dict, *flags: str, name: str = ".mcp.json") -> str:
        place = own(user, scratch / "cloned" / name, json.dumps({"mcpServers": {"one": entry}}))
        flags = ("--corral", str(launcher), *flags)
        done = user.corral("wrap", *flags, str(place), env=env, cwd=scratch / "cloned")
        return done.stdout.decode() + done.stderr.decode()

    assert "one  wrapped" in wrapped(entry)
    assert wrapped({**entry, **more}).count("outside of its project") == 1
    assert "without --dry-run, corral asks" in wrapped({**entry, **more}, "--dry-run")
    already = {**entry, **more, "command": str(launcher)}
    already["args"] = ["run", "--", user.python, *already["args"]]
    assert "outside of its project" in wrapped(already)
    shown = user.corral("status", env=env, cwd=scratch / "cloned").stdout.decode()
    assert "outside of its project" in shown
    # Sanity checks: `wrap` accepts the entry if the user grants the other project, or if the
    # configuration is a file outside all projects.
    if "$" not in str(more):  # only the client knows a path that contains a variable
        assert "one  wrapped" in wrapped({**entry, **more}, "--read", str(scratch / "private"))
    # Even in a file outside all projects, corral refuses a path in which a symlink comes before
    # `..`, because a project could change the symlink later.
    expected = (
        "is neither part of the server nor granted" if "link/.." in str(more) else "one  wrapped"
    )
    assert expected in wrapped({**entry, **more}, name="settings.json")


@ONE_USER
def test_a_projects_configuration_cannot_hide_which_script_it_starts(user, env, scratch):
    """Hide in several ways that a command starts another project's script: with symlinks, `#!`
    lines, a path with a `:`, `..` below a directory of PATH, or variables that only the client
    replaces.
    """
    private = own(user, scratch / "private" / "server.py", "print('mine')\n")
    own(user, scratch / "private" / "bin" / "tool", "#!/bin/sh\n", 0o755)
    own(user, scratch / "cloned" / "server.py", "print('its own')\n")
    (scratch / "cloned" / "run").symlink_to("/usr/bin/python3")
    own(user, scratch / "cloned" / "plain", "#!/usr/bin/env -S python3 -I\n", 0o755)
    own(user, scratch / "cloned" / "eats", "#!/usr/bin/env -S python3 -W\n", 0o755)
    own(user, scratch / "cloned" / "names", f"#!/usr/bin/python3 {private}\n", 0o755)
    launcher = own(user, scratch / "corral", "", 0o755)
    env = {**env, "PATH": f"{scratch}/private/bin:{env.get('PATH') or '/usr/bin:/bin'}"}

    def wrapped(command: str, *words: str, **more: str) -> str:
        entry = {"command": command, "args": [*words], **more}
        place = scratch / "cloned" / ".mcp.json"
        own(user, place, json.dumps({"mcpServers": {"one": entry}}))
        done = user.corral("wrap", "--corral", str(launcher), str(place), env=env, cwd=place.parent)
        return done.stdout.decode() + done.stderr.decode()

    through_path = f"/usr/bin:x{'/..' * 2}{private}"
    for hidden in (
        ("./run", str(private)),
        ("${workspaceFolder}/run", str(private)),
        ("rbash", str(private)),
        ("./eats", str(private)),
        ("python3", through_path),
        ("${ABSENT:-python3}", str(private)),
        ("python3", "-${ABSENT:-W}", "server.py", str(private)),
        ("python3", "-${ABSENT:-W}", "-mserver", str(private)),
    ):
        assert "outside of its project" in wrapped(*hidden), hidden
    above = wrapped("python3", "-m", "server", cwd=f"{scratch}/private/bin/..")
    assert "outside of its project" in above
    assert "which is neither part of the server nor granted" in wrapped("./names")
    assert "cannot be encoded" in wrapped("./\ud800", "server.py")
    assert "cannot be encoded" in wrapped(str(launcher), "run", "--", "./run", "\ud800.py")
    # `status` and `why` list the entry, although its path cannot be encoded.
    for words in (("status",), ("why", "one")):
        shown = user.corral(*words, env=env, cwd=scratch / "cloned")
        assert (shown.returncode, b"one" in shown.stdout) == (0, True), shown.stderr
    # Sanity checks: programs may start the project's own script, and may get the other project's
    # file as an argument.
    for usual in (
        ("./run", "server.py"),
        ("./plain", str(private)),
        ("./eats", "server.py"),
        (f"{scratch}/private/bin/tool", str(private)),
        ("python3", "server.py", str(private)),
        ("python3", "server.py", "-${ABSENT:-W}", "${ABSENT}"),
        ("python3", "-Xutf8=${ABSENT}", "server.py"),
        ("python3", "-m", "server", "${ABSENT}"),
    ):
        assert "one  wrapped" in wrapped(*usual), usual


@ONE_USER
def test_a_link_in_a_shared_directory_cannot_start_another_project(user, env, scratch):
    """Put a symlink to another project into a directory that several servers share, such as
    ~/Documents. `wrap` must refuse it, because corral does not check such a symlink when a server
    starts.
    """
    own(user, scratch / "private" / "server.py", "print('mine')\n")
    documents = own(user, user.home / "Documents" / "server.py", "print('its own')\n").parent
    (documents / "link.py").symlink_to(scratch / "private" / "server.py")
    (documents / "python").symlink_to("/usr/bin/python3")
    launcher = own(user, scratch / "corral", "", 0o755)

    def wrapped(command: str, script: str) -> str:
        entry = {"command": command, "args": [script]}
        place = own(user, documents / ".mcp.json", json.dumps({"mcpServers": {"one": entry}}))
        own_home = {**env, "HOME": str(user.home)}
        done = user.corral("wrap", "--corral", str(launcher), str(place), env=own_home)
        return done.stdout.decode() + done.stderr.decode()

    assert "outside of its project" in wrapped("python3", "link.py")
    assert "one  wrapped" in wrapped("./python", "server.py")  # sanity check


@ONE_USER
def test_a_projects_configuration_cannot_set_corrals_variables(user, env, scratch):
    """Set variables in a server's `env` that change what corral does. `wrap` must refuse them,
    because the client also passes them to corral, and corral could then run other code.
    """
    code = "import os; print(*map(os.environ.get, ('PYTHONPATH', 'LEVEL')))"
    place = own(user, scratch / "cloned" / ".mcp.json", "")
    evil = own(user, scratch / "cloned" / "evil" / "sitecustomize.py", "print('outside')\n")
    launcher = own(user, scratch / "corral", "", 0o755)
    launcher.write_text(
        f"#!{user.python}\nimport sys\nsys.path.insert(0, {str(user.package)!r})\n"
        "from corral.cli import main\nmain()\n"
    )

    def wrapped(**variables: str) -> subprocess.CompletedProcess:
        entry = {"command": user.python, "args": ["-c", code], "env": variables}
        place.write_text(json.dumps({"mcpServers": {"one": entry}}))
        flags = ("--corral", str(launcher))
        return user.corral("wrap", *flags, str(place), env=env)

    for name, value in STEERING.items():
        refused = wrapped(LEVEL="1", **{name: value})
        assert refused.returncode == 1
        assert f"{name} in the server's env would change corral" in refused.stdout.decode()
        assert "--" not in json.loads(place.read_text())["mcpServers"]["one"]["args"]
    # Sanity checks: a harmless variable is passed on. If the client starts a wrapped entry with a
    # PYTHONPATH, corral itself runs code from this directory.
    assert wrapped(LEVEL="1", PYTHONUNBUFFERED="1").returncode == 0
    entry = json.loads(place.read_text())["mcpServers"]["one"]
    started = [entry["command"], *entry["args"]]
    fine = user.popen(
        started, env={**env, **entry["env"]}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert fine.communicate(timeout=60)[0] == b"None 1\n"
    stolen = user.popen(
        started,
        env={**env, **entry["env"], "PYTHONPATH": str(evil.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert b"outside" in stolen.communicate(timeout=60)[0]
    # `wrap` and `status` must report a PYTHONPATH that is added to a wrapped entry.
    entry["env"]["PYTHONPATH"] = "./evil"
    place.write_text(json.dumps({"mcpServers": {"one": entry}}))
    assert user.corral("wrap", "--corral", str(launcher), str(place), env=env).returncode == 1
    told = user.corral("status", str(place), env=env).stdout
    assert b"PYTHONPATH in the server's env would change corral" in told


@pytest.mark.parametrize(("user", "tier"), [("root", "bare")], indirect=True)
def test_root_without_namespaces_is_refused_with_the_reason(user, env, scratch):
    """Run a bundle as root without namespaces. The target then has its own user id, and cannot read
    the bundle in root's cache. corral must refuse the run.
    """
    path = put(user, scratch, manifest())
    done = user.corral("run", path, env=env)
    assert done.returncode == REFUSED
    assert "is closed to uid " in done.stderr.decode()
    assert b"start corral as the user who owns these files" in done.stderr


@ONE_USER
def test_a_cache_directory_that_is_a_link_works(user, env, scratch):
    (scratch / "link").symlink_to(env["XDG_CACHE_HOME"])
    path = put(user, scratch, manifest())
    assert said(user.corral("run", path, env={**env, "XDG_CACHE_HOME": str(scratch / "link")}))


@ONE_USER
def test_wrap_with_pin_installs_a_package_once(user, env, registry, npm, scratch):
    files = {"main.js": "console.log(JSON.stringify('ran'))"}
    archive = registry.publish_npm("server", "1.2.3", files, bin={"server": "main.js"})
    place = own(user, scratch / "desk" / "mcp.json", "")
    place.write_text(
        json.dumps({"mcpServers": {"a": {"command": "npx", "args": ["-y", "server"]}}})
    )
    done = user.corral("wrap", "--pin", "--corral", "/bin/true", str(place), env=env)
    assert done.returncode == 0, done.stderr
    assert "npm:server@1.2.3" in place.read_text()
    assert said(user.corral("run", "npm:server@1.2.3", env=env)) == "ran"
    assert registry.asked.count(archive) == 1


@ONE_USER
def test_wrapping_installs_packages(user, env, registry, tools, scratch):
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    code = "def main():\n    print('\"ran\"')\n"
    registry.publish_wheel("good", "1.0", {"good.py": code}, {"good": "good:main"})
    servers = {name: {"command": "uvx", "args": [name]} for name in ("absent", "good")}
    place = own(user, scratch / "desk" / "mcp.json", "")
    place.write_text(json.dumps({"mcpServers": servers}))
    for flag in ("--dry-run", "--no-install"):
        done = user.corral("wrap", flag, "--corral", "/bin/true", str(place), env=env)
        assert done.returncode == 0, done.stderr
    assert registry.asked == []
    place.write_text(json.dumps({"mcpServers": servers}))
    done = user.corral("wrap", "--corral", "/bin/true", str(place), env=env)
    assert done.returncode == 1
    assert b"absent  refused: cannot install pypi:absent" in done.stdout
    found = json.loads(place.read_text())["mcpServers"]
    assert found["absent"] == servers["absent"]
    assert found["good"]["args"][-1] == "pypi:good"
    asked = len(registry.asked)
    started = user.corral(*found["good"]["args"], env=env)
    assert said(started) == "ran"
    assert b"installing" not in started.stderr
    assert len(registry.asked) == asked > 0


@ONE_USER
def test_wrapping_shows_progress_on_a_terminal(user, env, registry, npm, scratch):
    """Check the progress line on a terminal. Sanity check: with `--no-install` there is none."""
    publish(registry)
    place = own(user, scratch / "desk" / "mcp.json", "")
    servers = {"one": {"command": "npx", "args": ["-y", "server"]}}
    shown = {}
    for flags in (["--no-install"], []):
        place.write_text(json.dumps({"mcpServers": servers}))
        argv = user.corral_argv("wrap", *flags, "--corral", "/bin/true", str(place))
        shown[bool(flags)] = on_terminal(user, argv, env)
    assert b"\rcorral: installing npm:server ..." in shown[False].replace(b"\033[K", b"")
    assert b"installing" not in shown[True]


@ONE_USER
def test_pinning_installs_the_packages_of_a_profile(user, env, registry, tools, scratch):
    """Check that `wrap --pin` installs the package. The first start must then not contact a
    registry.
    """
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    code = "import mcp\ndef main():\n    print(mcp.version)\n"
    entry_point = {"mcp-server-sqlite": "server:main"}
    registry.publish_wheel("mcp-server-sqlite", "1.0", {"server.py": code}, entry_point)
    for version in ("1.9", "2.0"):
        registry.publish_wheel("mcp", version, {"mcp.py": f"version = {version}\n"}, {})
    place = own(user, scratch / "desk" / "mcp.json", "")
    entry = {"command": "uvx", "args": ["mcp-server-sqlite"]}
    place.write_text(json.dumps({"mcpServers": {"a": entry}}))
    done = user.corral("wrap", "--pin", "--corral", "/bin/true", str(place), env=env)
    assert done.returncode == 0, done.stderr
    words = json.loads(place.read_text())["mcpServers"]["a"]["args"]
    assert words == ["run", "--profile", "sqlite", "--state", "--", "pypi:mcp-server-sqlite==1.0"]
    asked = len(registry.asked)
    assert said(user.corral(*words, env=env)) == 1.9
    assert len(registry.asked) == asked


@ONE_USER
def test_an_npm_package_cannot_link_to_an_interpreter(user, env, registry, npm):
    """Let an npm package make a symlink `bin/python` that leads out of the installation. corral
    must refuse the package, because only virtual environments may have such a symlink.
    """
    for name, leads in (("evil", "/etc"), ("good", "../node_modules")):
        script = f"mkdir ../../bin && ln -s {leads} ../../bin/python"
        files = {"main.js": "console.log(JSON.stringify('ran'))"}
        registry.publish_npm(
            name, "1.0.0", files, bin={name: "main.js"}, scripts={"install": script}, hasInstallScript=True
        )  # fmt: skip
    flags = ("run", "--allow-install-scripts")
    refused = user.corral(*flags, "npm:evil@1.0.0", env=env)
    assert refused.returncode == REFUSED
    assert b"'bin/python' is a link to a path outside of the installation" in refused.stderr
    assert said(user.corral(*flags, "npm:good@1.0.0", env=env)) == "ran"


def test_a_script_that_is_replaced_during_the_question_is_refused(tmp_path, monkeypatch):
    """Replace a server's script with a symlink while corral waits for the user's answer."""
    server, private = tmp_path / "server", tmp_path / "private"
    for path in (server, private):
        path.mkdir()
    (private / "pyproject.toml").write_text("[project]\n")
    (private / "notes.py").write_text("mine = 1\n")
    (server / "corral.toml").write_text('version = 1\n[server]\ncommand = ["python3", "main.py"]\n')
    (server / "main.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path))

    def plan():
        return prepare(command, sources, environment=os.environ, cwd=str(tmp_path))

    sources, command = what_to_run.sources_and_command(Options(), [str(server)])
    assert str(server) in plan().program.reads  # Sanity check: the server's own script is accepted
    (server / "main.py").unlink()
    (server / "main.py").symlink_to(private / "notes.py")
    with pytest.raises(UnchosenReadsError, match=f"main.py leads to {private}"):
        plan()


@ONE_USER
def test_a_directory_named_like_a_command_starts_only_by_its_path(user, env, scratch):
    text = "version = 1\n[server]\ncommand = ['/bin/echo', 'the project']\n"
    for name in ("true", "absent"):
        own(user, scratch / name / "corral.toml", text)
    done = user.corral("run", "true", env=env, cwd=scratch)
    assert (done.returncode, done.stdout) == (0, b"")
    done = user.corral("run", "absent", env=env, cwd=scratch)
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"type ./absent" in done.stderr
    for word in ("./true", "absent/", str(scratch / "true")):
        done = user.corral("run", word, env=env, cwd=scratch)
        assert (done.returncode, done.stdout) == (0, b"the project\n")
    assert user.corral("run", ".", env=env, cwd=scratch / "true").stdout == b"the project\n"


@ONE_USER
def test_a_directory_named_like_a_package_is_not_started(user, env, registry, npm, scratch):
    """Make a directory that has the same name as a package. Clients start servers in the open
    project, which may contain such a directory. corral must start the package.
    """
    files = {"main.js": "console.log(JSON.stringify('the package'))"}
    registry.publish_npm("server", "1.0.0", files, bin={"server": "main.js"})
    text = "version = 1\n[server]\ncommand = ['/bin/echo', '\"the project\"']\n"
    place = own(user, scratch / "npm:server@1.0.0" / "corral.toml", text).parent
    for verb in ("run", "explain"):
        done = user.corral(verb, "npm:server@1.0.0", env=env, cwd=scratch)
        assert b"the project" not in done.stdout
        assert done.returncode == 0, done.stderr
    assert said(user.corral("run", "npm:server@1.0.0", env=env, cwd=scratch)) == "the package"
    # Sanity check: `run` starts the project if it gets the directory's path.
    assert said(user.corral("run", str(place), env=env, cwd=scratch)) == "the project"
    asked = user.corral("approve", "npm:server@1.0.0", env=env, cwd=scratch)
    assert b"asks for nothing, so there is nothing to approve" in asked.stderr
