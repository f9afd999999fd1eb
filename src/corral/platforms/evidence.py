"""Record which mechanisms corral's own tests have shown to work, for `corral doctor`.

A probe tests a mechanism on the user's machine. SEEN, in contrast, records which mechanisms the
project itself has tested, either on the real system or (for Windows) under Wine. All others are
known only from sources, headers and other people's reports. Linux is not in the table, because
every change is tested there. `tests/ledger/evidence.py` lists the test of each mechanism.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.plan.host import System

READ = "read"
WINE = "seen under Wine"
MACHINES: dict[System, str] = {"darwin": "a Mac", "windows": "Windows"}
SEEN: dict[System, dict[str, str]] = {
    "darwin": {},
    "windows": {"job_kill_on_close": WINE, "session": WINE},
}
"""Maps each capability whose test has passed to the place where it passed.

For the real system, this is the name of the test machine and the day of the first success. If the
test has passed only under Wine, where it runs for every change, this is WINE.
"""


def format_basis(system: System, capability: str) -> str:
    """Return how the project knows that a capability works, such as "read" or "seen under Wine".

    Return "" if every change is tested on this system.
    """
    if system not in MACHINES:
        return ""
    seen = SEEN[system].get(capability, READ)
    return seen if seen in {READ, WINE} else f"seen on {MACHINES[system]}"
