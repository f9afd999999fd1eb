"""Format findings as the lines of `corral doctor`, the same way on every system."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from corral.plan.host import Finding
from corral.platforms.evidence import READ, format_basis

if TYPE_CHECKING:
    from corral.plan.host import System

Label = tuple[str, str, str]
"""(capability, its name in `doctor`, the word that `doctor` shows if it is proven)"""
Line = tuple[str, str, Finding | None]
"""(status, text, the finding with the evidence and the hint for this text)"""

EXPLANATION = (
    f"[{READ}]: corral's own tests have not yet run on a machine like this one; the mark on the "
    "left shows what the probe has just found here"
)


def format_lines(
    findings: Iterable[Finding], labels: Iterable[Label], *, show_evidence: bool = True
) -> list[Line]:
    """Return a line for each finding. With `show_evidence`, say why a capability is absent."""
    known = {capability: (label, word) for capability, label, word in labels}
    lines: list[Line] = []
    for item in findings:
        label, word = known.get(item.capability, (item.capability, "available"))
        if item.status == "proven":
            lines.append(("proven", f"{label}: {word}", item))
        else:
            why = f" ({item.evidence})" if show_evidence else ""
            lines.append(("absent", f"{label}: NOT available{why}", item))
    return lines


def add_basis(lines: Iterable[Line], system: "System") -> list[Line]:
    """Append to each line how its capability is known to work, such as "[seen under Wine]".

    If any line says "read", add a last line that explains this word.
    """
    found: list[Line] = []
    for status, text, finding in lines:
        basis = format_basis(system, finding.capability) if finding else ""
        found.append((status, f"{text} [{basis}]" if basis else text, finding))
    if any(text.endswith(f"[{READ}]") for _, text, _ in found):
        found.append(("advice", EXPLANATION, None))
    return found
