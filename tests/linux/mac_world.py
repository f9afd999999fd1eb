"""A Linux host plays a Mac: corral with its macOS backend, and everything that only Linux has left out.

Two things of a Mac are played. libproc's table is read from /proc. And a fork is remembered by the child for
ever there (`p_puniqueid`), while Linux forgets the parent of an orphan: this process is the subreaper of the
run, so whoever is adopted by it must have been forked by somebody in the run's tree.

It ends with corral's exit code, but not before everything is gone that was started below it.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
TICK = os.sysconf("SC_CLK_TCK")


class Procfs:
    """What `corral.platforms.macos.process_table.ProcessTable` answers on a Mac. Unique ids are start time and number."""

    def __init__(self, world):
        self.world = world
        self.root = 0
        self.looks = os.environ.get("MAC_WORLD_LOOKS")

    def processes(self):
        from corral.platforms.macos.process_table import Process

        if self.looks:
            with open(self.looks, "ab") as file:
                file.write(b".")
        found = {
            pid: stat
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if (stat := self.stat(pid))
        }
        ids = {pid: self.number(pid, stat) for pid, stat in found.items()}
        return [
            Process(pid=pid, unique=ids[pid], parent=self.parent(pid, int(stat[1]), ids))
            for pid, stat in found.items()
        ]

    def parent(self, pid, parent, ids):
        if parent == self.world and ids[pid] > self.root:
            return self.root  # what is older than the target is corral's
        return ids.get(parent, 0)

    def unique_id(self, pid):
        stat = self.stat(pid)
        number = self.number(pid, stat) if stat else 0
        self.root = self.root or number  # the first that is asked for is the target
        return number

    def group(self, leader):
        found = {pid: self.stat(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
        return [pid for pid, stat in found.items() if stat and int(stat[2]) == leader]

    def usage(self, pid):
        from corral.platforms.contract import Usage

        stat = self.stat(pid)
        if not stat:
            return Usage()
        with open(f"/proc/{pid}/status", "rb") as file:
            kilobytes = [
                int(line.split()[1])
                for line in file
                if line.startswith((b"RssAnon:", b"RssShmem:"))
            ]
        return Usage(
            cpu=sum(map(int, stat[11:15])) / TICK, memory=sum(kilobytes) * 1024, tasks=int(stat[17])
        )

    def follow(self, pid):
        """Linux tells nobody of forks."""

    def fileno(self):
        return -1

    def drain(self):
        raise AssertionError("there was nothing to read")

    @staticmethod
    def number(pid, stat):
        return int(stat[19]) << 22 | pid

    @staticmethod
    def stat(pid):
        """The fields behind the name; nothing for one that has ended."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            return []
        return [] if fields[0] in b"ZX" else fields


def substitute(world):
    """From here on `corral` in this process believes that it is on a Mac."""
    from corral.platforms import current, deadlines
    from corral.platforms.macos.backend import Macos

    table = Procfs(world)
    current.load = lambda: Macos(table)
    current.system = lambda: "darwin"
    grace = os.environ.get("MAC_WORLD_GRACE", deadlines.GRACE_SECONDS)
    deadlines.GRACE_SECONDS = float(grace)
    if os.environ.get("MAC_WORLD_SEATBELT"):
        play_seatbelt()


def play_seatbelt():
    """Its steps do nothing, and the findings say that it holds: for what stands behind it, never for what it walls off."""
    from corral.plan import host
    from corral.platforms.macos.mechanisms.seatbelt import Seatbelt
    from corral.supervisor import findings

    Seatbelt.apply = Seatbelt.verify = lambda _step, _results: None
    seen = findings.current_host

    def current(**options):
        """Past the cache: what is played here is nothing to be remembered."""
        real = seen(**options)
        played = ("seatbelt", "door")
        others = [item for item in real.findings if item.capability not in played]
        proven = [
            host.Finding(capability=name, status="proven", evidence="played") for name in played
        ]
        return host.Host(system=real.system, machine=real.machine, findings=(*others, *proven))

    findings.current_host = current


def everywhere(world):
    """What the API starts in processes of its own is on the Mac too."""
    from corral.api import own_python

    here = os.path.dirname(__file__)
    own_python.FIND_CORRAL += (
        f"sys.path.append({here!r}); import mac_world; mac_world.substitute({world}); "
    )


def play(world, arguments):
    substitute(world)
    if arguments[0] == "--api":
        everywhere(world)
        if os.environ.get("MAC_WORLD_SEATBELT"):
            from corral.api import launch as api
            from corral.supervisor import findings

            api._seen[:] = [findings.current_host()]
        exec(arguments[1], {})
        return 0
    from corral.cli import main

    return main(arguments)


def run():
    sys.path.insert(0, sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    world = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        if sys.argv[2] == "--bare":  # the control: a program without corral
            os.execv(sys.argv[3], sys.argv[3:])
        sys.exit(play(world, sys.argv[2:]))
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    if file := os.environ.get("MAC_WORLD_PID"):
        with open(f"{file}.new", "w") as out:
            out.write(str(child))
        os.rename(f"{file}.new", file)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)  # the streams are corral's and its target's
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            sys.exit(code)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


if __name__ == "__main__":
    run()
