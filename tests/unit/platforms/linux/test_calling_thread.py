"""Test that the supervisor does not write to the memory of a thread that ended while its system
call waited for the supervisor. The thread's pid may then belong to another process.
"""

import ctypes
import os
import sys

import pytest

from corral.abi.linux_notifications import Notification

if sys.platform != "linux":
    pytest.skip("needs Linux", allow_module_level=True)

from corral.platforms.linux import calling_thread


@pytest.fixture
def kept():
    return ctypes.create_string_buffer(b"kept", 8)


@pytest.fixture
def thread():
    """Yield a thread whose call seems to have ended: its listener is /dev/null instead of a seccomp
    listener, so corral finds no waiting call there.
    """
    listener = os.open(os.devnull, os.O_RDONLY)
    request = Notification(id=1, pid=os.getpid(), number=0, arguments=(0,) * 6, listener=listener)
    yield calling_thread.CallingThread(
        request, calling_thread.TargetIds(uid=os.getuid(), gid=os.getgid())
    )
    os.close(listener)


def test_memory_of_an_ended_caller_is_not_written(thread, kept):
    with pytest.raises(ProcessLookupError):
        thread.write(ctypes.addressof(kept), b"lost")
    assert kept.value == b"kept"


def test_memory_of_a_waiting_caller_is_written(thread, kept, monkeypatch):
    monkeypatch.setattr(calling_thread.linux_notifications, "is_waiting", lambda _: True)
    thread.write(ctypes.addressof(kept), b"new!")
    assert kept.value == b"new!"
