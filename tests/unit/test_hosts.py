"""Check that docs/hosts.md matches its records, and that a record with a missing field is
refused.
"""

import json
import pathlib
import types

import pytest

import attack_choice
import host_trial
import hosts


def test_the_page_is_made_from_the_records():
    assert hosts.main(["check"]) is None


def test_a_stale_page_is_found(tmp_path, monkeypatch):
    stale = tmp_path / "hosts.md"
    stale.write_text(hosts.PAGE.read_text(encoding="utf-8") + "more\n")
    monkeypatch.setattr(hosts, "PAGE", stale)
    assert "hint: python3 tests/hosts.py write" in (hosts.main(["check"]) or "")


def sample() -> dict:
    """Return a complete record. `held` has the capabilities that the page shows."""
    empty = {str: "text", list: [], dict: {}}
    record = {field: empty[kind] for field, kind in hosts.FIELDS.items()}
    demo = {"summary": "1 of 1", "acts": {"read a key": "stopped"}, "not_tried": ["x (why)"]}
    attacks = {"rule": "all", "passed": 1, "skipped": {}, "failed": [], "closing": "1 passed"}
    return {
        **record,
        "kind": "kernel",
        "name": "6.1",
        "held": ["seccomp"],
        "absent": {"landlock": {"status": "absent", "evidence": "Errno 38", "hint": "Linux 5.13"}},
        "runs": [{"command": "corral run --strict", "code": 125, "said": "corral: cannot"}],
        "demo": demo,
        "attacks": attacks,
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "RECORDS", tmp_path)
    return tmp_path


def test_a_record_becomes_rows_and_quotes(place):
    hosts.keep(sample())
    text = hosts.page()
    assert "| `seccomp` | yes |" in text
    assert "| `landlock` | absent | Errno 38 | Linux 5.13 |" in text
    assert "`corral run --strict` ends with 125:\n\n```\ncorral: cannot\n```" in text
    assert "stopped: read a key. Not tried: x (why)." in text


@pytest.mark.parametrize("change", [{"held": None}, {"name": "6.2"}, {"more": 1}, {"kind": "x"}])
def test_a_record_with_wrong_fields_is_refused(place, change):
    hosts.keep(sample())
    path = place / "kernel-6.1.json"
    path.write_text(json.dumps({**sample(), **change}))
    with pytest.raises(hosts.RecordError, match=r"kernel-6\.1\.json"):
        hosts.read(path)


def test_versions_are_sorted_by_number(place):
    for name in ("6.12", "6.1", "5.10", "6.12-aarch64"):
        hosts.keep({**sample(), "name": name})
    assert [record["name"] for record in hosts.records("kernel")] == [
        "5.10",
        "6.1",
        "6.12",
        "6.12-aarch64",
    ]


def test_the_parts_of_a_trial_are_read_from_its_output():
    output = f'noise\n{host_trial.MARK}{{"held": ["x"]}}\n{host_trial.MARK}{{"user": "as root"}}\n'
    assert host_trial.parts_in(output) == {"held": ["x"], "user": "as root"}


@pytest.mark.parametrize(
    ("width", "functions"),
    [
        (attack_choice.FIRST, ["test_first"]),
        (attack_choice.EVERY, ["test_first", "test_second"]),
    ],
    ids=["first", "every"],
)
def test_one_case_of_each_function_and_tier_is_chosen(monkeypatch, width, functions):
    """Check the choice for an ordinary user, who cannot run the test cases of root."""
    monkeypatch.setenv(attack_choice.WIDTH, width)
    monkeypatch.setattr(attack_choice.os, "geteuid", lambda: 1000, raising=False)
    cases = [
        (module, function, {"user": user, "tier": tier})
        for module in ("test_a", "test_b")
        for function in ("test_first", "test_second")
        for user in ("root", "ordinary")
        for tier in ("walled", "bare")
    ]
    items = [
        types.SimpleNamespace(
            path=pathlib.Path(module),
            originalname=function,
            callspec=types.SimpleNamespace(params=params),
        )
        for module, function, params in cases
    ]
    left_out: list[object] = []
    hook = types.SimpleNamespace(pytest_deselected=lambda *, items: left_out.extend(items))
    every = list(items)
    attack_choice.pytest_collection_modifyitems(types.SimpleNamespace(hook=hook), items)
    chosen = [(item.path.name, item.originalname, item.callspec.params["tier"]) for item in items]
    assert chosen == [
        (module, function, tier)
        for module in ("test_a", "test_b")
        for function in functions
        for tier in ("walled", "bare")
    ]
    assert {item.callspec.params["user"] for item in items} == {"ordinary"}
    assert len(left_out) + len(items) == len(every)
