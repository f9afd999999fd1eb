"""Test when `plan.decide` drops a control with a warning, and when it refuses the run."""

import pytest

from corral.errors import UnenforceableError
from corral.plan import decide as plan
from corral.plan.host import Finding, Host
from corral.plan.model import Option
from corral.policy.model import CONTROLS, LIMITS, WALLS, Grant, Limits, Policy

NOTHING = Host(system="linux", machine="x86_64")
ALL_ASKED = Limits(cpu=500, cpu_time=1000, io=1, timeout=1, address_space=1)


def host(**statuses: str) -> Host:
    findings = [
        Finding(capability=name, status=status, evidence=f"{name} was tried", hint=f"get {name}")
        for name, status in statuses.items()
    ]
    return Host(system="linux", machine="x86_64", findings=tuple(findings))


def chains(**needs: tuple[str, ...]):
    """Return one option for each control. Controls that are not in `needs` need no capabilities."""
    always = {control: (Option(mechanism="always"),) for control in CONTROLS}
    named = {control: (Option(mechanism="it", needs=words),) for control, words in needs.items()}
    return {**always, **named}


def held(policy: Policy, machine: Host, found) -> dict[str, plan.Held]:
    return {item.control: item for item in plan.decide(policy, machine, found)}


def test_the_plan_decides_every_control_in_the_fixed_order():
    found = plan.decide(Policy(limits=ALL_ASKED), NOTHING, chains())
    assert tuple(item.control for item in found) == CONTROLS
    assert {item.status for item in found} == {"applied"}


@pytest.mark.parametrize("wall", WALLS)
@pytest.mark.parametrize("stated", [True, False])
def test_walls_are_required_whether_stated_or_not(wall, stated):
    policy = Policy(stated=frozenset({wall} if stated else ()))
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(policy, NOTHING, chains(**{wall: ("missing",)}))
    assert [control for control, _, _ in caught.value.missing] == [wall]
    assert caught.value.exit_code == 125


@pytest.mark.parametrize("limit", LIMITS)
def test_a_stated_limit_is_required(limit):
    policy = Policy(limits=ALL_ASKED, stated=frozenset({limit}))
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(policy, NOTHING, chains(**{limit: ("missing",)}))
    assert [control for control, _, _ in caught.value.missing] == [limit]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_default_limit_degrades_with_a_warning(limit):
    found = held(Policy(limits=ALL_ASKED), NOTHING, chains(**{limit: ("missing",)}))
    assert (found[limit].status, found[limit].mechanism) == ("degraded", "")
    [warning] = plan.warnings(tuple(found.values()))
    assert limit in warning


@pytest.mark.parametrize("limit", LIMITS)
def test_strict_requires_default_limits(limit):
    with pytest.raises(UnenforceableError):
        plan.decide(Policy(limits=ALL_ASKED, strict=True), NOTHING, chains(**{limit: ("missing",)}))


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("words", [{"best_effort": True}, {"degrade": "the control"}])
def test_the_user_may_drop_any_control(control, words):
    chosen = {"degrade": frozenset({control})} if "degrade" in words else words
    policy = Policy(limits=ALL_ASKED, stated=frozenset(CONTROLS), **chosen)
    found = held(policy, NOTHING, chains(**{control: ("missing",)}))
    assert found[control].status == "degraded"
    assert [item.control for item in found.values() if item.status == "degraded"] == [control]
    assert len(plan.warnings(tuple(found.values()))) == 1


@pytest.mark.parametrize("control", CONTROLS)
def test_dropping_one_control_does_not_drop_another(control):
    policy = Policy(
        limits=ALL_ASKED, stated=frozenset(CONTROLS), degrade=frozenset(CONTROLS) - {control}
    )
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(policy, NOTHING, chains(**dict.fromkeys(CONTROLS, ("missing",))))
    assert [name for name, _, _ in caught.value.missing] == [control]


def test_best_effort_overrides_strict():
    policy = Policy(limits=ALL_ASKED, strict=True, best_effort=True)
    found = plan.decide(policy, NOTHING, {})
    assert {item.status for item in found} == {"degraded"}


