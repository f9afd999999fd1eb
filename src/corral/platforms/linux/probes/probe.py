"""A probe of one capability, with what `corral doctor` calls it."""

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
    """`attempt` runs in a disposable child, sees the denial and its control, and returns evidence.

    `label` and `word` are what `doctor` says of it; `hint` is what helps if it is absent.
    """

    attempt: Callable[[], str]
    capability: str
    label: str
    hint: str = ""
    word: str = "available"

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


def probe(capability: str, label: str, **words: str) -> Callable[[Callable[[], str]], Probe]:
    """Make a probe of the function below; `words` are `hint` and `word` of the probe."""
    return lambda attempt: Probe(attempt=attempt, capability=capability, label=label, **words)
