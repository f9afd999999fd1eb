"""Run corral's commands for test_power_cut.py, and pause them at each call that changes a file.

This file is a program that runs in a child process, as the user of a test. It forks for each
command, and the fork has a seccomp filter that reports every file-changing call before the kernel
makes it. The test then decides what happens to the call: it succeeds, it fails, it writes only half
of its data, or the process is killed first.

`Disk` records the calls that succeed, and lists every state in which a power cut could leave the
disk.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import signal
import socket
import stat
import sys

PATHS = {
    "mkdir": (None, 0, 1), "mkdirat": (0, 1, 2), "rmdir": (None, 0, None), "unlink": (None, 0, None),
    "unlinkat": (0, 1, None), "chmod": (None, 0, 1), "fchmodat": (0, 1, 2), "open": (None, 0, 2),
    "openat": (0, 1, 3), "creat": (None, 0, 1), "truncate": (None, 0, None),
}  # fmt: skip
"""Calls on one path. The numbers are the positions of the directory, the path and the mode in the arguments."""
TWO_PATHS = {
    "rename": (None, 0, None, 1), "renameat": (0, 1, 2, 3), "renameat2": (0, 1, 2, 3),
    "link": (None, 0, None, 1), "linkat": (0, 1, 2, 3), "symlinkat": (None, 0, 1, 2),
    "symlink": (None, 0, None, 1),
}  # fmt: skip
ON_DESCRIPTOR = ("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "fchmod")
ALSO_WRITTEN = ("copy_file_range", "sendfile")
"""Calls that copy a file. They are denied, so that Python copies with `write` instead."""
UNKNOWN_TO_THE_MODEL = (
    "writev",
    "pwritev",
    "pwritev2",
    "truncate",
    "creat",
)
AT_FDCWD = 0xFFFFFF9C
O_CREAT, O_TRUNC = 0o100, 0o1000
PAGE = 4096


def filter_program() -> bytes:
    from corral.platforms.linux.mechanisms.seccomp_compiler import (
        ALLOW,
        NOTIFY,
        assemble_by_name,
        low,
    )

    names = {*PATHS, *TWO_PATHS, *ON_DESCRIPTOR, *ALSO_WRITTEN, *UNKNOWN_TO_THE_MODEL}
    named: dict[str, object] = dict.fromkeys(names, NOTIFY)
    for name, flags in (("open", 1), ("openat", 2)):
        creating = [((low(flags, bit, bit),), NOTIFY) for bit in (O_CREAT, O_TRUNC)]
        named[name] = (tuple(creating), ALLOW)
    return assemble_by_name(os.uname().machine, named, unknown=ALLOW, others=ALLOW)


class Call:
    """One reported call: its name, its paths, and the data to write."""

    def __init__(self, request) -> None:
        from corral.abi.linux_syscalls import TABLES

        names = {number: name for name, number in TABLES[os.uname().machine].items()}
        self.pid, self.arguments = request.pid, request.arguments
        self.name = names[request.number]
        self.paths: list[str] = []
        self.data, self.offset = b"", 0
        if self.name in PATHS:
            directory, path, _ = PATHS[self.name]
            self.paths = [self._path(directory, path)]
        elif self.name in TWO_PATHS:
            one, first, two, second = TWO_PATHS[self.name]
            self.paths = [self._path(one, first), self._path(two, second)]
        else:
            self.paths = [os.readlink(f"/proc/{self.pid}/fd/{self.arguments[0] & 0xFFFFFFFF}")]
        if self.name in ("write", "pwrite64"):
            self.data = self.memory(self.arguments[1], self.arguments[2])
            self.offset = self.arguments[3] if self.name == "pwrite64" else self._position()

    def mode(self) -> int:
        index = PATHS[self.name][2] if self.name in PATHS else 1
        return 0 if index is None else self.arguments[index] & 0o7777

    def flags(self) -> int:
        return self.arguments[2 if self.name == "openat" else 1]

    def memory(self, address: int, length: int) -> bytes:
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as file:
            file.seek(address)
            return file.read(length)

    def _path(self, directory: int | None, index: int) -> str:
        address, found = self.arguments[index], b""
        while b"\0" not in found:
            part = self.memory(address, PAGE - address % PAGE)
            found, address = found + part, address + len(part)
        fd = AT_FDCWD if directory is None else self.arguments[directory] & 0xFFFFFFFF
        base = os.readlink(f"/proc/{self.pid}/" + ("cwd" if fd == AT_FDCWD else f"fd/{fd}"))
        return os.path.normpath(os.path.join(base, os.fsdecode(found.partition(b"\0")[0])))

    def _position(self) -> int:
        with open(f"/proc/{self.pid}/fdinfo/{self.arguments[0]}") as file:
            text = file.read()
        known = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        appends = int(known["flags"], 8) & os.O_APPEND
        return os.stat(self.paths[0]).st_size if appends else int(known["pos"])

    def __str__(self) -> str:
        return f"{self.name} {' '.join(self.paths)}"


class Disk:
    """Model what a disk may contain after a power cut.

    fsync makes a file's content or a directory's entries durable. A directory may lose the changes
    since its last fsync. A file may lose all or half of the data written since its last fsync.
    Changes of modes are never lost.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.first: dict[int, tuple[int, object]] = {}
        self.names: dict[str, int] = {}
        self.steps: list[tuple] = []
        self._scan(root)

    def _scan(self, path: str) -> int:
        mode, number = os.lstat(path).st_mode, len(self.names)
        self.names[path] = number
        if stat.S_ISDIR(mode):
            self.first[number] = (mode, {})
            self.first[number] = (
                mode,
                {name: self._scan(os.path.join(path, name)) for name in sorted(os.listdir(path))},
            )
        elif stat.S_ISLNK(mode):
            self.first[number] = (mode, os.readlink(path))
        else:
            with open(path, "rb") as file:
                self.first[number] = (mode, file.read())
        return number

    def _new(self, path: str) -> int:
        self.names[path] = len(self.first) + sum(step[0] == "make" for step in self.steps)
        return self.names[path]

    def _entry(self, path: str) -> tuple[int, str]:
        return self.names[os.path.dirname(path)], os.path.basename(path)

    def record(self, call: Call) -> None:
        """Record the effect that a call is about to have on the disk. Record nothing if the call
        will fail.
        """
        name, path = call.name, call.paths[-1]
        if name in UNKNOWN_TO_THE_MODEL or name.startswith("symlink"):
            raise SystemExit(f"the model does not know {call}")
        known = path in self.names
        if name in ("mkdir", "mkdirat"):
            if not known:
                self.steps.append(("make", self._new(path), stat.S_IFDIR | call.mode(), {}))
                self.steps.append(("enter", *self._entry(path), self.names[path]))
        elif name in ("open", "openat"):
            if known and call.flags() & O_TRUNC:
                self.steps.append(("cut", self.names[path], 0))
            elif not known:
                self.steps.append(("make", self._new(path), stat.S_IFREG | call.mode(), b""))
                self.steps.append(("enter", *self._entry(path), self.names[path]))
        elif name in ("write", "pwrite64"):
            self.steps.append(("write", self.names[path], call.offset, call.data))
        elif name == "ftruncate":
            self.steps.append(("cut", self.names[path], call.arguments[1]))
        elif name in ("fsync", "fdatasync"):
            self.steps.append(("sync", self.names[path]))
        elif name in ("chmod", "fchmod", "fchmodat") and known:
            self.steps.append(("mode", self.names[path], call.mode()))
        elif name in ("unlink", "unlinkat", "rmdir") and known:
            self.steps.append(("leave", *self._entry(path)))
            del self.names[path]
        elif name.startswith(("rename", "link")):
            self._move(call.paths[0], path, keep=name.startswith("link"))

    def _move(self, old: str, new: str, *, keep: bool) -> None:
        if old not in self.names:
            return
        number = self.names[old]
        self.steps.append(("move", *self._entry(old), *self._entry(new), number, keep))
        moved = {
            one: at for one, at in self.names.items() if one == old or one.startswith(old + "/")
        }
        for one, at in moved.items():
            if not keep:
                del self.names[one]
            self.names[new + one[len(old) :]] = at

    def states(self):
        """Yield (description of the loss, {path: (mode, content)}) for each state in which a power
        cut could leave the disk.
        """
        seen = set()
        for end in range(len(self.steps) + 1):
            done = self.steps[:end]
            directories = sorted({one for step in done for one in self._touched(step)})
            cuts = [("killed", set(directories), 1.0), ("data lost", set(directories), 0.0)]
            cuts += [("data half lost", set(directories), 0.5), ("entries lost", set(), 1.0)]
            cuts += [(f"only directory {one} kept", {one}, 0.0) for one in directories]
            for what, kept, share in cuts:
                state = self._left(done, kept, share)
                key = json.dumps(
                    sorted((path, mode, repr(data)) for path, (mode, data) in state.items())
                )
                if key not in seen:
                    seen.add(key)
                    yield f"after {end} of {len(self.steps)} steps, {what}", state

    def whole(self) -> dict:
        """Return the files as they are if nothing is lost."""
        return self._left(
            self.steps, {one for step in self.steps for one in self._touched(step)}, 1.0
        )

    @staticmethod
    def _touched(step: tuple) -> list[int]:
        return {"enter": step[1:2], "leave": step[1:2], "move": step[1:4:2]}.get(step[0], [])

    def _left(self, done: list[tuple], kept: set[int], share: float) -> dict:
        synced = {step[1]: at for at, step in enumerate(done) if step[0] == "sync"}
        modes = {number: mode for number, (mode, _) in self.first.items()}
        content = {
            number: dict(data) if isinstance(data, dict) else data
            for number, (_, data) in self.first.items()
        }
        for at, step in enumerate(done):
            verb, number = step[0], step[1]
            if verb == "make":
                modes[number], content[number] = step[2], type(step[3])(step[3])
            elif verb == "mode":
                modes[number] = stat.S_IFMT(modes[number]) | step[2]
            elif verb in ("write", "cut"):
                certain = at < synced.get(number, -1)
                content[number] = self._written(content[number], step, 1.0 if certain else share)
            elif verb != "sync" and all(
                one in kept or at < synced.get(one, -1) for one in self._touched(step)
            ):
                self._change_entries(content, step)
        return dict(self._tree(0, self.root, modes, content))

    @staticmethod
    def _written(old: bytes, step: tuple, share: float) -> bytes:
        if step[0] == "cut":
            return old[: step[2]].ljust(step[2], b"\0") if share == 1.0 else old
        data = step[3][: int(len(step[3]) * share)]
        return (
            old[: step[2]].ljust(step[2], b"\0") + data + old[step[2] + len(data) :]
            if data
            else old
        )

    @staticmethod
    def _change_entries(content: dict, step: tuple) -> None:
        if step[0] == "enter":
            content[step[1]][step[2]] = step[3]
        elif step[0] == "leave":
            content[step[1]].pop(step[2], None)
        else:
            _, old, old_name, new, new_name, number, keep = step
            if not keep:
                content[old].pop(old_name, None)
            content[new][new_name] = number

    def _tree(self, number: int, path: str, modes: dict, content: dict):
        found = content[number]
        if not isinstance(found, dict):
            yield path, (modes[number], found)
            return
        yield path, (modes[number], None)
        for name, at in found.items():
            yield from self._tree(at, os.path.join(path, name), modes, content)


