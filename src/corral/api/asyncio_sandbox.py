"""Async twins: the same sandbox, awaited. Importing asyncio costs more than a launch."""

from __future__ import annotations

import asyncio
import functools
import os
import sys

from corral.api.launch import Result, launch
from corral.api.sandbox import PIPE, Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO, Self

    from corral.api.launch import PolicyLike
    from corral.api.sandbox import Stream
    from corral.supervisor.report import Report


class AsyncSandbox:
    """`async with launch_async(...) as sandbox`: streams are asyncio's, waiting costs no thread."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.pid = sandbox.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._reading: list[asyncio.ReadTransport] = []
        self._writing: list[asyncio.WriteTransport] = []
        self._ended: asyncio.Future[None] | None = None

    @property
    def report(self) -> Report | None:
        return self._sandbox.report

    def send_signal(self, number: int) -> None:
        self._sandbox.send_signal(number)

    async def wait(self) -> int:
        if sys.platform == "win32":  # its event loop waits for no pipe of ours: a thread does
            return await asyncio.get_running_loop().run_in_executor(None, self._sandbox.wait)
        if self._sandbox.report is None:
            if self._ended is None:
                loop = asyncio.get_running_loop()
                self._ended = loop.create_future()
                loop.add_reader(self._sandbox.fileno(), self._settle, self._sandbox.fileno())
            # All who wait share it: one of them may be cancelled.
            await asyncio.shield(self._ended)
        return self._sandbox.wait()

    async def stop(self) -> int:
        self.send_signal(15)
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self.stdin is not None:
                self.stdin.close()
            await self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Let go of it: of its streams, and of the target, which is killed if it still runs."""
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._sandbox.fileno())
            self._ended.set_result(None)
        for reading in self._reading:
            reading.close()
        for writing in self._writing:
            if writing.get_write_buffer_size() or not writing.is_closing():
                writing.abort()  # what the target did not read, it never will
        self._sandbox.close()

    def _settle(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def open_streams(self, ends: Mapping[str, BinaryIO]) -> None:
        """`ends` are those that were made here; the others are the sandbox's."""
        if stdin := ends.get("stdin", self._sandbox.stdin):
            self.stdin = await self._writer(stdin)
        if stdout := ends.get("stdout", self._sandbox.stdout):
            self.stdout = await self._reader(stdout)
        if stderr := ends.get("stderr", self._sandbox.stderr):
            self.stderr = await self._reader(stderr)

    async def _reader(self, stream: BinaryIO) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, stream)
        self._reading.append(transport)
        return reader

    async def _writer(self, stream: BinaryIO) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, stream
        )
        self._writing.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)


class _Launch:
    """Awaitable and an async context manager, whichever the caller likes."""

    def __init__(self, start: functools.partial[Sandbox], streams: Mapping[str, Stream]) -> None:
        self._start = start
        self._streams = streams
        self._sandbox: AsyncSandbox | None = None

    async def _launch(self) -> AsyncSandbox:
        ends: dict[str, BinaryIO] = {}
        start = functools.partial(_with_pipes, self._start, self._streams, ends)
        starting = asyncio.get_running_loop().run_in_executor(None, start)
        try:
            sandbox = AsyncSandbox(await asyncio.shield(starting))
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it starts is ended as soon as it is there.
            starting.add_done_callback(_discard)
            raise
        try:
            await sandbox.open_streams(ends)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def __await__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204 - a generator of the event loop's
        return self._launch().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._launch()
        return self._sandbox

    async def __aexit__(self, *error: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.__aexit__(*error)


def launch_async(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> _Launch:
    start = functools.partial(launch, argv, policy, env=env, cwd=cwd)
    return _Launch(start, {"stdin": stdin, "stdout": stdout, "stderr": stderr})


def _with_pipes(
    start: functools.partial[Sandbox], streams: Mapping[str, Stream], ends: dict[str, BinaryIO]
) -> Sandbox:
    """Our ends of pipes go to `ends` where the event loop needs pipes of its own kind."""
    if sys.platform != "win32":
        return start(**streams)
    from corral.api import windows_client

    theirs = dict(streams)
    made: list[int] = []
    try:
        for number, (name, wanted) in enumerate(streams.items()):
            if wanted == PIPE:
                ends[name], fd = windows_client.pipe(number)
                theirs[name] = fd
                made.append(fd)
        return start(**theirs)
    except BaseException:
        for end in ends.values():
            end.close()
        raise
    finally:
        for fd in made:
            os.close(fd)


async def run_async(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Result:
    streams = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
    async with launch_async(argv, policy, **streams, env=env, cwd=cwd) as sandbox:
        assert sandbox.stdin and sandbox.stdout and sandbox.stderr  # noqa: S101, PT018 - all PIPE
        feeding = asyncio.create_task(_feed(sandbox.stdin, input))
        try:
            output, errors = await asyncio.gather(sandbox.stdout.read(), sandbox.stderr.read())
            code = await sandbox.wait()
        finally:
            feeding.cancel()
    assert sandbox.report is not None  # noqa: S101 - it was waited for
    return Result(exit_code=code, stdout=output, stderr=errors, report=sandbox.report)


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stdin.write(data)
        await stdin.drain()
        stdin.close()
    except ConnectionError:
        pass  # a target need not read what it is sent


def _discard(starting: asyncio.Future[Sandbox]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
