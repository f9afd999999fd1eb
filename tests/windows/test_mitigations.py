"""Test mitigations by reading them back from the process, because Wine accepts mitigations but
ignores them.
"""

from __future__ import annotations

import contextlib
import os

import pytest

from corral.abi import win32, win32_process
from corral.platforms.windows.mechanisms import mitigations
from corral.platforms.windows.streams import Streams
from corral.programs import windows_command_line
from windows.conftest import PYTHON, wine

only_wine = pytest.mark.skipif(not wine(), reason="tests a host that ignores mitigations")
ROOT = os.environ["SYSTEMROOT"]
WAIT_MS = 60_000
MILD = mitigations.EXTENSION_POINTS.bit | mitigations.NO_REMOTE_IMAGES.bit


@contextlib.contextmanager
def started(step: mitigations.Mitigations, code: str = "pass"):
    """Start python with these attributes, and yield its process and output. python's input ends
    when the caller's `with` block ends.
    """
    reading, writing = os.pipe()
    theirs, ours = os.pipe()
    waiting = open(ours, "wb", buffering=0)  # noqa: SIM115 - closed early, and again at the end
    streams = Streams((theirs, writing, writing))
    attributes = step.attributes()
    application, line = windows_command_line.start_line([PYTHON, "-c", code], system_root=ROOT)
    with win32_process.Attributes(1 + len(attributes)) as made:
        made.add_handles(win32_process.PROC_THREAD_ATTRIBUTE_HANDLE_LIST, streams.values())
        for attribute, value, size in attributes:
            made.add_number(attribute, value, size)
        process = win32_process.create_process(
            None,
            application=application,
            command_line=line,
            environment=windows_command_line.environment_block(os.environ.items()),
            directory="",
            desktop="",
            stdio=streams.values(),
            flags=0,
            attributes=made,
        )
    streams.close_handles()
    os.close(writing)
    os.close(theirs)
    try:
        yield process.handle, reading
        waiting.close()
        assert win32_process.wait_any([process.handle.value], WAIT_MS) is not None
    finally:
        waiting.close()
        with contextlib.suppress(OSError):
            win32_process.TerminateProcess(process.handle.value, 1)
        process.release()
        os.close(reading)


def test_a_process_without_mitigations_fails_verification():
    own = win32_process.GetCurrentProcess()
    # Sanity check: a plan without mitigations accepts this process.
    mitigations.plan(0, subprocess=True).check(own)
    with pytest.raises(OSError, match="no child processes: reads back as off"):
        mitigations.plan(0, subprocess=False).check(own)
    strict = mitigations.plan(mitigations.STRICT_HANDLES.bit, subprocess=True)
    with pytest.raises(OSError, match="strict handle checks: reads back as off"):
        strict.check(own)


def test_a_runtime_starts_without_mitigations():
    """Start python without any mitigation, to compare it with the processes of the tests below."""
    with started(mitigations.plan(0, subprocess=True), "print('started')") as (_, reading):
        assert os.read(reading, 100).startswith(b"started")


@only_wine
@pytest.mark.parametrize(
    "step", [mitigations.plan(MILD, subprocess=True), mitigations.plan(0, subprocess=False)]
)
def test_a_mitigation_that_windows_ignored_is_an_error(step):
    before = win32.open_handles()
    with started(step) as (process, _), pytest.raises(OSError, match="reads back as off"):
        step.check(process.value)
    assert win32.open_handles() == before


@pytest.mark.real_windows(reason="it ignores mitigations")
@pytest.mark.parametrize("item", mitigations.ORDER, ids=lambda item: item.name)
def test_a_requested_mitigation_is_on_in_the_started_process(item):
    step = mitigations.plan(item.bit, subprocess=True)
    with started(step, "import sys; sys.stdin.read()") as (process, _):
        step.check(process.value)


CHILD = f"import subprocess, sys\ntry: subprocess.run([{PYTHON!r}, '-c', 'pass'])\nexcept OSError: print('denied')\nelse: print('ran')"


@pytest.mark.real_windows(reason="it ignores mitigations")
@pytest.mark.parametrize(("allowed", "word"), [(False, b"denied"), (True, b"ran")])
def test_child_processes_start_only_if_allowed(allowed, word):
    step = mitigations.plan(0, subprocess=allowed)
    with started(step, CHILD) as (process, reading):
        step.check(process.value)
        assert os.read(reading, 100).startswith(word)
