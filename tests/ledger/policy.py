"""The promises of docs/policy.md."""

from __future__ import annotations

from ledger.claim import Claim

ALLOWLIST = "tests/inside/test_allowlist.py"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="admit-config",
        sentence="No policy has this key, neither a server's nor one of yours: it says something about the host.",
        tests=(
            f"{ALLOWLIST}::test_no_policy_admits_ranges",
            "tests/unit/test_admission.py::test_a_file_that_others_can_write_admits_nothing",
        ),
        source="docs/policy.md",
    ),
)  # fmt: skip
