"""Prepare a virtual machine for systemd (`systemd_init.py JOB`), and run its command later
(`systemd_init.py JOB session`).

The first call is PID 1: it puts an overlay on the image, writes the units and then executes
systemd. The second call is a service: it logs the user in, so that logind makes a session and a
user manager. It then runs the command in this session, and powers off.
"""

import json
import os
import shlex
import subprocess
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import init

UNITS = "/etc/systemd/system"
SERVICE = """\
[Unit]
Wants=dbus.socket systemd-logind.service systemd-user-sessions.service
After=basic.target dbus.socket systemd-logind.service systemd-user-sessions.service
[Service]
Type=exec
StandardInput=null
StandardOutput=null
StandardError=null
ExecStart=/usr/bin/python3 -IS /srv/systemd_init.py /srv/job.json session
"""
TARGET = """\
[Unit]
Requires=basic.target
Wants=rig.service
AllowIsolate=yes
"""
# Mask these units, because the machine has no devices to wait for and no clock to set.
MASKED = (
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
    "systemd-timesyncd.service",
    "systemd-remount-fs.service",
    "systemd-journal-flush.service",
    "systemd-update-utmp.service",
    "systemd-binfmt.service",
    "systemd-modules-load.service",
    "systemd-hwdb-update.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
)


def write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_units(delegate: "str | None") -> None:
    write(f"{UNITS}/rig.service", SERVICE)
    write(f"{UNITS}/rig.target", TARGET)
    if delegate is not None:
        write(f"{UNITS}/user@.service.d/delegate.conf", f"[Service]\nDelegate={delegate}\n")
    for name in MASKED:
        path = f"{UNITS}/{name}"
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink("/dev/null", path)


def become_systemd(job: "dict") -> None:
    init.load_modules(job["modules"])
    init.enter_overlay(job["root"], job["stage"])
    write_units(job["delegate"])
    write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    if job["as_user"]:
        name = init.home(job["as_user"]).rpartition("/")[2]
        write(f"/var/lib/systemd/linger/{name}", "")
    os.environ.clear()
    os.execv("/lib/systemd/systemd", ["systemd", "--unit=rig.target", "--show-status=0"])


def run(job: "dict") -> int:
    """Run the job's command with `runuser`, so that PAM and logind make a session and the user's bus."""
    words = [f"{name}={value}" for name, value in job["env"].items()]
    argv = ["env", *words, *job["command"]]
    if job["as_user"]:
        name = init.home(job["as_user"]).rpartition("/")[2]
        script = f"exec {shlex.join(argv)}"
        argv = ["runuser", "--login", name, "--shell", "/bin/sh", "--command", script]
    return subprocess.run(argv, check=False).returncode


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    try:
        if sys.argv[2:] != ["session"]:
            become_systemd(job)
        init.take_output(job["output"])
        init.set_sysctls(job["sysctls"])
        returncode = run(job)
        os.write(1, f"\n{job['token']} {returncode}\n".encode())
    except BaseException:  # noqa: BLE001 - no other process would print it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        init.libc.reboot(init.RB_POWER_OFF)


if __name__ == "__main__":
    main()
