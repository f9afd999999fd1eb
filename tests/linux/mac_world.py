"""Run corral's macOS backend on Linux, in a model of a Mac. Features that only Linux has are turned
off.

The model imitates two parts of a Mac. The process table comes from /proc instead of libproc. And a
Mac's kernel remembers which process forked a child (`p_puniqueid`), but Linux forgets it when the
parent ends. Therefore this process is the subreaper of the run, and counts every process that it
adopts as part of the run's tree.

This process exits with corral's exit code once all its descendants have ended.
"""

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
TICK = os.sysconf("SC_CLK_TCK")


class Procfs:
    """Stand in for the `ProcessTable` of `corral.platforms.macos`, with data from /proc. A
    process's unique id is made from its start time and its pid.
    """

    def __init__(self, world):
        self.world = world
        self.root = 0
        self.looks = os.environ.get("MAC_WORLD_LOOKS")
        self.forgets = os.environ.get("MAC_WORLD_FORGETS")

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
        if parent == self.world and not self.forgets and ids[pid] > self.root:
            # Adopted processes that are younger than the target are from its tree. Older ones are
            # corral's.
            return self.root
        return ids.get(parent, 0)

    def unique_id(self, pid):
        stat = self.stat(pid)
        number = self.number(pid, stat) if stat else 0
        self.root = self.root or number  # the first id that corral asks for is the target's
        return number

    def has_marker(self, pid, marker):
        """Return whether the process has the marker of the fake Seatbelt. The marker is an rlimit,
        which forked children inherit.
        """
        try:
            with open(f"/proc/{pid}/limits") as file:
                limits = [line.split() for line in file if line.startswith("Max realtime timeout")]
        except OSError:
            return False
        return bool(limits) and limits[0][3] == str(label(marker))

    def responsible(self, pid):
        return 0

    def count_own(self):
        """Return the number of the user's threads. corral adds this number to the value of
        RLIMIT_NPROC, which limits processes on a Mac, but threads on Linux.
        """
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        found = [self.stat(pid) for pid in pids if owner(pid) == os.getuid()]
        return sum(int(stat[17]) for stat in found if stat)

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
        """Do nothing: Linux does not report forks."""

    def fileno(self):
        return -1

    def drain(self):
        raise AssertionError("this table reports no forks, so there is nothing to read")

    @staticmethod
    def number(pid, stat):
        return int(stat[19]) << 22 | pid

    @staticmethod
    def stat(pid):
        """Return the fields of /proc/PID/stat that follow the name. Return an empty list if the
        process has ended.
        """
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            return []
        return [] if fields[0] in b"ZX" else fields


def owner(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def label(marker):
    return int(marker[-12:], 16) + 1


def substitute(world):
    """Patch `corral` in this process, so that it runs as it would on a Mac."""
    from corral.api import wire_format
    from corral.platforms import current, deadlines
    from corral.platforms.macos.backend import Macos

    table = Procfs(world)
    current.load = lambda: Macos(table)
    current.system = lambda: "darwin"
    wire_format.ACKNOWLEDGES = True
    grace = os.environ.get("MAC_WORLD_GRACE", deadlines.GRACE_SECONDS)
    deadlines.GRACE_SECONDS = float(grace)
    if os.environ.get("MAC_WORLD_SEATBELT"):
        play_seatbelt()


def play_seatbelt():
    """Replace Seatbelt with a fake that only marks the process, and let corral believe that
    Seatbelt works on this host.

    With the fake, tests can run the code around Seatbelt, but they cannot test its denials.
    """
    import resource

    from corral.plan import host
    from corral.platforms.macos.mechanisms.seatbelt import Seatbelt
    from corral.supervisor import findings

    def apply(step, _results):
        resource.setrlimit(resource.RLIMIT_RTTIME, (label(step.marker),) * 2)

    Seatbelt.apply, Seatbelt.verify = apply, lambda _step, _results: None
    seen = findings.current_host

    def current(**options):
        """Return the host with fake findings that count as proven. They are not cached."""
        real = seen(**options)
        played = ("seatbelt", "loopback_proxy", "disclaim")
        others = [item for item in real.findings if item.capability not in played]
        proven = [
            host.Finding(capability=name, status="proven", evidence="played") for name in played
        ]
        return host.Host(system=real.system, machine=real.machine, findings=(*others, *proven))

    findings.current_host = current


def everywhere(world):
    """Make the processes that the API starts call `substitute`, too."""
    from corral.api import child_python

    here = os.path.dirname(__file__)
    # The zygote does not inherit the caller's environment. Therefore the code that it runs sets the
    # model's variables.
    own = {name: value for name, value in os.environ.items() if name.startswith("MAC_WORLD_")}
    child_python.FIND_CORRAL += (
        f"import os; os.environ.update({own!r}); sys.path.append({here!r}); "
        f"import mac_world; mac_world.substitute({world}); "
    )


def play(world, arguments):
    substitute(world)
    if arguments[0] == "--api":
        everywhere(world)
        if os.environ.get("MAC_WORLD_SEATBELT"):
            from corral.api import launch as api
            from corral.supervisor import findings

            api._known_hosts[:] = [findings.current_host()]
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
        # Tests use `--bare` for sanity checks: run a program in this world, but without corral.
        if sys.argv[2] == "--bare":
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
        os.dup2(null, fd)  # close this process's copies of the target's stdin and stdout
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
