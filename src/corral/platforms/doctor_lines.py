"""Render findings as the lines of `corral doctor`, for every system alike."""

from collections.abc import Iterable

from corral.plan.host import Finding

Label = tuple[str, str, str]
"""(capability, what `doctor` calls it, the word for it when it is proven)"""
Line = tuple[str, str, Finding | None]
"""(status, text, the finding whose evidence and hint belong to the text)"""


def format_lines(
    findings: Iterable[Finding], labels: Iterable[Label], *, show_evidence: bool = True
) -> list[Line]:
    """Return a line for each finding, in the order of the findings.

    A capability without a label is shown by its own name. `show_evidence` puts the evidence of an
    absence into the text.
    """
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
