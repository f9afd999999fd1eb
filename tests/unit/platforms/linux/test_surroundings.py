"""Test how corral finds out why namespaces are forbidden, by looking at files of the kernel and of
container engines.
"""

from __future__ import annotations

import errno
import os
import sys

import pytest

from corral.plan.host import Finding, Host

if sys.platform == "linux":
    from corral.platforms.linux.probes import namespaces, surroundings
    from corral.platforms.posix import disposable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

OVERLAY = b"1 2 0:5 / / rw - overlay overlay rw,lowerdir=%s\n"
LANDLOCK = ("landlock_wall", "guardian", "seccomp")


@pytest.fixture
def files(monkeypatch):
    """Replace the host's files with a table. Return the table, so that a test can add files to it."""
    found: dict[str, bytes] = {}
    monkeypatch.setattr(surroundings, "_read", lambda path: found.get(path, b""))
    monkeypatch.setattr(os.path, "exists", found.__contains__)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    return found


def host(*proven: str) -> Host:
    findings = [Finding(capability=name, status="proven", evidence="") for name in proven]
    return Host(system="linux", machine="x86_64", findings=tuple(findings))


def line(*proven: str) -> str:
    lines = surroundings.doctor_lines(host(*proven))
    return lines[0][1] if lines else ""


def test_no_cause_of_missing_features_is_named_on_an_ordinary_host(files):
    assert line(*LANDLOCK) == ""
    assert surroundings.find().hint == "allow unprivileged user namespaces"


def test_apparmor_is_distinguished_from_a_container(files, monkeypatch):
    """Compare an Ubuntu host with a container on an Ubuntu host. Both have the same sysctl set, so
    only the container engine's files tell them apart.
    """
    files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = b"1\n"
    assert line(*LANDLOCK).startswith(
        "AppArmor: it does not let programs without a profile create namespaces"
    )
    files["/.dockerenv"] = b""
    assert line(*LANDLOCK).startswith("Container (Docker): its engine forbids namespaces")
    del files["/.dockerenv"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # AppArmor does not restrict root
    assert line(*LANDLOCK) == ""


@pytest.mark.parametrize(
    ("path", "content", "engine"),
    [
        ("/run/.containerenv", b"", "podman"),
        ("/.dockerenv", b"", "Docker"),
        ("/proc/self/mountinfo", OVERLAY % b"/var/lib/containerd/io.containerd/1/fs", "containerd"),
        ("/proc/self/mountinfo", OVERLAY % b"/var/lib/docker/overlay2/l/AB", "Docker"),
        ("/proc/self/mountinfo", OVERLAY % b"/var/lib/containers/storage/overlay", "podman"),
        ("/proc/self/mountinfo", OVERLAY % b"/run/live/rootfs", ""),
        ("/proc/self/mountinfo", b"1 2 0:5 / /var/lib/docker/x rw - overlay overlay rw\n", ""),
    ],
)
def test_engines_are_recognized(files, path, content, engine):
    files[path] = content
    assert surroundings.find_engine() == engine


def test_an_engine_is_recognized_by_its_variable_or_its_filter_alone(files, monkeypatch):
    files["/proc/self/status"] = b"Name:\tx\nSeccomp:\t2\n"
    assert line(*LANDLOCK).startswith("Outer sandbox: its seccomp filter forbids namespaces, so ")
    monkeypatch.setenv("container", "lxc")
    assert line(*LANDLOCK).startswith("Container (lxc): its engine forbids namespaces, so ")


def test_a_pod_is_recognized(files, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert line(*LANDLOCK).startswith("Container (Kubernetes)")
    assert surroundings.find().space_hint == "set `emptyDir.sizeLimit` on the volume at /tmp"


@pytest.mark.parametrize("name", ["user.max_user_namespaces", "kernel.unprivileged_userns_clone"])
def test_a_sysctl_that_forbids_namespaces_is_named_as_the_cause(files, name):
    files["/proc/sys/" + name.replace(".", "/")] = b"0\n"
    assert line(*LANDLOCK).startswith(f"Sysctl: {name} = 0 forbids namespaces, so ")
    assert name in surroundings.find().hint


def test_the_line_about_a_container_names_only_the_controls_that_it_prevents(files):
    files["/.dockerenv"] = b""
    assert "`network.allow` and `network.listen` are refused" in line(*LANDLOCK)
    assert "network" not in line(*LANDLOCK, "socket_broker")
    assert "disk space is not limited" in line(*LANDLOCK)
    assert line(*LANDLOCK, "mount_namespace") == ""
    assert line("seccomp") == ""  # the verdict already says that no run is possible


def test_the_hint_about_apparmor_names_neither_a_sysctl_nor_sudo(files):
    files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = b"1\n"
    found = surroundings.find()
    assert "sysctl" not in found.hint + found.space_hint
    assert "sudo" not in found.hint + found.space_hint


@pytest.mark.parametrize("version", range(10))
def test_landlock_is_called_a_wall_only_from_abi_3_on(files, monkeypatch, version):
    """Require ABI 3, the first that can deny truncation, which the probe of `landlock_wall` tries.
    Version 0 means a kernel without Landlock.
    """

    def landlock_abi() -> int:
        if not version:
            raise OSError(errno.ENOSYS, "Function not implemented")
        return version

    monkeypatch.setattr(surroundings.abi, "landlock_abi", landlock_abi)
    for path, text in (
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", b"1\n"),
        ("/.dockerenv", b""),
    ):
        files[path] = text
        hint = surroundings.find().hint
        assert ("Landlock and seccomp are the walls" in hint) == (version >= 3)
        assert ("Linux 6.2" in hint) == (version < 3)


@pytest.mark.parametrize(
    ("mark", "hint"), [("", "a newer kernel: Linux 5.12"), ("/.dockerenv", "start corral")]
)
def test_a_kernel_without_a_system_call_is_distinguished_from_a_container(
    files, monkeypatch, mark, hint
):
    """Imitate Linux 5.10, which lacks mount_setattr. In a container, the engine's filter may cause
    the same error, so in a container the hint must not suggest a newer kernel.
    """
    files[mark] = b""
    answers = iter(
        [(False, "root_filesystem: Function not implemented (mount_setattr)"), (True, "")]
    )
    monkeypatch.setattr(disposable, "observe", lambda _attempt: next(answers))
    user, *others = namespaces.probe()
    assert (user.status, user.hint) == ("proven", "")
    assert all(finding.hint.startswith(hint) for finding in others[:-1])
