"""The ledger: every promise in README and docs, where it is written, and the tests that hold it.

In the docs a promise is a sentence with an anchor behind it: `<!-- claim: id -->`. `unit/test_claims.py` holds both to
each other and every name of a test to a real one. A promise that no test tries says so in `where`.
One module a page is in `ledger/`. The tables in docs/SECURITY.md are made from it: `python3 tests/claims.py` writes them.
"""

from __future__ import annotations

import pathlib
import re

from ledger import clients, network, policy, profiles, python, readme, security, servers
from ledger.claim import ANY, LINUX, SECURITY, Claim

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANCHOR = re.compile(r"<!-- claim: ([a-z0-9-]+) -->")
TABLE = re.compile(r"(<!-- table: (?P<name>[a-z]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
HEADS = {
    "stopped": "| a target cannot | because | tried by |",
    "limits": "| limit | held by | tried by |",
    "refused": "| asked for | what happens | tried by |",
}
CLAIMS: tuple[Claim, ...] = (
    *clients.CLAIMS,
    *network.CLAIMS,
    *policy.CLAIMS,
    *profiles.CLAIMS,
    *python.CLAIMS,
    *readme.CLAIMS,
    *security.CLAIMS,
    *servers.CLAIMS,
)


def render(table: str) -> str:
    """The rows of one table in docs/SECURITY.md."""
    lines = [HEADS[table], "|---|---|---|"]
    lines += [
        f"| {claim.sentence} <!-- claim: {claim.id} --> | {claim.how} | {_tried(claim)} |"
        for claim in CLAIMS
        if claim.table == table
    ]
    return "\n".join(lines) + "\n"


def _tried(claim: Claim) -> str:
    names = [f"`{test.rpartition('::')[2]}`" for test in claim.tests]
    said = [claim.where] if claim.where not in {LINUX, ANY} else []
    return "<br>".join([*names, *said])


def with_tables(text: str) -> str:
    return TABLE.sub(lambda found: found[1] + render(found["name"]) + found[3], text)


def main() -> None:
    file = ROOT / SECURITY
    file.write_text(with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
