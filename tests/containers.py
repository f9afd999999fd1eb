"""Start podman containers for the `containers` rig: a small Debian with Python and corral's source.

The containers are as hardened as pods: they have no capabilities and cannot gain privileges, and
they have a read-only root and a tmpfs at /tmp. The rig has no Docker. Instead the tests run podman
with the profile `docker`: podman's seccomp profile without the calls that Docker's default profile
denies.
"""

from __future__ import annotations

import glob
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

import rigs
from users import SOURCE

PODMANS = pathlib.Path("/usr/share/containers/seccomp.json")
DENIED_BY_DOCKER = (
    "add_key bpf clone3 fanotify_init fsconfig fsmount fsopen fspick io_uring_enter io_uring_register io_uring_setup "
    "kcmp keyctl lookup_dcookie mount mount_setattr move_mount open_tree perf_event_open pidfd_getfd pivot_root "
    "process_madvise quotactl quotactl_fd request_key setdomainname sethostname setns syslog umount umount2 unshare "
    "userfaultfd"
)
NAMESPACE_FLAGS = 0x7E020000
ABSENT = 38
FETCH = "mcp-server-fetch==2026.10.24"
MAIN = "import sys; sys.path.insert(0, '/corral'); from corral.cli import main; sys.exit(main())"
SETTINGS = """
[containers]
default_ulimits = ["nofile=2048:2048", "nproc=1024:1024"]
base_hosts_file = "HOSTS"
[engine]
helper_binaries_dir = ["/usr/libexec/podman", "/usr/lib/podman", "/usr/bin"]
"""
HARDENED = (
    "--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp",
)  # fmt: skip


def dockers_profile() -> dict[str, object]:
    """Return podman's seccomp profile without the calls that Docker denies to a container without
    capabilities.
    """
    profile = json.loads(PODMANS.read_text())
    denied = {*DENIED_BY_DOCKER.split(), "clone"}
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in denied]
    masked = {"index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
    profile["syscalls"] += [
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [masked]},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ABSENT},
    ]
    return profile


class Podman:
    """Runs commands in new containers. The containers have their own storage and cgroups, which
    `close` removes.
    """

    def __init__(self) -> None:
        # podman refuses a runroot of more than 50 characters, so use a short path.
        self.folder = folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="pod-"))
        self.root = _clean_root()
        self.dockers = folder / "docker.json"
        (folder / "hosts").write_text("127.0.0.1 localhost allowed.test other.test\n")
        self.dockers.write_text(json.dumps(dockers_profile()))

    def argv(self, *words: str) -> list[str]:
        return [
            "podman", "--runtime=runc", "--cgroup-manager=cgroupfs", "--storage-driver=vfs",
            f"--root={self.folder}/storage", f"--runroot={self.folder}/run", f"--tmpdir={self.folder}/tmp", *words,
        ]  # fmt: skip

    def do(
        self, *words: str, input: bytes = b"", timeout: float = 300
    ) -> subprocess.CompletedProcess:
        """Run a podman command. Its containers get the limits in SETTINGS, which even an
        unprivileged engine can set.
        """
        settings = self.folder / "containers.conf"
        settings.write_text(SETTINGS.replace("HOSTS", str(self.folder / "hosts")))
        return subprocess.run(
            self.argv(*words), input=input, capture_output=True, timeout=timeout, check=False,
            env={**os.environ, "CONTAINERS_CONF": str(settings)},
        )  # fmt: skip

    def import_image(self, name: str, files: pathlib.Path) -> None:
        """Make an image from the small Debian of `_clean_root`, and add the files and links below
        `files`.
        """
        image = self.folder / "image.tar"
        subprocess.run(["tar", "-C", self.root, "--one-file-system", "-cf", image, "."], check=True)
        added = [
            str(path.relative_to(files))
            for path in files.rglob("*")
            if path.is_symlink() or path.is_file()
        ]
        words = ["tar", "-C", files, "--owner=0", "--group=0", "-rf", image]
        words += ["--verbatim-files-from", "-T", "-"]
        subprocess.run(words, input="\n".join(added), text=True, check=True)
        done = self.do("import", "--change=ENV PATH=/usr/local/bin:/usr/bin:/bin", str(image), name)
        image.unlink()
        assert done.returncode == 0, done.stderr.decode()

    def run(
        self,
        *command: str,
        uid: int,
        profile: str = "podman",
        options: tuple[str, ...] = HARDENED,
        network: str = "none",
    ) -> subprocess.CompletedProcess:
        confined = {"podman": [], "docker": [f"--security-opt=seccomp={self.dockers}"]}[profile]
        argv = self.argv(
            "run", "--rm", "-i", f"--cgroup-parent=/{self.folder.name}", f"--network={network}", "--ulimit=nofile=2048:2048", "--ulimit=nproc=1024:1024",
            f"--user={uid}:{uid}", "--env=HOME=/tmp", "--env=PYTHONDONTWRITEBYTECODE=1", f"--volume={SOURCE}:/corral:ro",
            *options, *confined, "--rootfs", f"{self.root}:O", *command,
        )  # fmt: skip
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=False
        )

    def corral(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        return self.run("/usr/bin/python3", "-c", MAIN, *arguments, **options)

    def close(self) -> None:
        for top in glob.glob(f"/sys/fs/cgroup/*/{self.folder.name}"):
            for path, _, _ in os.walk(top, topdown=False):
                _wait_for_processes(pathlib.Path(path, "cgroup.procs"))
                os.rmdir(path)
        subprocess.run(["rm", "-rf", self.folder], check=False)


def _wait_for_processes(listed: pathlib.Path) -> None:
    """Wait until the processes in the file `listed`, a cgroup's `cgroup.procs`, have ended.
    Podman's monitor of a container is one of them, and ends a moment after the container.
    """
    for pid in listed.read_text().split():
        try:
            ended = os.pidfd_open(int(pid))
        except ProcessLookupError:
            continue
        assert select.select([ended], [], [], 60)[0]
        os.close(ended)


def _clean_root() -> pathlib.Path:
    """Return the root directory of the small Debian in which `.ci/clean-root` tries the README. If
    the directory is missing, make it with that script.
    """
    script = SOURCE.parent / ".ci/clean-root"
    suite = "clean-root-bookworm-1"
    if not rigs.cache(suite).exists():
        subprocess.run([script, "stranger", "true"], check=True, capture_output=True)
    return rigs.cache(suite) / "root"


def fetch_server() -> pathlib.Path:
    """Return a directory with a published server and its dependencies, installed for the Python in
    the containers.
    """
    made = rigs.cache(f"container-{FETCH}")
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            wheels = (
                "--only-binary=:all:",
                "--python-version=3.11",
                "--implementation=cp",
                "--platform=manylinux2014_x86_64",
            )
            argv = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                *wheels,
                f"--target={folder}/it",
                FETCH,
            ]
            subprocess.run(argv, check=True, capture_output=True)
            os.rename(f"{folder}/it", made)
    return made
