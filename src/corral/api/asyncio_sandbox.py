"""Provide the asyncio API. It is in a separate module, because importing asyncio takes longer than
launching a target.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Generic, Self, cast, overload

from corral.api.launch import Result, check_input, launch, make_result
from corral.api.sandbox import PIPE, Sandbox
from corral.supervisor.report import Report

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Unpack

    from typing_extensions import TypeVar

    from corral.api.launch import Pipe, PolicyLike, Surroundings
    from corral.api.sandbox import Stream

    Stdin = TypeVar("Stdin", covariant=True, default=asyncio.StreamWriter | None)  # noqa: PLC0105
    Stdout = TypeVar("Stdout", covariant=True, default=asyncio.StreamReader | None)  # noqa: PLC0105
    Stderr = TypeVar("Stderr", covariant=True, default=asyncio.StreamReader | None)  # noqa: PLC0105
else:
    from typing import TypeVar

    Stdin, Stdout, Stderr = TypeVar("Stdin"), TypeVar("Stdout"), TypeVar("Stderr")


class AsyncSandbox(Generic[Stdin, Stdout, Stderr]):
    """A handle for a running target. Its streams are asyncio streams.

    To get one, write `async with launch_async(...) as sandbox`.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.pid = sandbox.pid
        # Any stream may be None. The casts hide this from type checkers, which learn from the
        # overloads of `launch_async` which streams exist.
        self.stdin = cast("Stdin", None)
        self.stdout = cast("Stdout", None)
        self.stderr = cast("Stderr", None)
        self._reading: list[asyncio.ReadTransport] = []
        self._writing: list[asyncio.WriteTransport] = []
        self._ended: asyncio.Future[None] | None = None

    @property
    def report(self) -> Report | None:
        return self._sandbox.report

    def send_signal(self, number: int) -> None:
        self._sandbox.send_signal(number)

    async def wait(self) -> int:
        if sys.platform == "win32":  # on Windows the event loop cannot wait for corral's pipe
            return await asyncio.get_running_loop().run_in_executor(None, self._sandbox.wait)
        if self._sandbox.report is None:
            if self._ended is None:
                loop = asyncio.get_running_loop()
                self._ended = loop.create_future()
                loop.add_reader(self._sandbox.fileno(), self._settle, self._sandbox.fileno())
            # All waiting tasks share this future, so a cancelled task must not cancel it.
            await asyncio.shield(self._ended)
        return self._sandbox.wait()

    async def stop(self) -> int:
        self.send_signal(15)
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if isinstance(self.stdin, asyncio.StreamWriter):
                self.stdin.close()
            await self.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Close the streams, and kill the target if it is still running."""
        if self._ended is not None and not self._ended.done():
            asyncio.get_running_loop().remove_reader(self._sandbox.fileno())
            self._ended.set_result(None)
        for reading in self._reading:
            reading.close()
        for writing in self._writing:
            # Do not wait until the target has read the rest, because `close` below ends the target.
            if writing.get_write_buffer_size() or not writing.is_closing():
                writing.abort()
        self._sandbox.close()

    def _settle(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def open_streams(self, ends: Mapping[str, BinaryIO]) -> None:
        """Connect the streams to the event loop. A stream in `ends` replaces the sandbox's stream
        of the same name.
        """
        if stdin := ends.get("stdin", self._sandbox.stdin):
            self.stdin = cast("Stdin", await self._writer(stdin))
        if stdout := ends.get("stdout", self._sandbox.stdout):
            self.stdout = cast("Stdout", await self._reader(stdout))
        if stderr := ends.get("stderr", self._sandbox.stderr):
            self.stderr = cast("Stderr", await self._reader(stderr))

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


class _Launch(Generic[Stdin, Stdout, Stderr]):
    """Starts a sandbox when a caller awaits this object or enters it with `async with`."""

    def __init__(self, start: functools.partial[Sandbox], streams: Mapping[str, Stream]) -> None:
        self._start = start
        self._streams = streams
        self._sandbox: AsyncSandbox[Stdin, Stdout, Stderr] | None = None

    async def _launch(self) -> AsyncSandbox[Stdin, Stdout, Stderr]:
        ends: dict[str, BinaryIO] = {}
        start = functools.partial(_with_pipes, self._start, self._streams, ends)
        starting = asyncio.get_running_loop().run_in_executor(None, start)
        try:
            sandbox: AsyncSandbox[Stdin, Stdout, Stderr] = AsyncSandbox(
                await asyncio.shield(starting)
            )
        except asyncio.CancelledError:
            # The thread that starts the sandbox cannot be stopped, so close the sandbox as soon as
            # it exists.
            starting.add_done_callback(_discard)
            raise
        try:
            await sandbox.open_streams(ends)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def __await__(self) -> Generator[object, None, AsyncSandbox[Stdin, Stdout, Stderr]]:
        return self._launch().__await__()

    async def __aenter__(self) -> AsyncSandbox[Stdin, Stdout, Stderr]:
        self._sandbox = await self._launch()
        return self._sandbox

    async def __aexit__(self, *error: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.__aexit__(*error)


# The overloads differ only in the types of their streams.
# fmt: off
@overload
def launch_async(
    argv: Sequence[str], policy: PolicyLike = None, *,
    stdin: Pipe, stdout: Pipe, stderr: Pipe,
    **more: Unpack[Surroundings],
) -> _Launch[asyncio.StreamWriter, asyncio.StreamReader, asyncio.StreamReader]: ...
@overload
def launch_async(
    argv: Sequence[str], policy: PolicyLike = None, *,
    stdin: Pipe, stdout: Pipe, stderr: Stream = None,
    **more: Unpack[Surroundings],
) -> _Launch[asyncio.StreamWriter, asyncio.StreamReader]: ...
@overload
def launch_async(  # type: ignore[overload-overlap]  # the overload with two PIPEs is above
    argv: Sequence[str], policy: PolicyLike = None, *,
    stdin: Stream = None, stdout: Pipe, stderr: Stream = None,
    **more: Unpack[Surroundings],
) -> _Launch[asyncio.StreamWriter | None, asyncio.StreamReader]: ...
@overload
def launch_async(
    argv: Sequence[str], policy: PolicyLike = None, *,
    stdin: Pipe, stdout: Stream = None, stderr: Stream = None,
    **more: Unpack[Surroundings],
) -> _Launch[asyncio.StreamWriter]: ...
@overload
def launch_async(
    argv: Sequence[str], policy: PolicyLike = None, *,
    stdin: Stream = None, stdout: Stream = None, stderr: Stream = None,
    **more: Unpack[Surroundings],
) -> _Launch: ...
# fmt: on
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
    """Start a target as `launch` does. Await the result, or use it in `async with`."""
    start = functools.partial(launch, argv, policy, env=env, cwd=cwd)
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    return _Launch(start, streams)  # type: ignore[arg-type]  # `partial` takes the first overload


def _with_pipes(
    start: functools.partial[Sandbox], streams: Mapping[str, Stream], ends: dict[str, BinaryIO]
) -> Sandbox:
    """Start a sandbox. On Windows, create overlapped pipes, because the event loop needs them, and
    put the caller's ends into `ends`.
    """
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
    """Run a target until it ends, as `run` does, and return the same Result."""
    check_input(input)
    async with launch_async(
        argv, policy, env=env, cwd=cwd, stdin=PIPE, stdout=PIPE, stderr=PIPE
    ) as sandbox:
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
        pass  # the target closed its stdin before it read everything, which is not an error


def _discard(starting: asyncio.Future[Sandbox]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
