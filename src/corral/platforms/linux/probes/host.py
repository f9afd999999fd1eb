"""List all Linux probes, in the order in which `corral doctor` shows them."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.plan.host import Finding, Host
from corral.platforms.doctor_lines import Line, format_lines
from corral.platforms.linux.probes import (
    cgroup,
    landlock,
    namespaces,
    network,
    processes,
    seccomp,
    socket_broker,
    surroundings,
)

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers

PROBES = (
    landlock.deny_file,
    landlock.deny_truncation,
    landlock.deny_signal,
    landlock.deny_foreign_socket,
    processes.adopt_orphan,
    seccomp.deny_call,
    seccomp.exec_with_cookie,
    seccomp.report_start,
    seccomp.limit_tasks,
    network.catch_connection,
    network.connect_into,
    socket_broker.connect_replaced,
    socket_broker.connect_same,
    processes.limit_descriptors,
    processes.count_processes,
    processes.measure_grandchild,
)
TIERS = (
    ("user_namespaces", "mount_namespace", "pid_namespace", "network_namespace", "seccomp"),
    ("landlock_wall", "guardian", "seccomp"),
)
"""The capabilities that `run` needs with namespaces, and those that it needs without them."""


def probe() -> tuple[Finding, ...]:
    return (*namespaces.probe(), *(item.find() for item in PROBES), *cgroup.probe())


def doctor_lines(host: Host) -> Sequence[Line]:
    labels = [*namespaces.LABELS, *(item.doctor_label() for item in PROBES)]
    others = [item for item in host.findings if not cgroup.is_cgroup(item)]
    lines = cgroup.doctor_lines([item for item in host.findings if cgroup.is_cgroup(item)])
    lines += [*format_lines(others, labels), *surroundings.doctor_lines(host)]
    if not any(all(host.has(name) for name in tier) for tier in TIERS):
        text = "Recommendation: use another host, because without walls corral refuses every run"
        lines.append(("advice", text, None))
    return lines
