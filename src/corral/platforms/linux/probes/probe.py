"""Define what a probe is: a test of one capability, with its label for `corral doctor`."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.abi import linux as abi
from corral.plan.host import Finding
from corral.platforms.doctor_lines import Label
from corral.platforms.linux import init
from corral.platforms.linux.mechanisms import user_ids
from corral.platforms.posix import disposable
from corral.record import record, replace

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


@record
class Probe:
    """Tests whether this host has one capability.

    `attempt` runs in a disposable child and returns the evidence. It checks that an operation is
    denied, and that the same operation succeeds where it is allowed.

    `doctor` shows `label`, followed by `word` if the capability is proven, or by `hint` if it is
    absent. `hints` contains pairs (error text, hint) with special hints for some errors.
    """

    attempt: Callable[[], str]
    capability: str
    label: str
    hint: str = ""
    word: str = "available"
    hints: tuple[tuple[str, str], ...] = ()

    def find(self) -> Finding:
        found = disposable.probe(self.capability, self.attempt, self.hint)
        return replace(found, hint=dict(self.hints).get(found.evidence, found.hint))

    def doctor_label(self) -> Label:
        return self.capability, self.label, self.word


def start_in_namespaces(flags: int, act: Callable[[], object]) -> int:
    """Start a child that calls `act` in new namespaces, and return its pid.

    The child's user ids and group ids are mapped as in a target's user namespace.
    """
    go_read, go_write = os.pipe()
    pid, pidfd = abi.clone(flags)
    if pid == 0:
        init.follow_supervisor()
        os.close(go_write)
        if os.read(go_read, 1) == b"\0":  # end of file means that the parent has failed
            act()
            os._exit(0)
        os._exit(1)
    os.close(pidfd)
    user_ids.write_maps(user_ids.choose(os.geteuid(), os.getegid()), pid)
    os.write(go_write, b"\0")
    return pid


def probe(
    capability: str, label: str, hints: tuple[tuple[str, str], ...] = (), **words: str
) -> Callable[[Callable[[], str]], Probe]:
    """Return a decorator that turns a function into a probe.

    `words` may set the probe's `hint` and `word`.
    """
    return lambda attempt: Probe(
        attempt=attempt, capability=capability, label=label, hints=hints, **words
    )
