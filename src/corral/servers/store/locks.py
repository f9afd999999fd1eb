"""Provide locks, so that two processes do not install the same package at the same time.

A lock is held on a lock file. When a process ends, the operating system releases its locks.
"""

import os
from collections.abc import Callable

from corral.abi.private_directory import OPEN_FLAGS, lock, make_private_directory
from corral.disk_hints import disk_hint
from corral.errors import SandboxError


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600)


class Lock:
    """A context manager that waits for a lock. If another process holds the lock, `waits` is called
    first.
    """

    def __init__(self, path: str, waits: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._waits = waits
        self._descriptor = -1

    def __enter__(self) -> None:
        try:
            make_private_directory(os.path.dirname(self._path))
            self._descriptor = _open(self._path)
            try:
                lock(self._descriptor, wait=False)
            except BlockingIOError:
                self._waits()
                lock(self._descriptor, wait=True)
        except BaseException as error:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            if not isinstance(error, OSError):
                raise
            raise SandboxError(
                f"{self._path} cannot be locked: {error.strerror}",
                hint=disk_hint(
                    error, self._path, "set XDG_CACHE_HOME to another directory that you own"
                ),
            ) from error

    def __exit__(self, *_: object) -> None:
        # Keep the lock file. If it were removed, two processes could hold the lock, one on the old
        # file and one on a new file.
        os.close(self._descriptor)


def is_locked(path: str) -> bool:
    try:
        descriptor = _open(path)
    except OSError:
        return False
    try:
        lock(descriptor, wait=False)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
