"""Throw-away files, listeners and a process for the acts of `corral demo` to attack.

Nothing of the user is touched: every key, token and file is made up here.
"""

import contextlib
import os
import secrets
import socketserver
import subprocess
import sys
import tempfile
import threading
from io import FileIO
from pathlib import Path

PACKAGES = str(Path(__file__).parents[2])
"""The working directory of the demo's processes: there all of corral can be imported."""
TOKEN = "DEMO_API_TOKEN"  # noqa: S105 - the name of a variable
MAX_PARENT = 60  # characters, because the path of a unix socket has at most 108 bytes
EXIT_SECONDS = 5.0
POLL_SECONDS = 0.02


class Decoys:
    """Make every decoy, to be removed by `stack`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        names = ("key", "credentials", "token", "host", "memory", "name")
        self.secrets = {name: f"{name}-{secrets.token_hex(8)}" for name in names}
        parent = tempfile.gettempdir()
        parent = os.path.realpath(parent if len(parent) <= MAX_PARENT else "/tmp")  # noqa: S108 - mkdtemp is safe
        directory = tempfile.TemporaryDirectory(prefix="corral-demo-", dir=parent)
        root = stack.enter_context(directory)
        self.home, self.project = f"{root}/home", f"{root}/project"
        self.granted, self.temporary = f"{root}/granted", f"{root}/temporary"
        for path in (self.home, self.project, self.granted, self.temporary):
            os.mkdir(path, 0o700)
        self.key = self._plant(".ssh/id_ed25519", "fake private key {key}\n")
        self.credentials = self._plant(
            ".aws/credentials", "[default] secret_access_key = {credentials}\n"
        )
        self.fifo, self.socket = f"{self.granted}/fifo", f"{self.granted}/socket"
        if sys.platform != "win32":
            os.mkfifo(self.fifo)
            if os.geteuid() == 0:
                # Without namespaces root's target runs as another user, who needs this access.
                os.chmod(root, 0o711)  # noqa: S103 - only root can list it
                os.chmod(self.granted, 0o777)  # noqa: S103 - below a directory of root
        self._start_listeners(stack)
        self._start_bystander(stack)

    def _plant(self, name: str, text: str) -> str:
        path = Path(self.home, name)
        path.parent.mkdir(0o700)
        path.touch(0o600)
        path.write_text(text.format(**self.secrets), encoding="utf-8")
        return str(path)

    def _start_listeners(self, stack: contextlib.ExitStack) -> None:
        secret = self.secrets["host"].encode()

        class Handler(socketserver.BaseRequestHandler):
            """Send the secret to every process that connects or sends a datagram."""

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the other end is gone
                    if isinstance(self.request, tuple):
                        self.request[1].sendto(secret, self.client_address)
                    else:
                        self.request.sendall(secret)

        tcp = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        udp = socketserver.UDPServer(("127.0.0.1", 0), Handler)
        self.tcp, self.udp = tcp.server_address[1], udp.server_address[1]
        servers: list[socketserver.BaseServer] = [tcp, udp]
        if sys.platform != "win32":
            servers.append(socketserver.UnixStreamServer(self.socket, Handler))
        for server in servers:
            stack.enter_context(server)
            threading.Thread(target=server.serve_forever, args=[POLL_SECONDS], daemon=True).start()
            stack.callback(server.shutdown)

    def _start_bystander(self, stack: contextlib.ExitStack) -> None:
        command = [sys.executable, "-m", "corral.demo.bystander", self.secrets["name"]]
        self.bystander = stack.enter_context(
            subprocess.Popen(
                command, cwd=PACKAGES, bufsize=0, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
        stack.callback(self.bystander.kill)
        assert self.bystander.stdin and self.bystander.stdout  # noqa: S101, PT018 - both PIPE
        self.bystander.stdin.write(self.secrets["memory"].encode() + b"\n")
        self.memory_address = int(self.bystander.stdout.readline())

    def environment(self) -> dict[str, str]:
        """Return the user's environment with another home, another TMPDIR and a token to steal."""
        made = {"HOME": self.home, "TMPDIR": self.temporary, TOKEN: self.secrets["token"]}
        return {**os.environ, **made}

    def open_fifo(self) -> FileIO:
        if sys.platform == "win32":
            raise OSError("there are no FIFOs here")
        fd = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        return open(fd, "rb", buffering=0)

    def has_bystander_ended(self, expected: bool) -> bool:  # noqa: FBT001 - an Act.witness
        try:
            return self.bystander.wait(EXIT_SECONDS if expected else 0) is not None
        except subprocess.TimeoutExpired:
            return False
