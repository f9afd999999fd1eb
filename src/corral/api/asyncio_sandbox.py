"""The asyncio API. Only its users import asyncio, which takes longer than a launch."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Self

from corral.api.launch import PIPES, PolicyLike, Result, launch, make_result
from corral.api.sandbox import PIPE, Sandbox
from corral.supervisor.report import Report

if TYPE_CHECKING:
    from corral.api.sandbox import Stream


class AsyncSandbox:
    """`async with launch_async(...) as sandbox`: a sandbox with asyncio's streams."""

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
        if sys.platform == "win32":  # the event loop cannot wait for our pipe there
            return await asyncio.get_running_loop().run_in_executor(None, self._sandbox.wait)
        if self._sandbox.report is None:
            if self._ended is None:
                loop = asyncio.get_running_loop()
                self._ended = loop.create_future()
                loop.add_reader(self._sandbox.fileno(), self._settle, self._sandbox.fileno())
            # The future is shared by all tasks that wait, and one of them may be cancelled.
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
        """Close the streams, and kill the target if it still runs."""
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._sandbox.fileno())
            self._ended.set_result(None)
        for reading in self._reading:
            reading.close()
        for writing in self._writing:
            if writing.get_write_buffer_size() or not writing.is_closing():
                writing.abort()  # the target is gone and will not read the rest
        self._sandbox.close()

    def _settle(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def open_streams(self, ends: Mapping[str, BinaryIO]) -> None:
        """Open the streams; those in `ends` are used in place of the sandbox's."""
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
    """A launch that a caller can await or use as an async context manager."""

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
            # The thread cannot be stopped: end what it starts as soon as it is there.
            starting.add_done_callback(_discard)
            raise
        try:
            await sandbox.open_streams(ends)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def __await__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204 - typed by asyncio
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
    """Start a sandbox. Where the event loop needs special pipes, put our ends of them in `ends`."""
    if sys.platform != "win32":
        return start(**streams)
    from corral.api import windows_client

    theirs: dict[str, int] = {}
    try:
        for number, (name, wanted) in enumerate(streams.items()):
            if wanted == PIPE:
                ends[name], theirs[name] = windows_client.pipe(number)
        return start(**{**streams, **theirs})
    except BaseException:
        for end in ends.values():
            end.close()
        raise
    finally:
        for fd in theirs.values():
            os.close(fd)


async def run_async(
    argv: Sequence[str],
    policy: PolicyLike = None,
    *,
    input: bytes = b"",  # noqa: A002 - as in subprocess.run
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Result:
    async with launch_async(argv, policy, env=env, cwd=cwd, **PIPES) as sandbox:
        assert sandbox.stdin and sandbox.stdout and sandbox.stderr  # noqa: S101, PT018 - all PIPE
        feeding = asyncio.create_task(_feed(sandbox.stdin, input))
        try:
            output, errors = await asyncio.gather(sandbox.stdout.read(), sandbox.stderr.read())
            await sandbox.wait()
        finally:
            feeding.cancel()
    return make_result(sandbox.report, output, errors)


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stdin.write(data)
        await stdin.drain()
        stdin.close()
    except ConnectionError:
        pass  # a target need not read its input


def _discard(starting: asyncio.Future[Sandbox]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
