"""Test how corral reads an installed package: checksums, programs and entry points."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from corral.errors import SandboxError
from corral.servers.packages import npm, pypi, python_environment
from corral.servers.packages.sources import InstallOptions, Registry
from corral.servers.reference import parse_reference
from corral.servers.store import tree

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX paths")


def put(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lock(place, **packages: object) -> None:
    rows = {f"node_modules/{name}": item for name, item in packages.items()}
    put(place / "package-lock.json", json.dumps({"packages": {"": {}, **rows}}))


GOOD = {"version": "1.0.0", "integrity": "sha512-x"}


def test_every_npm_package_has_a_checksum(tmp_path):
    lock(tmp_path, thing=GOOD, bundled={"inBundle": True})
    assert npm.read_lock(str(tmp_path), "thing") == ("1.0.0", "sha512-x")
    for other in ({"version": "1"}, {**GOOD, "link": True}):
        lock(tmp_path, thing=GOOD, other=other)
        with pytest.raises(SandboxError, match="came without a checksum"):
            npm.read_lock(str(tmp_path), "thing")
    lock(tmp_path, other=GOOD)
    with pytest.raises(SandboxError, match="did not install thing"):
        npm.read_lock(str(tmp_path), "thing")
    for odd in ({"version": "1\033[2J"}, {"version": 1}, {"integrity": ["sha512-x"]}):
        lock(tmp_path, thing={**GOOD, **odd})
        with pytest.raises(SandboxError, match="did not install thing"):
            npm.read_lock(str(tmp_path), "thing")
    lock(tmp_path, thing={"version": "1.0.0", "inBundle": True})
    with pytest.raises(SandboxError, match="did not install thing"):
        npm.read_lock(str(tmp_path), "thing")
    put(tmp_path / "package-lock.json", "{")
    with pytest.raises(SandboxError, match="cannot be read"):
        npm.read_lock(str(tmp_path), "thing")


def program(
    place, bins: object, word: str = "npm:@s/thing@1", head: str = "#!/usr/bin/env node\n"
) -> list[str]:
    folder = place / "node_modules" / "@s" / "thing"
    put(folder / "package.json", json.dumps({"bin": bins}))
    put(folder / "main.js", head)
    put(place / "node_modules" / "main.js", head)
    put(place / "main.js", head)
    return npm.build_command(str(place), parse_reference(word))


def test_the_program_of_an_npm_package_is_found(tmp_path):
    path = "{tree}/node_modules/@s/thing/main.js"
    assert program(tmp_path, "main.js") == ["node", path]
    assert program(tmp_path, {"any": "./main.js"}) == ["node", path]
    assert program(tmp_path, {"thing": "main.js", "b": "x"}) == ["node", path]
    assert program(tmp_path, {"a": "x", "b": "main.js"}, "npm:@s/thing#b") == ["node", path]
    assert program(tmp_path, "main.js", head="\x7fELF") == ["node", path]
    assert program(tmp_path, "main.js", head="#!/bin/sh\n") == [path]


@pytest.mark.parametrize("bins", ["../../../main.js", "/etc/passwd", {"x": "../../../../main.js"}])
def test_a_program_outside_of_the_packages_is_refused(tmp_path, bins):
    with pytest.raises(SandboxError, match="is outside of the package"):
        program(tmp_path, bins)


@pytest.mark.parametrize("bins", [None, {}, [], 7])
def test_a_package_without_a_program_is_refused_as_a_library(tmp_path, bins):
    with pytest.raises(SandboxError, match="it is a library"):
        program(tmp_path, bins)


def test_extra_packages_must_be_names_of_python_packages(tmp_path):
    with pytest.raises(SandboxError, match="--with works only with packages from PyPI"):
        npm.install(parse_reference("npm:x"), str(tmp_path), InstallOptions(extra=("y",)))
    for item in ("-r /etc/passwd", "./here", "/there", "a\n--index-url=http://evil"):
        with pytest.raises(SandboxError, match="is not a package"):
            pypi.install(parse_reference("pypi:x"), str(tmp_path), InstallOptions(extra=(item,)))


def test_every_python_package_has_a_hash(tmp_path):
    digest = "0" * 64
    text = f"# made by uv\nA_b==1.0 \\\n    --hash=sha256:{digest} \\\n    --hash=sha256:{digest}\nc[x]==2 --hash=sha256:{digest}\n"
    put(tmp_path / pypi.LOCK, text)
    assert pypi.check_lock(str(tmp_path))[0] == {"a-b": "1.0", "c": "2"}
    for line in ("d==1\n", "d==1 --hash=md5:0\n"):
        put(tmp_path / pypi.LOCK, text + line)
        with pytest.raises(SandboxError, match="came without a hash"):
            pypi.check_lock(str(tmp_path))
    own = f"--hash=sha256:{digest}"
    for line in ("d==1 --hash=sha256:", "d @ file:///x --hash=md5:0", "-e .", f"--pre x {own}"):
        put(tmp_path / pypi.LOCK, f"{text}{line}\n")
        with pytest.raises(SandboxError, match="a line that is not a package"):
            pypi.check_lock(str(tmp_path))


def started(place, scripts: str, word: str = "pypi:my-thing") -> str:
    """Run the generated start script. Return its output and exit code."""
    site = place / "site"
    put(site / "my_thing-1.0.dist-info" / "entry_points.txt", scripts)
    put(
        site / "my_thing" / "__init__.py",
        "import sys\ndef main(): print('main', *sys.argv)\nclass App:\n    @staticmethod\n    def run(): print('run'); return 3\n",
    )
    pypi.write_start_script(str(place), str(site), parse_reference(word))
    done = subprocess.run(
        [sys.executable, str(place / pypi.START_SCRIPT), "a"], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"{done.stdout.strip()} {done.returncode}"


def test_the_script_of_a_python_package_is_started(tmp_path):
    both = (
        "[console_scripts]\nmy-thing = my_thing:main\nOther = my_thing:App.run [extra]\n[x]\ny=z\n"
    )
    assert started(tmp_path, both) == "main my-thing a 0"
    assert started(tmp_path, both, "pypi:my-thing#Other") == "run 3"
    assert started(tmp_path, "[console_scripts]\nonly=my_thing:main\n") == "main only a 0"
    with pytest.raises(SandboxError, match="has no program absent"):
        started(tmp_path, both, "pypi:my-thing#absent")
    with pytest.raises(SandboxError, match="it is a library"):
        started(tmp_path, "")
    put(
        tmp_path / "site" / "my_thing" / "__main__.py", "import sys; print('module', *sys.argv[1:])"
    )
    assert started(tmp_path, "") == "module a 0"


@pytest.mark.parametrize(
    "target", ["os:system('x')", "a;import os:main", "my_thing", ":main", "a.b:c d"]
)
def test_an_entry_point_consists_of_names_only(tmp_path, target):
    with pytest.raises(SandboxError, match="cannot be read"):
        started(tmp_path, f"[console_scripts]\nx = {target}\n")


def test_a_package_with_too_many_bytes_or_files_is_refused(tmp_path, monkeypatch):
    for at in range(5):
        put(tmp_path / str(at), "12345")
    tree.check_tree(str(tmp_path))
    monkeypatch.setattr(tree, "MAX_BYTES", 24)
    with pytest.raises(SandboxError, match="more than"):
        tree.check_tree(str(tmp_path))
    monkeypatch.setattr(tree, "MAX_BYTES", 1000)
    monkeypatch.setattr(tree, "MAX_ENTRIES", 3)
    with pytest.raises(SandboxError, match="more than"):
        tree.check_tree(str(tmp_path))


@pytest.mark.parametrize("act", ["link", "file", "beside", "settings"])
def test_changed_files_that_choose_the_interpreter_are_refused(tmp_path, act):
    made = python_environment.make_environment(str(tmp_path), Registry(), "x")
    # Sanity check: the unchanged environment is accepted.
    python_environment.check_environment(made)
    python = tmp_path / "bin" / "python"
    match act:
        case "link":
            python.unlink()
            python.symlink_to("/bin/sh")
        case "file":
            python.unlink()
            put(python, "#!/bin/sh\n")
        case "beside":
            put(tmp_path / "bin" / "pyvenv.cfg", "home = /tmp\n")
        case "settings":
            put(tmp_path / "pyvenv.cfg", "home = /tmp\n")
    with pytest.raises(SandboxError, match="a package changed"):
        python_environment.check_environment(made)


def test_a_missing_program_is_an_error(tmp_path):
    package = {"bin": {"tool\x1b[2J": "none.js", "b": "b.js"}}
    put(tmp_path / "node_modules/a/package.json", json.dumps(package))
    with pytest.raises(SandboxError, match="of a cannot be read: No such file"):
        npm.build_command(str(tmp_path), parse_reference("npm:a#b"))
    with pytest.raises(SandboxError) as found:
        npm.build_command(str(tmp_path), parse_reference("npm:a"))
    assert "\x1b" not in f"{found.value.message}{found.value.hint}"


def test_files_of_a_package_that_corral_itself_reads_have_a_maximum_size(tmp_path):
    """Check that corral limits the size of files that it reads without a sandbox. A package can
    make its own description as large as the disk.
    """
    for name, read in (
        ("package-lock.json", lambda: npm.read_lock(str(tmp_path), "thing")),
        (pypi.LOCK, lambda: pypi.check_lock(str(tmp_path))),
    ):
        with (tmp_path / name).open("wb") as file:
            file.truncate(8 << 30)
        with pytest.raises(SandboxError, match="is larger than 32 MiB"):
            read()
        (tmp_path / name).unlink()
    script = tmp_path / "thing-1.0.dist-info" / "entry_points.txt"
    put(script, "[console_scripts]\nthing = thing:main\n")
    assert pypi.console_scripts(str(tmp_path), "thing") == {"thing": "thing:main"}
    with script.open("ab") as file:
        file.truncate(8 << 30)
    assert pypi.console_scripts(str(tmp_path), "thing") == {}
