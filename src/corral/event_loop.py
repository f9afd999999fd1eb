"""Async twins: the same sandbox, awaited. Importing asyncio costs more than a launch."""

from __future__ import annotations

import asyncio
import functools

from corral.api import Result, launch
from corral.sandbox import PIPE, Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO, Self

    from corral.api import PolicyLike
    from corral.report import Report
    from corral.sandbox import Stream


class AsyncSandbox:
    """`async with launch_async(...) as sandbox`: streams are asyncio's, waiting costs no thread."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.pid = sandbox.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._transports: list[asyncio.WriteTransport | asyncio.ReadTransport] = []
        self._ended: asyncio.Future[None] | None = None

    @property
    def report(self) -> Report | None:
        return self._sandbox.report

    def send_signal(self, number: int) -> None:
        self._sandbox.send_signal(number)

    async def wait(self) -> int:
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
        for transport in self._transports:
            if not isinstance(transport, asyncio.WriteTransport):
                transport.close()
            elif transport.get_write_buffer_size() or not transport.is_closing():
                transport.abort()  # what the target did not read, it never will
        self._sandbox.close()

    def _settle(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def open_streams(self) -> None:
        if self._sandbox.stdin is not None:
            self.stdin = await self._writer(self._sandbox.stdin)
        if self._sandbox.stdout is not None:
            self.stdout = await self._reader(self._sandbox.stdout)
        if self._sandbox.stderr is not None:
            self.stderr = await self._reader(self._sandbox.stderr)

    async def _reader(self, stream: BinaryIO) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, stream)
        self._transports.append(transport)
        return reader

    async def _writer(self, stream: BinaryIO) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, stream
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)


class _Launch:
    """Awaitable and an async context manager, whichever the caller likes."""

    def __init__(self, start: functools.partial[Sandbox]) -> None:
        self._start = start
        self._sandbox: AsyncSandbox | None = None

    async def _launch(self) -> AsyncSandbox:
        starting = asyncio.get_running_loop().run_in_executor(None, self._start)
        try:
            sandbox = AsyncSandbox(await asyncio.shield(starting))
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it starts is ended as soon as it is there.
            starting.add_done_callback(_discard)
            raise
        try:
            await sandbox.open_streams()
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
    start = functools.partial(
        launch, argv, policy, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd
    )
    return _Launch(start)


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
