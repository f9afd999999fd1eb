"""Check that a timeout counts the time that the machine sleeps (docs/decisions/0026)."""

from __future__ import annotations

import pytest

from vm import kernels, qemu, rig

pytestmark = [pytest.mark.rig("qemu", "long"), pytest.mark.timeout(700)]
MACHINE = qemu.Machine(kernels.Source("trixie"))


def test_a_run_whose_timeout_passed_during_sleep_is_asked_to_stop():
    """Check that a run reaches its timeout although the machine was awake for less than that time,
    because time asleep counts too. Also check that a run without a timeout goes on.

    A MachineError is expected: after the sleep the machine's root does not answer, so the command
    cannot end, and turns the machine off instead (see suspended.py).
    """
    with pytest.raises(rig.MachineError, match="before its command ended") as ended:
        MACHINE.boot([rig.SYSTEM_PYTHON, "/srv/tests/vm/suspended.py"], timeout=500)
    said = str(ended.value)
    assert "limited: asked to stop; endless: not asked\n" in said
    assert "awake for less than the timeout: True\n" in said
