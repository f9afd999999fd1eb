"""Check that corral still works as recorded on each kernel in docs/hosts.md."""

from __future__ import annotations

import functools

import pytest

import hosts
import rigs
from vm import kernel_hosts

pytestmark = [pytest.mark.rig("kernels"), pytest.mark.timeout(kernel_hosts.TIMEOUT + 600)]
RECORDS = {record["name"]: record for record in hosts.records("kernel") if "not_had" not in record}


def now(name: str) -> hosts.Record:
    """Try the kernel once for all tests of this pytest run, and return the result. Only one machine
    runs at a time.
    """
    with rigs.alone("kernels"):
        return rigs.once(f"kernel-{name}", functools.partial(kernel_hosts.look, name))


@pytest.mark.parametrize("name", RECORDS)
def test_each_recorded_capability_is_proven_again_on_its_kernel(name):
    """Check that the recorded capabilities are proven again, that runs end with the recorded exit codes, and that
    absent capabilities have the recorded hints.
    """
    record, seen = RECORDS[name], now(name)
    assert set(record["held"]) <= set(seen["held"]), seen["absent"]
    assert [run["code"] for run in seen["runs"]] == [run["code"] for run in record["runs"]]
    hints = {capability: found["hint"] for capability, found in seen["absent"].items()}
    assert (
        hints.items()
        <= {capability: found["hint"] for capability, found in record["absent"].items()}.items()
    )


@pytest.mark.parametrize("name", RECORDS)
def test_every_act_of_the_demo_has_its_recorded_result(name):
    assert now(name)["demo"]["acts"] == RECORDS[name]["demo"]["acts"]


@pytest.mark.parametrize("name", RECORDS)
def test_no_attack_of_the_tests_succeeds_on_a_recorded_kernel(name):
    """Check that no attack succeeded, and that attacks that ran for the record are not skipped now."""
    record, seen = RECORDS[name]["attacks"], now(name)["attacks"]
    assert seen["failed"] == []
    assert seen["passed"] or seen["skipped"]
    if record == hosts.NOT_RUN["attacks"]:
        return  # there is no record to compare with yet
    assert set(seen["skipped"]) <= set(record["skipped"])
    # Compare the numbers only if the same rule chose the attacks of both.
    if seen["rule"] == record["rule"]:
        assert seen["passed"] >= record["passed"]
