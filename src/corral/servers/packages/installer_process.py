"""Install in a separate process, which continues for a while after corral's client has gone.

Clients wait about a minute for a server's answer, and the first installation may take longer. A
client that gives up ends corral, either by a signal or by closing its end of stdout. Before corral
ends, it tells the installer to continue alone, so that the next start finds the package. Without
this message, for example after `kill -9` or Ctrl-C, the installer ends together with corral. The
installer never starts the server.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from corral.api import wire_format
from corral.errors import SandboxError
from corral.platforms import run_records

TYPE_CHECKING = False
assert sys.platform != "win32" or not TYPE_CHECKING  # noqa: S101 - for type checkers

MAX_ALONE_SECONDS = 600
GO_ON = b"G"
LEAVING = (signal.SIGTERM, signal.SIGHUP)  # signals that clients send when they give up


def install_apart(
    install: Callable[[], object], label: str, *, max_alone_seconds: float = MAX_ALONE_SECONDS
) -> None:
    """Call `install` in another process, and wait until it ends. If `install` raises an error,
    raise the same error here.
    """
    words, corral = os.pipe()
    answers, answer = os.pipe()
    # Block these signals until `_wait` handles them. Otherwise they could end corral before it has
    # told the installer to continue, and then the installer would end too.
    signal.pthread_sigmask(signal.SIG_BLOCK, LEAVING)
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LEAVING)
        raise
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, LEAVING)
        os.close(corral)
        os.close(answers)
        _Installer(words, answer, label).run(install, max_alone_seconds)
    os.close(words)
    os.close(answer)
    try:
        result = _wait(answers, corral)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        os.waitpid(child, 0)  # the installer removes its incomplete files before it ends
        raise
    finally:
        # An installer that is still running ends, because `_watch` sees that this pipe is closed.
        os.close(corral)
        os.close(answers)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    if not result:
        raise SandboxError(f"the installation of {label} was stopped")
    if result[1:]:
        raise wire_format.decode_error(result[1:])


class _Installer:
    """The installer process. Its descriptor `corral` becomes readable when corral sends a message
    or ends.
    """

    def __init__(self, corral: int, answer: int, label: str) -> None:
        self.corral, self.answer, self.label = corral, answer, label
        self.record: run_records.Run | None = None

    def run(self, install: Callable[[], object], max_alone_seconds: float) -> None:
        result = b"D"
        try:
            os.setsid()  # a signal to corral's process group must not reach the installer
            _discard_streams(0, 1)
            watch = threading.Thread(target=self._watch, args=(max_alone_seconds,), daemon=True)
            watch.start()
            install()
        except (SandboxError, OSError) as problem:
            result += wire_format.encode_error(problem)
        except BaseException as bug:  # noqa: BLE001 - only the other process can show it
            result += wire_format.encode_error(SandboxError(f"{type(bug).__name__}: {bug}"))
        finally:
            with suppress(OSError):  # raised if corral has already ended
                os.write(self.answer, result)
            self._end()

    def _watch(self, max_alone_seconds: float) -> None:
        if os.read(self.corral, 1) == GO_ON:
            _discard_streams(2)
            name = f"{run_records.INSTALLER}{os.getpid()}"
            self.record = run_records.Run(name, residue=(), command=("installing", self.label))
            self.record.started(os.getpid())
            os.write(self.answer, GO_ON)
            time.sleep(max_alone_seconds)
        self._end()

    def _end(self) -> None:
        if self.record is not None:
            self.record.end()
        os._exit(0)  # this closes the channel to the sandbox, so the package manager ends too


def _wait(answers: int, corral: int) -> bytes:
    """Return the installer's answer. If the client gives up, tell the installer to continue, and
    end this process.
    """

    def leave(number: int, _: object = None) -> None:
        with suppress(BrokenPipeError):  # raised if the installer has already ended
            os.write(corral, GO_ON)
            os.read(answers, 1)  # wait until `corral ps` lists the installer
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    handled = [number for number in LEAVING if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEAVING)
    try:
        while not _is_readable_before(answers, gone=1):
            leave(signal.SIGPIPE)
        with open(answers, "rb", closefd=False) as file:
            return file.read()
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _is_readable_before(reader: int, *, gone: int) -> bool:
    """Wait until `reader` is readable or the other end of `gone`, which may be a pipe, is closed.
    Return whether `reader` is readable.
    """
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(gone, 0)
    while True:
        ready = dict(poll.poll())
        if reader in ready:
            return True
        if ready[gone] & (select.POLLERR | select.POLLHUP):
            return False
        # Stop watching `gone`, because it cannot be polled: macOS cannot poll devices, for example.
        poll.unregister(gone)


def _discard_streams(*numbers: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)
