"""Is this an address of the host itself? Asked of the kernel each time: they come and go."""

from __future__ import annotations

import _socket
import errno

from corral.network.addresses import read, write


class OwnAddresses:
    """The addresses of this host, as they are at the moment of asking.

    The kernel sends from the very address that it is to reach only if that is one of its own. The
    connect of a datagram socket looks up this route and sends nothing.
    """

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, bytes):
            return False
        family = _socket.AF_INET if len(address) == 4 else _socket.AF_INET6
        try:
            probe = _socket.socket(family, _socket.SOCK_DGRAM)
        except OSError as error:
            # Without the family there is nothing to reach. Else descriptors are used up, which a
            # target can bring about: nobody knows then, and it is not dialled.
            return error.errno != errno.EAFNOSUPPORT
        try:
            probe.connect((write(address), 9))
            return read(str(probe.getsockname()[0]).partition("%")[0]) == address
        except OSError:
            return False
        finally:
            probe.close()
