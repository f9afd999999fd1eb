"""File locks that end with the process that has them: two runs never install the same thing."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from corral.errors import SandboxError


def _lock(descriptor: int, *, wait: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        # LK_LOCK gives up after ten tries, one a second; an installation takes longer.
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    raise
            else:
                return
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags, 0o600)


@contextmanager
def lock_file(path: str) -> Iterator[None]:
    """Wait for the lock. The file stays: if it were removed, two processes could get the lock."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = _open(path)
    except OSError as error:
        raise SandboxError(
            f"{path} cannot be made: {error.strerror}", hint="corral keeps its locks there"
        ) from error
    try:
        _lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool:
    try:
        descriptor = _open(path)
    except OSError:
        return False
    try:
        _lock(descriptor, wait=False)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
