"""Who runs corral in these tests: root and an ordinary user, wherever this process can be both.

`corral` runs the command line in a real child process. As root the suite also runs everything as an ordinary
user, from a world-readable copy of the package; started by an ordinary user it can only be that one.
"""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
ORDINARY = 65533
SYSTEM_PYTHON = "/usr/bin/python3"
MAIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; sys.exit(main())"


class User:
    """One of the people who may run corral: starts processes as them, in their own home."""

    def __init__(self, name: str, uid: int, home: pathlib.Path, package: pathlib.Path) -> None:
        self.name = name
        self.uid = uid
        self.home = home
        self.package = package
        self.python = SYSTEM_PYTHON if uid and os.access(SYSTEM_PYTHON, os.X_OK) else sys.executable

    def environment(self, **extra: str) -> dict[str, str]:
        path = f"{os.path.dirname(self.python)}:/usr/local/bin:/usr/bin:/bin"
        base = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}
        return {**base, "PYTHONDONTWRITEBYTECODE": "1", **extra}

    def popen(self, argv: list[str], *, env: dict[str, str] | None = None, **options) -> subprocess.Popen:
        ids = {"user": self.uid, "group": self.uid, "extra_groups": []} if self.uid != os.geteuid() else {}
        return subprocess.Popen(
            argv, env=self.environment() if env is None else env, **{"cwd": self.home, **ids, **options}
        )

    def corral_argv(self, *arguments: str) -> list[str]:
        return [self.python, "-c", MAIN, str(self.package), *arguments]

    def corral(
        self,
        *arguments: str,
        input: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 60,
        **options,
    ) -> subprocess.CompletedProcess:
        """Run `corral ARGUMENTS` to its end with its output captured."""
        process = self.popen(
            self.corral_argv(*arguments),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self, *command: str, flags: tuple[str, ...] = (), **options) -> subprocess.CompletedProcess:
        """`corral run FLAGS -- COMMAND`."""
        return self.corral("run", *flags, "--", *command, **options)

    def inside(self, code: str, *arguments: str, flags: tuple[str, ...] = (), **options) -> object:
        """Run Python `code` inside; it sets `answer`, which comes back. Fails loudly if it could not run."""
        script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
        done = self.run(self.python, "-c", script, *arguments, flags=flags, **options)
        assert done.returncode == 0, (done.returncode, done.stderr.decode(), done.stdout.decode())
        return json.loads(done.stdout.decode().splitlines()[-1])

    def outside(self, code: str, *arguments: str, **options) -> object:
        """The control: the same code as the same user, without walls."""
        script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
        process = self.popen(
            [self.python, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (process.returncode, err.decode())
        return json.loads(out.decode().splitlines()[-1])


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> pathlib.Path:
    """corral where every user can read it."""
    if os.geteuid():
        return SOURCE
    base = pathlib.Path("/tmp") / f"corral-tests-{os.getpid()}"
    base.mkdir(mode=0o755)
    shutil.copytree(SOURCE, base / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [base, *base.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield base / "src"
    shutil.rmtree(base)


def make_user(name: str, package: pathlib.Path) -> User:
    if name == "root":
        uid, home = 0, package.parent / "home-root"
    elif os.geteuid() == 0:
        uid, home = ORDINARY, package.parent / "home-ordinary"
    else:
        uid = os.geteuid()
        home = pathlib.Path(pwd.getpwuid(uid).pw_dir)
        return User(name, uid, home, package)
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
    return User(name, uid, home, package)


@pytest.fixture(params=["root", "ordinary"])
def user(request, package) -> User:
    if request.param == "root" and os.geteuid():
        pytest.skip("this process is not root")
    return make_user(request.param, package)


@pytest.fixture
def ordinary(package) -> User:
    return make_user("ordinary", package)


@pytest.fixture
def scratch(user):
    """A directory of the user's own, outside every sandbox."""
    path = user.home / f"scratch-{os.getpid()}"
    path.mkdir(mode=0o700)
    os.chown(path, user.uid, user.uid)
    yield path
    shutil.rmtree(path)
