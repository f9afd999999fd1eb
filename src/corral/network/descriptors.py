"""Room for connections, which are descriptors."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers


def room_for(most: int, *, besides: int) -> int:
    """How many connections, two descriptors each and `besides` in all, the limit leaves room for;
    it is raised as far as it goes.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * most + besides
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return most
    return max(1, (soft - besides) // 2)
