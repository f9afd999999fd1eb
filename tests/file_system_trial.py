"""Put each directory that corral uses on a given file system, and check whether corral works there,
for each user and tier in `TRIED`.

    python3 file_system_trial.py NAME    try the file system NAME of file_systems.py, and print each result as JSON

Tests on this host call `look`. `file_system_hosts.py` runs the command inside a virtual machine.

The result of each attempt is `works`, `refuses` (exit code 125, one error and a hint), or `fails`,
which no test accepts.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from typing import TYPE_CHECKING

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from file_systems import FILE_SYSTEMS, POINT, WORK, Mounted, Resident, mounted
from users import SOURCE, User, make_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Try = dict[str, str]
MARK = "@@tries@@"
REFUSED = 125
USED_UP = "HOME, quota used up"
TIMEOUT = 300
ATTEMPTS = """
def tried(attempt):
    try:
        return attempt()
    except OSError as error:
        return error.strerror
def write(path):
    with open(path, "w") as file:
        return file.write("x")
def read(path):
    with open(path) as file:
        return file.read()
top = sys.argv[1]
answer = {
    "read": tried(lambda: read(top + "/file")),
    "write": tried(lambda: write(top + "/new")),
    "rename": tried(lambda: os.rename(top + "/new", top + "/newer")),
    "outside": tried(lambda: read(os.path.dirname(top) + "/outside")),
    "secret": tried(lambda: read(top + "/.env")),
    "deep secret": tried(lambda: read(top + "/one/two/three/.env")),
    "repository": tried(lambda: write(top + "/.git/config")),
    "spellings": [
        tried(lambda: read(top + "/.ENV")),
        tried(lambda: read(top + "/one/.env.local")),
        tried(lambda: write(top + "/.GIT/config")),
    ],
}
"""
SERVER = "import json, os; print(json.dumps(sorted(os.listdir(os.path.dirname(__file__)))))"


class Fault(Exception):
    """Raised when a check of the trial fails."""


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Fault(f"{what}: {found!r}, not {wanted!r}")


class Refusal(Exception):
    """Raised when corral refuses a run with a hint."""


def output_of(done) -> bytes:
    """Return the output of a run. Raise Refusal if corral refused the run with a hint, and Fault if
    the run failed for another reason.
    """
    said = done.stderr.decode()
    if "Traceback" in said or "corral failed" in said:
        raise Fault(said)
    if done.returncode == REFUSED:
        error = [line for line in said.splitlines() if line.startswith(("corral: ", "hint: "))]
        error = [line for line in error if not line.startswith("corral: warning: ")]
        if not error or not error[-1].startswith("hint: "):
            raise Fault(f"no hint: {said}")
        raise Refusal("\n".join(error))
    if done.returncode:
        raise Fault(f"exit code {done.returncode}: {said}")
    return done.stdout


def make_tree(user: Resident, name: str, *, secrets: bool) -> str:
    """Make a private directory for the user and a file beside it, and return the directory's path.

    With `secrets`, put secret files and a git repository into the directory.
    """
    top = f"{user.mounted.top}/{name}"
    lines = [f"mkdir -p {top}/it", f"echo data >{top}/it/file", f"echo other >{top}/outside"]
    if secrets:
        lines += [f"mkdir -p {top}/it/.git {top}/it/one/two/three"]
        lines += [f"echo secret >{top}/it/{path}.env" for path in ("", "one/two/three/")]
        lines += [f"echo settings >{top}/it/.git/config", f"echo secret >{top}/it/one/.ENV.local"]
    lines += [f"chmod 711 {top}", f"chmod 700 {top}/it"]
    user.mounted.shell("; ".join([*lines, f"chown -R {user.owner}:{user.owner} {top}"]))
    return f"{POINT}/{name}/it"


def try_grant(user: Resident, access: str) -> None:
    """Try a grant. If corral refuses it and the hint is a chown, run the chown and check that the grant then works."""
    top = make_tree(user, f"{access}-{user.name}-{user.tier}", secrets=user.tier == "walled")
    try:
        check_grant(user, access, top)
    except Refusal as refusal:
        if command := re.search(r"hint: `(chown -R [^`]*)`", str(refusal)):
            user.mounted.shell(command[1])
            check_grant(user, access, top)
        raise


def check_grant(user: Resident, access: str, top: str) -> None:
    script = f"import json, os, sys\n{ATTEMPTS}\nprint(json.dumps(answer))"
    done = user.run(user.python, "-c", script, top, flags=(f"--{access}", top), timeout=TIMEOUT)
    found = json.loads(output_of(done).splitlines()[-1])
    expect(found["read"], "data\n", "a granted file")
    expect(found["write"] == 1, access == "write", "writing")
    expect(found["rename"] is None, access == "write", "renaming")
    denied = ("No such file or directory", "Permission denied")
    expect(found["outside"] in denied, True, "the file beside the granted directory")
    if user.tier == "walled":
        # If the target may only read a directory, corral searches only its upper levels for
        # secrets. So it does not hide the secret in the deepest directory.
        deep = "" if access == "write" else "secret\n"
        expect((found["secret"], found["deep secret"]), ("", deep), "secrets")
        expect(found["repository"], "Read-only file system", "the repository")
        check_spellings(user, top, found["spellings"])
        seen = user.outside(ATTEMPTS, top)
        expect((seen["secret"], seen["outside"]), ("secret\n", "other\n"), "outside the sandbox")


def check_spellings(user: Resident, top: str, found: list[object]) -> None:
    """Check what the target found under other spellings of names, such as `.ENV`. If the directory
    ignores case, corral must hide or protect a file under every spelling of its name, and must
    refuse a grant whose path is spelled differently.
    """
    other = f"{os.path.dirname(top)}/IT"
    ignored = user.mounted.shell(f"test -e {other} && echo yes || true") == "yes\n"
    absent = "No such file or directory"
    hidden = ["", "", "Read-only file system"] if ignored else [absent, absent, absent]
    expect(found, hidden, "other spellings")
    if ignored:
        done = user.run("/bin/true", flags=("--read", other), timeout=TIMEOUT)
        expect(done.returncode, REFUSED, "a grant in another spelling")
        expect(f"hint: write {top}" in done.stderr.decode(), True, "its hint")


def own_home(user: Resident, name: str) -> Resident:
    name = f"{name}-{user.name}-{user.tier}"
    home = f"{user.mounted.top}/{name}"
    user.mounted.shell(f"mkdir {home} && chmod 700 {home} && chown {user.uid}:{user.uid} {home}")
    return user.mounted.resident(user, home=f"{POINT}/{name}")


def behind(user: Resident) -> str:
    """Return a path that root can use to read the user's home, even if the mount itself denies
    root.
    """
    return f"{user.mounted.top}/{user.home.name}"


def try_home(user: Resident) -> None:
    """Put HOME on the tested file system, and run corral. HOME then contains corral's cache, state
    and run records, and the state directory of a server.
    """
    there = own_home(user, "home")
    expect(output_of(there.run("/bin/echo", "hi", timeout=TIMEOUT)), b"hi\n", "a run")
    if user.uid or user.tier == "walled":
        code = "path = os.path.expanduser('~/kept'); print(os.path.exists(path)); open(path, 'w').close()"
        kept = (there.python, "-c", f"import os; {code}")
        seen = [output_of(there.run(*kept, flags=("--state",), timeout=TIMEOUT)) for _ in range(2)]
        expect(seen, [b"False\n", b"True\n"], "a state directory")
    expect(output_of(there.corral("ps", timeout=TIMEOUT)), b"no run is alive\n", "runs")
    left = user.mounted.shell(f"find {behind(there)} -name '*.new' -o -path '*/runs/*'")
    expect(left, "", "leftovers")


def bundle() -> bytes:
    held = io.BytesIO()
    config = {"command": "python3", "args": ["${__dirname}/main.py"], "env": {}}
    server = {"type": "python", "entry_point": "main.py", "mcp_config": config}
    manifest = {"manifest_version": "0.3", "name": "hello", "version": "1.0.0", "server": server}
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in (("manifest.json", json.dumps(manifest)), ("main.py", SERVER)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, text)
    return held.getvalue()


def try_store(user: Resident) -> None:
    """Install a bundle twice at the same time, and check that only one tree is left."""
    there = own_home(user, "store")
    path = user.package.parent / "hello.mcpb"
    path.write_bytes(bundle())
    path.chmod(0o644)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), -1)
    argv = there.corral_argv("run", str(path))
    both = [there.popen(argv, **pipes) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=TIMEOUT)
        process.stdout, process.stderr = out, err
        output_of(process)
        expect(json.loads(out), ["main.py", "manifest.json"], "the server's files")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (row,) = json.loads(output_of(there.corral("cache", "ls", "--json", timeout=TIMEOUT)))
    expect(row["key"], f"bundle:{digest}", "the entry")
    output_of(there.corral("cache", "verify", timeout=TIMEOUT))
    cache = f"{behind(there)}/.cache"
    left = user.mounted.shell(f"ls -A {cache}/corral-staging; ls -A {cache}/corral/store/trees")
    expect(left.split(), [row["digest"]], "trees and staging")


def try_temporary(user: Resident) -> None:
    """Put /tmp on the tested file system, because a run without namespaces has its private directory there."""
    shell = user.mounted.shell
    there = f"{user.mounted.top}/tmp"
    shell(f"mkdir -p {there} && chmod 1777 {there} && mount --bind {POINT}/tmp /tmp")
    try:
        code = "import os; open(os.environ['TMPDIR'] + '/x', 'w').close(); print('written')"
        done = user.run(user.python, "-c", code, timeout=TIMEOUT)
        expect(output_of(done), b"written\n", "TMPDIR")
        expect(shell("ls -A /tmp"), "", "leftovers in /tmp")
    finally:
        shell("umount /tmp")


def try_code(user: Resident) -> None:
    """Try corral's own package on the file system, because Python writes compiled modules beside the package."""
    name = f"code-{user.name}-{user.tier}"
    place = f"{user.mounted.top}/{name}"
    user.mounted.shell(f"cp -r {user.package} {place} && chown -R {user.uid} {place}")
    there = user.mounted.resident(user, package=f"{POINT}/{name}")
    env = {**there.environment(), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(2):
        expect(output_of(there.run("/bin/echo", "hi", env=env, timeout=TIMEOUT)), b"hi\n", "a run")
    expect(user.mounted.shell(f"find {place} -name '*.new'"), "", "leftovers")


def try_used_up(user: Resident) -> None:
    """Try HOME with a quota that is used up. A plain run must work, and corral must refuse a run
    with `--state`.

    Once there is space again, the refused run must work.
    """
    there = own_home(user, "used")
    fill = f"{there.home}/fill"
    code = f"open({fill!r}, 'wb').write(bytes(40 << 20))"
    there.popen([there.python, "-c", code], stderr=-3).wait(TIMEOUT)
    expect(output_of(there.run("/bin/echo", "hi", timeout=TIMEOUT)), b"hi\n", "a run")
    try:
        output_of(there.run("/bin/true", flags=("--state",), timeout=TIMEOUT))
    except Refusal as refusal:
        expect("Disk quota exceeded" in str(refusal), True, "the reason")
        user.mounted.shell(f"rm {fill}")
        output_of(there.run("/bin/true", flags=("--state",), timeout=TIMEOUT))
        raise
    raise Fault("a state directory was made in spite of the quota")


PLACES: dict[str, Callable[[Resident], None]] = {
    "read grant": lambda user: try_grant(user, "read"),
    "write grant": lambda user: try_grant(user, "write"),
    "HOME": try_home,
    "store": try_store,
    "/tmp": try_temporary,
    "corral's code": try_code,
    USED_UP: try_used_up,
}


def outcome(attempt: Callable[[Resident], None], user: Resident) -> tuple[str, str]:
    try:
        attempt(user)
    except Refusal as refusal:
        return "refuses", str(refusal)
    except Exception as fault:  # noqa: BLE001 - an unexpected error fails only this try
        return "fails", f"{type(fault).__name__}: {fault}"
    return "works", ""


@contextlib.contextmanager
def open_package() -> Iterator[pathlib.Path]:
    """Copy corral to a directory that every user can read and on which no test mounts anything."""
    base = pathlib.Path(tempfile.mkdtemp(prefix="corral-trial-", dir=WORK))
    try:
        base.chmod(0o755)
        shutil.copytree(SOURCE, base / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for path in (base / "src").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield base / "src"
    finally:
        shutil.rmtree(base)


TRIED = {
    "": [(who, tier) for who in ("root", "ordinary") for tier in ("walled", "bare")],
    # Root is not tried without namespaces ("bare"): root's target would then have the id of an
    # ordinary user, and the ordinary user is tried anyway.
    "qemu": [("root", "walled"), ("ordinary", "walled"), ("ordinary", "bare")],
    # This machine's kernel has no Landlock, so corral refuses a run without namespaces.
    "uml": [("root", "walled"), ("ordinary", "walled")],
}
"""The users and tiers to try, for this host ("") and for each virtual machine."""


def look(name: str) -> Iterator[Try]:
    """Try each directory that corral uses on one file system, as each user and in each tier of `TRIED`."""
    file_system = FILE_SYSTEMS[name]
    with open_package() as package, mounted(file_system) as there:
        people = [
            make_user(who, package, tier)
            for who in ("root", "ordinary")
            for tier in ("walled", "bare")
            if (who, tier) in TRIED[file_system.machine]
        ]
        for person in people:
            yield from tries(there, person)


def tries(there: Mounted, person: User) -> Iterator[Try]:
    user = there.resident(person)
    for place, attempt in PLACES.items():
        if place == "store" and person.name == "root" and person.tier == "bare":
            # Without namespaces, root's target may not open root's cache on any file system.
            continue
        if place == USED_UP and (not there.quota or not person.uid):
            continue  # this file system has no quota, or the quota does not apply to root
        result, said = outcome(attempt, user)
        yield {
            "place": place,
            "user": person.name,
            "tier": person.tier,
            "result": result,
            "said": said,
        }


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for found in look(sys.argv[1]):
        print(f"\n{MARK}{json.dumps(found)}", flush=True)
