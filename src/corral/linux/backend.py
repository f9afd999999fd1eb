"""What corral's flow asks of Linux."""

from __future__ import annotations

from corral.linux import chains, compose
from corral.linux.birth import birth
from corral.linux.layout import survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.host import Finding

__all__ = ["birth", "chains", "compose", "probe", "survey"]


def probe() -> tuple[Finding, ...]:
    from corral.linux.probes import probe as run

    return run()
