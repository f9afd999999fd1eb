"""Who runs corral in these tests, and on what host: root and an ordinary user, with and without namespaces.

`corral` runs the command line in a real child process. As root the suite also runs everything as an ordinary
user, from a world-readable copy of the package; started by an ordinary user it can only be that one.
In the tier `bare` corral is started under a filter that forbids new namespaces and mounts, as containers do.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "src"
ORDINARY = 65533
SYSTEM_PYTHON = "/usr/bin/python3"
IGNORABLE = [
    getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGQUIT") if hasattr(signal, name)
]
MAIN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.cli import main; sys.exit(main())"
)
NO_NAMESPACES = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler
machine = os.uname().machine
table = TABLES[machine]
denied, absent = seccomp_compiler.errno_action(1), seccomp_compiler.errno_action(38)
rules = dict.fromkeys(table.values(), seccomp_compiler.ALLOW)
rules.update({table["unshare"]: denied, table["mount"]: denied, table["clone3"]: absent})
spaces = (abi.CLONE_NEWUSER, abi.CLONE_NEWNS, abi.CLONE_NEWPID, abi.CLONE_NEWNET)
rules[table["clone"]] = (tuple(((seccomp_compiler.low(0, bit, bit),), denied) for bit in spaces), seccomp_compiler.ALLOW)
limit = 0x40000000 if machine == "x86_64" else None
program = seccomp_compiler.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=absent, number_limit=limit)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
abi.seccomp_set_filter(program)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def signals_at_their_defaults():
    """A shell starts background jobs with SIGINT and SIGQUIT ignored, and corral would inherit that."""
    ignored = [number for number in IGNORABLE if signal.getsignal(number) == signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        ignored = []  # only the main thread may
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


class User:
    """One of the people who may run corral: starts processes as them, in their own home.

    `owner` is whose files the target may use: without namespaces root's targets have an id of their own.
    """

    def __init__(
        self,
        name: str,
        uid: int,
        home: pathlib.Path,
        package: pathlib.Path,
        tier: str = "walled",
    ) -> None:
        self.name = name
        self.uid = uid
        self.home = home
        self.package = package
        self.tier = tier
        self.owner = uid or (_target_of_root() if tier == "bare" else 0)
        everybody = self.owner and os.access(SYSTEM_PYTHON, os.X_OK)
        self.python = SYSTEM_PYTHON if everybody else sys.executable

    @property
    def host(self) -> list[str]:
        """What a command is started by to find itself on a host of this tier."""
        if self.tier == "walled":
            return []
        return [self.python, "-c", NO_NAMESPACES, str(self.package)]

    def environment(self, **extra: str) -> dict[str, str]:
        path = f"{os.path.dirname(self.python)}:/usr/local/bin:/usr/bin:/bin"
        base = {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}
        return {**base, "PYTHONDONTWRITEBYTECODE": "1", **extra}

    def popen(
        self, argv: list[str], *, env: dict[str, str] | None = None, **options
    ) -> subprocess.Popen:
        ids = (
            {"user": self.uid, "group": self.uid, "extra_groups": []}
            if self.uid != os.geteuid()
            else {}
        )
        with signals_at_their_defaults():
            return subprocess.Popen(
                argv,
                env=self.environment() if env is None else env,
                **{"cwd": self.home, **ids, **options},
            )

    def corral_argv(self, *arguments: str) -> list[str]:
        return [*self.host, self.python, "-c", MAIN, str(self.package), *arguments]

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

    def run(
        self, *command: str, flags: tuple[str, ...] = (), **options
    ) -> subprocess.CompletedProcess:
        """`corral run FLAGS -- COMMAND`."""
        return self.corral("run", *flags, "--", *command, **options)

    def inside(self, code: str, *arguments: str, flags: tuple[str, ...] = (), **options) -> object:
        """Run Python `code` inside; it sets `answer`, which comes back. Fails loudly if it could not run."""
        script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
        done = self.run(self.python, "-c", script, *arguments, flags=flags, **options)
        assert done.returncode == 0, (done.returncode, done.stderr.decode(), done.stdout.decode())
        return json.loads(done.stdout.decode().splitlines()[-1])

    def outside(
        self, code: str, *arguments: str, host: list[str] | None = None, **options
    ) -> object:
        """The control: the same code as the same user, without walls."""
        script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
        process = self.popen(
            [*(host or []), self.python, "-c", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (process.returncode, err.decode())
        return json.loads(out.decode().splitlines()[-1])


def _target_of_root() -> int:
    from corral.platforms.linux.mechanisms.user_ids import unused_id

    return unused_id("uid_map")


def make_user(name: str, package: pathlib.Path, tier: str = "walled") -> User:
    home = package.parent / f"home-{name}-{tier}"
    if name == "root":
        user = User(name, 0, home, package, tier)
    elif os.geteuid() == 0:
        user = User(name, ORDINARY, home, package, tier)
    else:
        import pwd

        uid = os.geteuid()
        return User(name, uid, pathlib.Path(pwd.getpwuid(uid).pw_dir), package, tier)
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, user.owner, user.owner)
    return user
