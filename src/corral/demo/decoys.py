"""Create temporary files, listeners and a process that the acts of `corral demo` attack.

The demo does not use the user's own files: every key, token and file is created here.
"""

import contextlib
import os
import secrets
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from io import FileIO
from pathlib import Path

from corral.abi.private_directory import make_private_directory

PACKAGES = str(Path(__file__).parents[2])  # the directory from which corral is imported
TOKEN = "DEMO_API_TOKEN"  # noqa: S105 - the name of a variable
# The maximum length of the temporary directory in characters. The decoys contain a unix socket,
# and the path of a unix socket can have at most 108 bytes.
MAX_PARENT = 60
EXIT_SECONDS = 5.0
POLL_SECONDS = 0.02


class Decoys:
    """The files, listeners and process that the demo attacks. They are removed when `stack` is
    closed.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        names = ("key", "credentials", "token", "host", "memory", "name")
        self.secrets = {name: f"{name}-{secrets.token_hex(8)}" for name in names}
        parent = tempfile.gettempdir()
        if sys.platform != "win32" and len(parent) > MAX_PARENT:
            parent = "/tmp"  # noqa: S108 - a random name follows
        root = os.path.join(os.path.realpath(parent), f"corral-demo-{secrets.token_hex(8)}")
        make_private_directory(root)
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        self.home, self.project = f"{root}/home", f"{root}/project"
        self.granted, self.temporary = f"{root}/granted", f"{root}/temporary"
        for path in (self.home, self.project, self.granted, self.temporary):
            make_private_directory(path)
        self.key = self._plant(".ssh/id_ed25519", "fake private key {key}\n")
        self.credentials = self._plant(
            ".aws/credentials", "[default] secret_access_key = {credentials}\n"
        )
        self.fifo, self.socket = f"{self.granted}/fifo", f"{self.granted}/socket"
        if sys.platform != "win32":
            os.mkfifo(self.fifo)
            self._open_to_target(root)
        self._start_listeners(stack)
        self._start_bystander(stack)

    def _open_to_target(self, root: str) -> None:
        """If root runs the demo, give the target's group access to the decoys, because the target
        runs as another user. All other users get no access. Otherwise they could create links,
        which root would follow when the demo runs the acts outside of the sandbox.
        """
        if sys.platform == "linux" and os.geteuid() == 0:
            from corral.platforms.linux.mechanisms import user_ids

            target = user_ids.choose(0, os.getegid())
            if target.outside_uid:
                os.chown(root, -1, target.outside_gid)
                os.chmod(root, 0o710)  # noqa: S103 - only root and the target's group can enter
                os.chmod(self.granted, 0o777)  # noqa: S103 - inside `root`
                os.chmod(self.fifo, 0o666)  # noqa: S103 - inside `root`

    def _plant(self, name: str, text: str) -> str:
        path = Path(self.home, name)
        make_private_directory(str(path.parent))
        path.touch(0o600)
        path.write_text(text.format(**self.secrets), encoding="utf-8")
        return str(path)

    def _start_listeners(self, stack: contextlib.ExitStack) -> None:
        secret = self.secrets["host"].encode()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # raised if the client has closed its end
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
        made = {"HOME": self.home, "TMPDIR": self.temporary, TOKEN: self.secrets["token"]}
        return {**os.environ, **made}

    def open_fifo(self) -> FileIO:
        if sys.platform == "win32":
            raise OSError("Windows has no FIFOs")
        fd = os.open(self.fifo, os.O_RDONLY | os.O_NONBLOCK)
        return open(fd, "rb", buffering=0)

    def has_bystander_ended(self, expected: bool) -> bool:  # noqa: FBT001 - an Act.witness
        try:
            return self.bystander.wait(EXIT_SECONDS if expected else 0) is not None
        except subprocess.TimeoutExpired:
            return False
