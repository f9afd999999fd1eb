"""Check that every Linux step has the methods and fields that `explain`, the error messages and the
sorting of steps rely on.
"""

import importlib
import os
import pkgutil
import re

import pytest

from corral.plan.model import Results
from corral.platforms import linux, posix
from corral.platforms.linux.init import InitDescriptors
from corral.platforms.linux.mechanisms.published_ports import HostSockets

STAGES = {"supervisor", "clone", "after_clone", "init", "target"}


def steps():
    found = set()
    for package in (linux, posix):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            members = vars(importlib.import_module(module.name)).values()
            found |= {item for item in members if isinstance(item, type) and is_step(item)}
    return sorted(found, key=lambda step: step.name)


def is_step(cls):
    return hasattr(cls, "describe") and hasattr(cls, "apply")


def test_step_names_are_unique_and_in_snake_case():
    names = [step.name for step in steps()]
    assert len(names) > 20
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in names)


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.name)
def test_every_step_can_be_applied_and_verified_and_has_a_stage(step):
    assert callable(step.apply)
    assert callable(step.verify)
    assert step.__defaults__["stage"] in STAGES


def test_opened_descriptors_are_closed_once():
    """Release the results twice. Each descriptor must be closed only once. A socket that a service
    has taken over must stay open, because the service closes it.
    """
    results = Results()
    given, taken = os.pipe()
    results.add(InitDescriptors(fds=[given]))
    results.add(HostSockets(fds={80: taken}))
    assert results.get(HostSockets).take() == {80: taken}
    results.release()
    results.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(given)
    os.close(taken)
