"""Make a small internet for the tests: two network namespaces that are connected by a veth pair.

corral runs in the near namespace, where the test writes /etc/hosts. Servers are in the far
namespace, which has every address that a name may resolve to. So if a connection does not reach its
server, the only possible reason is that corral has refused the address. There is no route to the
machine's own network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

import rigs
from users import User

if TYPE_CHECKING:
    import pathlib

CLONE_NEWNET = 0x40000000
NEAR = ("11.0.0.1", "2a00:99::1")
PUBLIC, OTHER, PUBLIC6 = "11.0.0.2", "11.0.0.3", "2a00:99::2"
"""Addresses that the guard does not refuse, and that only these namespaces have."""
GUARDED = {
    "private": "10.99.0.2",
    "shared": "100.64.0.2",
    "link-local": "169.254.7.7",
    "metadata": "169.254.169.254",
    "documentation": "203.0.113.2",
    "private6": "fd00:99::2",
    "nat64": "64:ff9b::a63:2",
    "nat64 of loopback": "64:ff9b::7f00:1",
    "6to4": "2002:a63:2::1",
}
"""Addresses that the guard refuses. The NAT64 and 6to4 addresses contain 10.99.0.2 or 127.0.0.1."""
HOSTS = """\
127.0.0.1 localhost
::1 localhost
"""
LAUNCHER = (
    'mount --bind "$0" /etc/hosts && user=$1 && shift && '
    'exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"'
)


class Namespace:
    """A network namespace that exists as long as its descriptor is open. Only short-lived threads enter it."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = -1
        self.fd = self._thread(self._make)
        self.ip("link", "set", "lo", "up")

    def call(self, act, *arguments):
        """Call `act` in a thread inside the namespace. Sockets and child processes that it makes belong to the
        namespace.
        """
        return self._thread(lambda: self._enter() or act(*arguments))

    def ip(self, *words: str) -> None:
        self.call(lambda: subprocess.run(["ip", *words], check=True, capture_output=True))

    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def listen(self, port: int, *, kind=socket.SOCK_STREAM, address: str = "::") -> socket.socket:
        """Bind a socket to a port, and return it. A stream socket also listens. Without `address`,
        the socket accepts IPv4 and IPv6 on all addresses of the namespace.
        """
        return self.call(_listener, port, kind, address)

    def _make(self) -> int:
        self._check(self.libc.unshare(CLONE_NEWNET))
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def _enter(self) -> None:
        self._check(self.libc.setns(self.fd, CLONE_NEWNET))

    def _check(self, result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _thread(self, act):
        said = {}

        def work():
            try:
                said["result"] = act()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the calling thread
                said["error"] = error

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if "error" in said:
            raise said["error"]
        return said["result"]


def _listener(port: int, kind: int, address: str) -> socket.socket:
    end = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    if address == "::":
        end.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end.bind((address, port))
    if kind == socket.SOCK_STREAM:
        end.listen(512)
    return end


class Inhabitant(User):
    """A user whose commands run in the near namespace."""

    def __init__(self, user: User, world: World) -> None:
        super().__init__(user.name, user.uid, user.home, user.package, user.tier)
        self.world = world

    def popen(self, argv, *, env=None, **options):
        prefix = ["nsenter", f"--net={self.world.near.path()}", "unshare", "--mount", "sh", "-c"]
        prefix += [LAUNCHER, str(self.world.hosts), str(self.uid)]
        env = self.environment() if env is None else env
        options = {"cwd": self.home, **options}
        return subprocess.Popen([*prefix, *argv], env=env, **options)


class World:
    """Two connected namespaces. `name` defines names, `serve` starts servers, and `arrived` lists the addresses that
    were reached.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.hosts = folder / "hosts"
        self.near, self.far = Namespace(), Namespace()
        self.arrived: list[tuple[str, int]] = []
        self._open = contextlib.ExitStack()
        self.forget()
        self.near.ip("link", "add", "near0", "type", "veth", "peer", "name", "far0")
        self.near.ip("link", "set", "far0", "netns", self.far.path())
        for end, device in ((self.near, "near0"), (self.far, "far0")):
            end.ip("link", "set", device, "up")
        self._address(self.near, "near0", *NEAR)
        self._address(self.far, "far0", PUBLIC, OTHER, PUBLIC6)
        self._address(self.far, "lo", *GUARDED.values())
        for address in (PUBLIC, PUBLIC6):
            self.near.ip("route", "add", "default", "via", address, "dev", "near0")

    def _address(self, where: Namespace, device: str, *addresses: str) -> None:
        for address in addresses:
            length = (
                ("128" if ":" in address else "32")
                if device == "lo"
                else ("64" if ":" in address else "24")
            )
            where.ip(
                "address",
                "add",
                f"{address}/{length}",
                "dev",
                device,
                *["nodad"] * (":" in address),
            )

    def name(self, name: str, *addresses: str) -> str:
        """Set a name's addresses. Change the hosts file in place, because it is mounted as
        /etc/hosts, and a new file would not appear there.
        """
        kept = [line for line in self.hosts.read_text().splitlines() if line.split()[1] != name]
        lines = [*kept, *(f"{address} {name}" for address in addresses)]
        self.hosts.write_text("".join(f"{line}\n" for line in lines))
        return name

    def forget(self) -> None:
        self.hosts.write_text(HOSTS)
        self.hosts.chmod(0o644)
        self.arrived.clear()

    def serve(self, handle, *, port: int, near: bool = False, close: bool = True) -> None:
        """Listen on a port on all addresses of the far namespace or, with `near`, of the near one.
        Call `handle(socket)` in a new thread for each connection. With `close`, close the socket
        afterwards.
        """
        listener = (self.near if near else self.far).listen(port)
        thread = threading.Thread(target=self._accept, args=(listener, handle, close))
        thread.start()
        self._open.callback(thread.join)
        self._open.callback(listener.close)
        self._open.callback(listener.shutdown, socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket, handle, close: bool) -> None:
        threads = []
        while True:
            try:
                end = listener.accept()[0]
            except OSError:
                break
            address, port = end.getsockname()[:2]
            self.arrived.append((address.removeprefix("::ffff:"), port))
            threads.append(threading.Thread(target=_handled, args=(handle, end, close)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Stop all servers and wait for their threads."""
        self._open.close()

    def close(self) -> None:
        self.stop()
        for end in (self.near, self.far):
            os.close(end.fd)


def _handled(handle, end: socket.socket, close: bool) -> None:
    try:
        handle(end)
    except OSError:
        pass  # the client has closed the connection
    finally:
        if close:
            end.close()


def make_world(folder: pathlib.Path):
    """Yield a world and stop it afterwards. A fixture calls `yield from make_world(...)`."""
    rigs.need("world")
    folder.chmod(0o755)
    world = World(folder)
    yield world
    world.close()
