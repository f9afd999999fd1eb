"""Define a claim: its sentence, its page, and the tests that check it."""

from __future__ import annotations

from dataclasses import dataclass

LINUX = "Linux, as root and as an ordinary user"
ANY = "any host"
MODEL = "checked in a model of Seatbelt, not on a Mac"
UNCHECKED = "not checked here: "
MACHINE = "in user-mode Linux"
README = "README.md"
SECURITY = "docs/SECURITY.md"
GATEWAY = "docs/network.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A promise that the docs make, and the tests that check it.

    `sentence` is in the file `source`, directly before the claim's anchor. If `table` is set, the
    claim is a row of that table.
    """

    id: str
    sentence: str
    tests: tuple[str, ...] = ()
    source: str = README
    where: str = LINUX
    table: str = ""
    how: str = ""


def row(table: str, name: str, sentence: str, how: str, *tests: str, where: str = LINUX) -> Claim:
    return Claim(
        id=name, sentence=sentence, tests=tests, source=SECURITY, where=where, table=table, how=how
    )
