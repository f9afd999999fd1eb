"""Prepare the mount and PID namespaces in which Wine runs. The arguments are TREES PREFIX
COMMAND...

All mounts become read-only, except for two tmpfs mounts. One is /tmp, where wineserver keeps its
socket. The other is /mnt, which contains the directories of TREES (`name=path,...`) and Wine's
prefix. If the archive PREFIX is given, the prefix is unpacked from it.

If root runs this script, the command runs as an unprivileged user. When the command ends, all its
processes end.
"""

from __future__ import annotations

import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from vm.enclosure import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    PR_SET_NO_NEW_PRIVS,
    become_nobody,
    call,
    read_only,
)

PLACE = "/mnt"
WORK = f"{PLACE}/prefix/drive_c/work"


def show(trees: str) -> None:
    read_only("/")
    call("mount", "tmpfs", PLACE, "tmpfs", MS_NOSUID | MS_NODEV, "size=100%,mode=1777")
    for tree in trees.split(","):
        name, source = tree.split("=")
        os.mkdir(f"{PLACE}/{name}")
        call("mount", source, f"{PLACE}/{name}", None, MS_BIND, None)
    # /tmp is mounted last, because it may cover the directories of TREES.
    call("mount", "tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=100%,mode=1777")


def enter(archive: str, command: list[str]) -> None:
    become_nobody()
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.mkdir(f"{PLACE}/prefix")
    if archive:
        subprocess.run(["tar", "-xf", archive, "-C", f"{PLACE}/prefix"], check=True)
        os.chdir(WORK)
    os.execvp(command[0], command)


def main() -> None:
    trees, archive, *command = sys.argv[1:]
    show(trees)
    child = os.fork()
    if child == 0:
        enter(archive, command)
    while True:
        pid, status = os.wait()
        if pid == child:
            sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
