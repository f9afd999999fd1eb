"""Test the channel through which descriptors leave a sandbox."""

import errno
import os
import sys

import pytest

from corral.abi import linux_sockets as sockets
from corral.platforms.linux.descriptor_channel import DescriptorChannel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this channel")


@pytest.fixture
def channel():
    made = DescriptorChannel()
    yield made
    os.close(made.inner)
    made.release()


def refuse(monkeypatch, number, times):
    """Make the first `times` attempts to send descriptors fail with errno `number`. Each failure
    adds an entry to the returned list.
    """
    send, refused = sockets.send_descriptors, []

    def send_or_refuse(*arguments):
        if len(refused) < times:
            refused.append(number)
            raise OSError(number, os.strerror(number))
        send(*arguments)

    monkeypatch.setattr(sockets, "send_descriptors", send_or_refuse)
    return refused


def test_sending_waits_for_other_descriptors_in_flight(channel, monkeypatch):
    """Make three attempts to send fail, as if the user's processes had sent too many descriptors
    that were not received yet. corral must try again until it succeeds.
    """
    refused = refuse(monkeypatch, errno.ETOOMANYREFS, 3)
    channel.send("listener", [0])
    assert len(refused) == 3
    (received,) = channel.take("listener")
    assert os.fstat(received) == os.fstat(0)
    os.close(received)


def test_errors_other_than_too_many_descriptors_are_raised_without_another_attempt(
    channel, monkeypatch
):
    refused = refuse(monkeypatch, errno.EPERM, 3)
    with pytest.raises(PermissionError):
        channel.send("listener", [0])
    assert len(refused) == 1
