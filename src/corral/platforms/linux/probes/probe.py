"""A probe of one capability, with what `corral doctor` calls it.

A probe does the thing in a disposable child and sees both the denial and its control. Its words are
the evidence.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from corral.plan.host import Finding
from corral.platforms.doctor_lines import Label
from corral.platforms.posix import disposable
from corral.record import record

assert sys.platform == "linux" or not TYPE_CHECKING  # noqa: S101 - for type checkers


@record
class Probe:
    """`word` is what `doctor` says of a proven capability; `hint` is what helps if it is absent."""

    capability: str
    label: str
    attempt: Callable[[], str]
    hint: str
    word: str

    def find(self) -> Finding:
        proven, evidence = disposable.observe(self.attempt)
        return Finding(
            capability=self.capability,
            status="proven" if proven else "absent",
            evidence=evidence,
            hint="" if proven else self.hint,
        )

    def doctor_label(self) -> Label:
        return self.capability, self.label, self.word


def probe(
    capability: str, label: str, *, hint: str = "", word: str = "available"
) -> Callable[[Callable[[], str]], Probe]:
    """Make a probe of a function that tries a capability."""

    def decorate(attempt: Callable[[], str]) -> Probe:
        return Probe(capability=capability, label=label, attempt=attempt, hint=hint, word=word)

    return decorate
