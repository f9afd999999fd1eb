"""Collect the ledger: every promise in README and docs, its page, and the tests that check it.

In the docs a promise is a sentence with an anchor after it: `<!-- claim: id -->`.
`unit/test_claims.py` compares the docs, the ledger and the names of the tests. If no test checks a
promise, the field `where` of its `Claim` says so.

`ledger/` has a module for each page, and three for docs/SECURITY.md. `python3 tests/claims.py`
writes the tables of docs/SECURITY.md.
"""

from __future__ import annotations

import pathlib
import re

from ledger import (
    clients,
    evidence,
    export,
    guard,
    network,
    policy,
    profiles,
    python,
    readme,
    security,
    security_macos,
    security_windows,
    servers,
)
from ledger.claim import ANY, LINUX, SECURITY, Claim

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANCHOR = re.compile(r"<!-- claim: ([a-z0-9-]+) -->")
TABLE = re.compile(r"(<!-- table: (?P<name>[a-z]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
HEADS = {
    "stopped": "| a target cannot | because | tried by |",
    "limits": "| limit | enforced by | tried by |",
    "refused": "| asked for | what happens | tried by |",
}
EVIDENCE = {"macos": "darwin", "windows": "windows"}
CLAIMS: tuple[Claim, ...] = (
    *clients.CLAIMS,
    *export.CLAIMS,
    *guard.CLAIMS,
    *network.CLAIMS,
    *policy.CLAIMS,
    *profiles.CLAIMS,
    *python.CLAIMS,
    *readme.CLAIMS,
    *security.CLAIMS,
    *security_macos.CLAIMS,
    *security_windows.CLAIMS,
    *servers.CLAIMS,
)


def render(table: str) -> str:
    """Return the rows of one table in docs/SECURITY.md."""
    if table in EVIDENCE:
        return evidence.format_table(EVIDENCE[table])
    lines = [HEADS[table], "|---|---|---|"]
    lines += [
        f"| {claim.sentence} <!-- claim: {claim.id} --> | {claim.how} | {_tried(claim)} |"
        for claim in CLAIMS
        if claim.table == table
    ]
    return "\n".join(lines) + "\n"


def _tried(claim: Claim) -> str:
    """Return the number of a claim's tests, as HTML that shows their names after a click. The
    table's rows then stay short.
    """
    names = [f"`{test.rpartition('::')[2]}`" for test in claim.tests]
    count = f"{len(names)} test" + "s" * (len(names) != 1)
    place = f", {claim.where}" if claim.where not in {LINUX, ANY} else ""
    return f"<details><summary>{count}{place}</summary>{'<br>'.join(names)}</details>"


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + render(found["name"]) + found[3], text)


def main() -> None:
    file = ROOT / SECURITY
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