def snapshot(root: str) -> dict:
    return Disk(root).whole()


def restore(state: dict, root: str) -> None:
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o700)
    for name in os.listdir(root):
        path = os.path.join(root, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    for path, (mode, data) in state.items():
        if path == root:
            continue
        if isinstance(data, str):
            os.symlink(data, path)
        elif data is None:
            os.mkdir(path, 0o700)
        else:
            with open(path, "wb") as file:
                file.write(data)
            os.chmod(path, stat.S_IMODE(mode))
    for path, (mode, data) in reversed(state.items()):
        if data is None and path != root:
            os.chmod(path, stat.S_IMODE(mode))


def run(words: list[str], decide=None) -> tuple[int, str, str]:
    """Run a command in a fork, and return its code, stdout and stderr. `decide` gets each call that
    changes a file, and returns what happens to the call.
    """
    streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os._exit(_command(words, streams, theirs if decide else None))
    theirs.close()
    if decide:
        _answer(ours, pid, decide)
    ours.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for fd in streams:
        os.lseek(fd, 0, os.SEEK_SET)
        with open(fd, errors="replace") as file:
            texts.append(file.read())
    return code, *texts


def _command(words: list[str], streams: list[int], channel) -> int:
    from corral.abi import linux as abi
    from corral.cli import main

    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate([null, *streams]):
        os.dup2(fd, number)
    code = 99
    try:
        if channel is not None:
            abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            listener = abi.seccomp_set_filter(
                filter_program(), abi.SECCOMP_FILTER_FLAG_NEW_LISTENER
            )
            socket.send_fds(channel, [b"x"], [listener])
            os.close(listener)
        code = main(words)
    except Exception:  # noqa: BLE001 - the test reads the traceback
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _answer(channel, pid: int, decide) -> None:
    import select

    from corral.abi import linux_notifications as abi

    _, [listener], _, _ = socket.recv_fds(channel, 1, 1)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        [(_, events)] = poll.poll()
        if not events & select.POLLIN:
            break  # no process with the filter is left
        try:
            request = abi.receive(listener)
        except FileNotFoundError:
            continue
        call = Call(request) if request.pid == pid else None
        ours = call is not None and any(f"{path}/".startswith(ROOT + "/") for path in call.paths)
        answer = decide(call) if ours and call.name not in ALSO_WRITTEN else None
        if ours and call.name in ALSO_WRITTEN:
            answer = "EINVAL"
        try:
            if answer == "kill":
                os.kill(pid, signal.SIGKILL)
            elif answer == "done":
                abi.send(listener, request.id)
            elif answer == "half":
                abi.send(listener, request.id, value=_write_half(call))
            elif answer:
                abi.send(listener, request.id, error=getattr(errno, answer))
            else:
                abi.send(listener, request.id, flags=abi.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
        except FileNotFoundError:
            continue
    os.close(listener)


def _write_half(call: Call) -> int:
    """Write the first half of the data, as when a disk becomes full during a write."""
    from corral.abi import linux as abi

    pidfd = os.pidfd_open(call.pid)
    fd = abi.pidfd_getfd(pidfd, call.arguments[0])
    written = os.write(fd, call.data[: len(call.data) // 2])
    os.close(fd)
    os.close(pidfd)
    return written


class At:
    """Let all calls succeed except call `number`, which gets `answer`.

    After the answers "full" and "EROFS" (read-only), later calls get the same answer, because a
    disk stays full or read-only. With the number -1 all calls succeed.
    """

    def __init__(self, number: int, answer: str, disk: Disk | None = None) -> None:
        self.number, self.answer, self.disk = number, answer, disk
        self.calls: list[str] = []
        self.hit = ""

    def __call__(self, call: Call) -> str | None:
        here = len(self.calls) == self.number
        self.calls.append(str(call))
        if here or (self.hit and self.answer not in ("kill", "half")):
            self.hit = self.hit or str(call)
            answer = self.answer
            if answer == "half" and not call.data:
                return hurry(call)
            if answer == "full":
                # On a full disk, files can be removed but not created or extended.
                grows = call.name in ("write", "pwrite64", "mkdir", "mkdirat", "open", "openat")
                return "ENOSPC" if grows else hurry(call)
            return answer if here or answer == "EROFS" else hurry(call)
        if self.disk is not None:
            self.disk.record(call)
        return hurry(call)


def hurry(call: Call) -> str | None:
    """Skip a sync call and report success, because the call is slow and has no visible effect."""
    return "done" if call.name in ("fsync", "fdatasync") else None


def warm(words: list[str], start: dict) -> None:
    """Import the modules that a command needs, so that later forks do not have to import them."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _command(words, [os.open(os.devnull, os.O_WRONLY)] * 2, None)
        os.write(writing, json.dumps(sorted(sys.modules)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        names = json.loads(file.read() or "[]")
    os.waitpid(pid, 0)
    restore(start, ROOT)
    for name in names:
        if name.startswith("corral.") or name in (
            "json",
            "hashlib",
            "tomllib",
            "argparse",
            "zipfile",
        ):
            __import__(name)


def trial(job: dict) -> list[dict]:
    """Interrupt the job's `command` at each of its calls that change a file, in each way that the
    job lists in `how`. After each interruption run the job's commands in `after`.
    """
    start = snapshot(ROOT)
    for words in [job["command"], *job["after"]]:
        warm(words, start)
    if job["probed"]:
        # Without cached findings, corral's probes would be part of each trial. Therefore a first
        # run caches the findings, and each trial starts with this cache. The first run has the same
        # seccomp filter as the trials, because corral does not use findings from a run with another
        # filter.
        run(job["command"], At(-1, ""))
        found = os.path.join(ROOT, ".cache/corral/findings/")
        start |= {path: seen for path, seen in snapshot(ROOT).items() if path.startswith(found)}
        restore(start, ROOT)
    disk = Disk(ROOT)
    whole = At(-1, "", disk)
    first = {"what": "not stopped", **_ended(run(job["command"], whole), [])}
    results = [{**first, "calls": whole.calls, "modelled": shown(disk.whole())}]
    for what, state in disk.states() if "model" in job["how"] else ():
        restore(in_another_boot(state), ROOT)
        results.append({"what": f"model: {what}", **_ended((None, "", ""), job["after"])})
    for answer in job["how"]:
        for number in range(len(whole.calls) if answer != "model" else 0):
            restore(start, ROOT)
            at = At(number, answer)
            ended = run(job["command"], at)
            if at.hit:
                what = f"{answer} at {number}: {at.hit}"
                results.append({"what": what, **_ended(ended, job["after"])})
    return results


def in_another_boot(state: dict) -> dict:
    """Return the state after a reboot. corral's store trusts its records of verified packages only
    in the boot in which it wrote them, so replace their content.
    """
    return {
        path: (mode, b"another boot" if "/store/verified/" in path else data)
        for path, (mode, data) in state.items()
    }


def shown(state: dict) -> dict:
    return {
        os.path.relpath(path, ROOT): None if data is None else base64.b64encode(
            os.fsencode(data) if isinstance(data, str) else data
        ).decode()
        for path, (_, data) in state.items()
    }  # fmt: skip


def _ended(ended: tuple, after: list) -> dict:
    files = shown(snapshot(ROOT))
    then: list[tuple] = []
    for words in after:
        then.append(run(words, hurry))
        if words == after[-1] and then[-1][0] == 0:
            break  # this command worked, so the other commands are not needed
    code, out, err = ended
    end = shown(snapshot(ROOT))
    return {"code": code, "out": out, "err": err, "files": files, "after": then, "end": end}


if __name__ == "__main__":
    JOB = json.load(sys.stdin)
    sys.path.insert(0, JOB["package"])
    ROOT = JOB["root"]
    os.chdir(ROOT)
    print(json.dumps(trial(JOB)))