def test_a_refusal_lists_everything_missing_with_hints():
    machine = host(landlock="absent", cgroup="unknown")
    needs = {"filesystem": ("landlock",), "memory": ("cgroup",), "pids": ("cgroup",)}
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(Policy(stated=frozenset({"memory"})), machine, chains(**needs))
    assert [control for control, _, _ in caught.value.missing] == ["filesystem", "memory"]
    text = f"{caught.value}\n{caught.value.hint}"
    for words in ("filesystem", "landlock was tried", "get landlock", "memory", "cgroup was tried"):
        assert words in text


def test_a_refusal_names_why_the_first_and_the_last_mechanism_cannot_be_used():
    """Check that the message gives the reasons for the first and for the last option, because the
    user may be able to fix either. For a default limit, the message gives only the first reason.
    """
    chain = (Option(mechanism="best", needs=("a", "b")), Option(mechanism="last", needs=("c", "d")))
    machine = host(a="absent", b="absent", c="proven", d="absent")
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(Policy(), machine, {**chains(), "network": chain})
    [(control, why, hint)] = caught.value.missing
    assert control == "network"
    assert why == "no a (a was tried), and no d (d was tried)"
    assert hint == "get a; get d"
    found = held(Policy(), machine, {**chains(), "pids": chain})["pids"]
    assert found.why == "no a (a was tried)"


def test_a_wall_without_any_mechanism_is_reported_as_missing():
    with pytest.raises(UnenforceableError) as caught:
        plan.decide(Policy(), NOTHING, {})
    assert [control for control, _, _ in caught.value.missing] == list(WALLS)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({"a": "proven", "b": "proven"}, "best"),
        ({"a": "proven", "b": "absent"}, "second"),
        ({"a": "proven", "b": "unknown"}, "second"),
        ({"a": "proven"}, "second"),
        ({"a": "unknown", "b": "proven"}, ""),
        ({}, ""),
    ],
)
def test_the_first_mechanism_whose_needs_are_all_proven_is_chosen(statuses, expected):
    """Check that the plan takes the first option whose needs are all proven. A capability counts as
    absent if its finding is unknown, or if it was never probed.
    """
    chain = (
        Option(mechanism="best", needs=("a", "b"), status="verified"),
        Option(mechanism="second", needs=("a",), status="cooperative", note="weaker"),
    )
    found = held(Policy(), host(**statuses), {**chains(), "pids": chain})["pids"]
    assert found.mechanism == expected
    assert found.status == {"best": "verified", "second": "cooperative", "": "degraded"}[expected]


def test_controls_that_are_not_requested_are_not_missing():
    limits = Limits(memory=None, pids=None, fds=None, disk=None)
    found = held(Policy(limits=limits, subprocess=True, strict=True), NOTHING, chains())
    for control in (*LIMITS, "subprocess"):
        assert found[control].status == "not asked"
    for control in ("filesystem", "network", "syscalls", "tree"):
        assert found[control].status == "applied"


@pytest.mark.parametrize(
    ("policy", "control", "words"),
    [
        (Policy(), "filesystem", "none of the user's files"),
        (Policy(), "network", "none"),
        (Policy(allow=("a.b:443",), listen=(80,)), "network", "a.b:443, listen 80"),
        (Policy(), "subprocess", "no processes"),
        (Policy(subprocess=True), "subprocess", ""),
        (Policy(), "memory", "1G"),
        (Policy(limits=Limits(memory=None)), "memory", ""),
        (Policy(limits=Limits(cpu=500)), "cpu", "500m"),
        (Policy(limits=Limits(timeout=60_000)), "timeout", "1m"),
        (Policy(limits=Limits(io=1 << 20)), "io", "1M/s"),
        (Policy(limits=Limits(pids=7)), "pids", "7"),
    ],
)
def test_what_a_policy_asks_of_each_control_is_described_in_words(policy, control, words):
    assert plan.describe_control(control, policy, "linux") == words


def test_a_grant_is_named_as_the_user_wrote_it():
    grant = Grant(path="/a", access="write", device=1, inode=2, directory=True, owner=0, group=0)
    assert plan.describe_control("filesystem", Policy(grants=(grant,)), "linux") == "write /a"
