"""Start corral as the users of these tests: root and an ordinary user, with and without namespaces.

`corral` runs the command line in a real child process. If root runs the tests, each test also runs
as an ordinary user, from a world-readable copy of the package. If an ordinary user runs them, they
run only as that user.

The tier of a user says what the host forbids. In the tier `walled` it forbids nothing. In the other
tiers the tests start corral under a seccomp filter. In `bare` this filter forbids new namespaces
and mounts, as in containers. In `replaced` it also forbids pidfd_getfd, as Docker's filter does. In
`listened` it is the filter of `bare` with a seccomp listener. The kernel allows only one listener,
so corral cannot add its own.
"""

from __future__ import annotations

import contextlib
import functools
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
CALL = "from corral.cli import main; sys.exit(main())"
MAIN = f"import sys; sys.path.insert(0, sys.argv.pop(1)); {CALL}"
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
tier = sys.argv.pop(1)
if tier == "replaced":
    rules[table["pidfd_getfd"]] = denied
spaces = (abi.CLONE_NEWUSER, abi.CLONE_NEWNS, abi.CLONE_NEWPID, abi.CLONE_NEWNET)
rules[table["clone"]] = (tuple(((seccomp_compiler.low(0, bit, bit),), denied) for bit in spaces), seccomp_compiler.ALLOW)
limit = 0x40000000 if machine == "x86_64" else None
program = seccomp_compiler.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=absent, number_limit=limit)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
if tier == "listened":
    os.set_inheritable(abi.seccomp_set_filter(program, abi.SECCOMP_FILTER_FLAG_NEW_LISTENER), True)
else:
    abi.seccomp_set_filter(program)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def signals_at_their_defaults():
    """Restore the default actions of SIGHUP, SIGINT and SIGQUIT. A shell or nohup may have made
    this process ignore these signals, and corral would then ignore them too.
    """
    ignored = [number for number in IGNORABLE if signal.getsignal(number) == signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        ignored = []  # only the main thread may set signal handlers
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


class User:
    """A user who runs corral. Processes start as this user, in the user's home.

    `owner` is the user id of the target. Without namespaces root's targets have their own user id.
    A test may set `grace_seconds`, the time between SIGTERM and SIGKILL, which is otherwise five
    seconds.
    """

    grace_seconds: float | None = None

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
        self.owner = uid or (_target_of_root() if tier != "walled" else 0)
        self.python = SYSTEM_PYTHON if self.owner and has_system_python() else sys.executable

    @property
    def host(self) -> list[str]:
        """Return a command prefix that installs the seccomp filter of the user's tier."""
        if self.tier == "walled":
            return []
        return [self.python, "-c", NO_NAMESPACES, str(self.package), self.tier]

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
        main = MAIN
        if self.grace_seconds is not None:
            change = f"deadlines.GRACE_SECONDS = {self.grace_seconds}"
            main = f"{MAIN[: -len(CALL)]}from corral.platforms import deadlines; {change}; {CALL}"
        return [*self.host, self.python, "-c", main, str(self.package), *arguments]

    def corral(
        self,
        *arguments: str,
        input: bytes = b"",
        env: dict[str, str] | None = None,
        timeout: float = 60,
        **options,
    ) -> subprocess.CompletedProcess:
        """Run `corral ARGUMENTS` to completion and capture the output."""
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
        """Run `corral run FLAGS -- COMMAND`."""
        return self.corral("run", *flags, "--", *command, **options)

    def inside(self, code: str, *arguments: str, flags: tuple[str, ...] = (), **options) -> object:
        """Run Python `code` in the sandbox and return the `answer` that it sets. Fail if the code could not run."""
        script = f"import json, os, sys\nanswer = None\n{code}\nprint(json.dumps(answer))"
        done = self.run(self.python, "-c", script, *arguments, flags=flags, **options)
        assert done.returncode == 0, (done.returncode, done.stderr.decode(), done.stdout.decode())
        return json.loads(done.stdout.decode().splitlines()[-1])

    def outside(
        self, code: str, *arguments: str, host: list[str] | None = None, **options
    ) -> object:
        """Run the same code as the same user, but without a sandbox, as a sanity check."""
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


@functools.cache
def has_system_python() -> bool:
    """Return whether the system's Python is new enough.

    Some tests need it, because other users may have no permission to read the tests' own Python.
    """
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    return os.access(SYSTEM_PYTHON, os.X_OK) and not subprocess.call([SYSTEM_PYTHON, "-c", code])


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
        user = User(name, os.geteuid(), home, package, tier)
    if not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, user.uid, user.uid)
        if user.owner != user.uid:
            home.chmod(0o711)  # root's target needs search permission on the home
    return user
