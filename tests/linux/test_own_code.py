"""Test that a target cannot change the code that a later run of corral loads."""

from __future__ import annotations

import os
import shutil

import pytest

BOTH_TIERS = pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
ENTRY = "import sys; sys.path.insert(1, sys.argv.pop(1)); from corral.__main__ import main; main()"
OLD_ENTRY = ENTRY.replace("__main__", "cli")
MODULES = ("tomllib", "json", "typing", "__future__", "shlex", "hashlib", "errno")
WRITE = "import os, sys; open(sys.argv[1], 'a').write('\\nprint(\"changed\")\\n')"

REOPEN = "import os, sys; os.chmod(os.path.dirname(sys.argv[1]), 0o700)\n"


def own(user, path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    for one in (path, path.parent):
        os.chown(one, user.owner, user.owner)
    return path


def run(user, entry, *words, **options):
    argv = [*user.host, user.python, "-c", entry, str(user.package), "run", *words]
    process = user.popen(argv, stdin=-3, stdout=-1, stderr=-1, **options)
    out, err = process.communicate(timeout=60)
    return process.returncode, (out + err).decode()


@pytest.mark.parametrize("where", ["PYTHONPATH", "cwd"])
def test_corral_does_not_load_modules_from_the_current_project_or_pythonpath(user, scratch, where):
    for name in MODULES:
        own(user, scratch / "evil" / f"{name}.py", f"print('planted {name}'); raise SystemExit(7)")
    policy = str(
        own(user, scratch / "policy.toml", 'version = 1\n[filesystem]\nread = ["/usr/share"]\n')
    )
    options = {"cwd": scratch / "evil"}
    if where == "PYTHONPATH":
        options = {"env": user.environment(PYTHONPATH=str(scratch / "evil"))}
    words = ("--policy", policy, "--", "/bin/echo", "ran")
    code, text = run(user, OLD_ENTRY, *words, **options)
    # Sanity check: OLD_ENTRY lacks the first lines of corral's entry point, which protect it.
    # Without them corral loads the planted module.
    assert (code, "planted" in text) == (7, True)
    code, text = run(user, ENTRY, *words, **options)
    assert code == 0, text
    assert "planted" not in text


@BOTH_TIERS
def test_a_hard_link_to_corrals_code_is_not_writable(user, scratch):
    """Grant a directory with a hard link to a file of corral's code. corral must refuse the grant.
    Such links exist if uv has installed corral, because uv installs files as hard links to the
    files in its cache.
    """
    package = scratch / "site"
    shutil.copytree(user.package / "corral", package / "corral")
    cache = own(user, scratch / "cache/one", "").parent
    for path in [package, *package.rglob("*")]:
        os.chown(path, user.owner, user.owner)
    code = package / "corral/errors.py"
    words = [user.python, "-c", OLD_ENTRY, str(package)]
    words += ["run", "--write", str(scratch / "cache")]
    target = [user.python, "-c", WRITE, str(cache / "errors.py")]

    def start():
        process = user.popen([*user.host, *words, "--", *target], stdin=-3, stdout=-1, stderr=-1)
        return process.communicate(timeout=60)[1].decode(), process.returncode

    before = code.read_text()
    own(user, cache / "errors.py", before)
    text, status = start()
    assert status == 0, text  # Sanity check: the target may write to a copy of the code
    assert "changed" in (cache / "errors.py").read_text()
    (cache / "errors.py").unlink()
    os.link(code, cache / "errors.py")
    text, status = start()
    assert status == 125
    assert "hard link to corral's code" in text
    assert "hint: grant a smaller directory" in text
    closed = cache / "closed"
    closed.mkdir()
    os.rename(cache / "errors.py", closed / "errors.py")
    os.chown(closed, user.owner, user.owner)
    # corral cannot search a directory without permissions, so it does not find the hard link there.
    # An earlier target may have removed the permissions, and this target could restore them.
    closed.chmod(0)
    target = [user.python, "-c", REOPEN + WRITE, str(closed / "errors.py")]
    text, status = start()
    assert status == 125
    assert "corral's code" in text
    assert code.read_text() == before
    closed.chmod(0o700)


@BOTH_TIERS
@pytest.mark.parametrize(
    "where", ["program", "link", "PYTHONPATH", "empty part", "user site", "bytecode"]
)
def test_files_that_the_next_corral_starts_from_are_not_writable(user, scratch, where):
    inside = scratch / "granted"
    own(user, inside / "file")
    env = {}
    if where in {"program", "link"}:
        real = own(user, inside / "corral" if where == "program" else scratch / "real/corral")
        if where == "link":
            (inside / "corral").symlink_to(real)
        env = {"PATH": f"{inside}:/usr/bin:/bin"}
    elif where == "PYTHONPATH":
        env = {"PYTHONPATH": f"/nowhere:{inside}"}
    elif where == "empty part":
        env = {"PYTHONPATH": "/nowhere:"}
    elif where == "bytecode":
        env = {"PYTHONPYCACHEPREFIX": str(inside / "bytecode")}
    else:
        env = {"PYTHONUSERBASE": str(inside)}
    options = {"cwd": inside}
    flags = ("--write", str(inside), "--", "/bin/true")
    code, text = run(user, OLD_ENTRY, *flags, **options)
    assert code == 0, text  # Sanity check: without the variable corral starts
    code, text = run(user, OLD_ENTRY, *flags, env=user.environment(**env), **options)
    if where == "user site" and user.python != "/usr/bin/python3":
        assert code == 0  # a virtual environment ignores the user's site directory
        return
    assert code == 125
    assert "corral's" in text
    assert "\nhint: " in text
