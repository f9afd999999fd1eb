"""Check that docs/hosts.md matches the records of hosts in docs/hosts, and that a record with a
missing field is refused.
"""

import json
import pathlib
import types

import pytest

import attack_choice
import host_trial
import hosts
from vm import kernel_hosts, rig


def test_the_page_is_made_from_the_records():
    assert hosts.main(["check"]) is None


def test_a_stale_page_is_found(tmp_path, monkeypatch):
    stale = tmp_path / "hosts.md"
    stale.write_text(hosts.PAGE.read_text(encoding="utf-8") + "more\n")
    monkeypatch.setattr(hosts, "PAGE", stale)
    assert "hint: python3 tests/hosts.py write" in (hosts.main(["check"]) or "")


def sample() -> dict:
    """Return a complete record. `held` lists the capabilities that the page shows as available."""
    empty = {str: "text", list: [], dict: {}}
    record = {field: empty[kind] for field, kind in hosts.FIELDS.items()}
    demo = {"summary": "1 of 1", "acts": {"read a key": "open"}, "not_tried": ["x (why)"]}
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


def test_a_record_is_shown_as_rows_and_quoted_output(place):
    hosts.keep(sample())
    text = hosts.page()
    assert "| `seccomp` | yes |" in text
    assert "| `landlock` | absent | Errno 38 | Linux 5.13 |" in text
    assert "`corral run --strict` ends with 125:\n\n> corral: cannot\n" in text
    assert "- Not stopped on this host: read a key.\n- Not tried: x (why).\n" in text


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


WIDTHS = {
    attack_choice.FIRST: [("test_first", tier, "a") for tier in ("walled", "bare")],
    attack_choice.ONE: [
        (function, tier, "a")
        for function in ("test_first", "test_second")
        for tier in ("walled", "bare")
    ],
    attack_choice.EVERY: [
        (function, tier, case)
        for function in ("test_first", "test_second")
        for tier in ("walled", "bare")
        for case in ("a", "b")
    ],
}


def collected(*, world: bool) -> list[types.SimpleNamespace]:
    """Return fake tests from two files. Each test function has two cases for each user and tier."""
    return [
        types.SimpleNamespace(
            path=pathlib.Path(module),
            originalname=function,
            name=f"{function}[{user}-{tier}-{case}]",
            nodeid=f"inside/{module}::{function}[{user}-{tier}-{case}]",
            callspec=types.SimpleNamespace(params={"user": user, "tier": tier, "case": case}),
            fixturenames=["user", "world"] if world else ["user"],
            iter_markers=lambda _name: [],
        )
        for module in ("test_a", "test_b")
        for function in ("test_first", "test_second")
        for user in ("root", "ordinary")
        for tier in ("walled", "bare")
        for case in ("a", "b")
    ]


def chosen(
    monkeypatch, width: str, uid: int, *, world: bool = False
) -> list[types.SimpleNamespace]:
    monkeypatch.setenv(attack_choice.WIDTH, width)
    monkeypatch.setattr(attack_choice.os, "geteuid", lambda: uid, raising=False)
    items = collected(world=world)
    every, left_out = len(items), []
    hook = types.SimpleNamespace(pytest_deselected=lambda *, items: left_out.extend(items))
    attack_choice.pytest_collection_modifyitems(types.SimpleNamespace(hook=hook), items)
    assert len(left_out) + len(items) == every
    return items


@pytest.mark.parametrize(("user", "uid"), [("root", 0), ("ordinary", 1000)])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_chosen_width_decides_which_cases_of_a_user_are_run(monkeypatch, width, user, uid):
    items = chosen(monkeypatch, width, uid)
    assert {item.callspec.params["user"] for item in items} == {user}
    for module in ("test_a", "test_b"):
        cases = [
            (item.originalname, item.callspec.params["tier"], item.callspec.params["case"])
            for item in items
            if item.path.name == module
        ]
        assert cases == WIDTHS[width]
    # The first function of each file comes before the second function of any file.
    functions = [item.originalname for item in items]
    assert functions == sorted(functions)


def test_root_runs_both_users_attacks_on_the_network(monkeypatch):
    """Choose among attacks that need the namespaces of tests/world.py, which only root can make.
    Root must run these attacks as both users, and an ordinary user must run none of them.
    """
    assert chosen(monkeypatch, attack_choice.ONE, 1000, world=True) == []
    items = chosen(monkeypatch, attack_choice.ONE, 0, world=True)
    cases = [tuple(item.callspec.params.values()) for item in items[:4]]
    assert cases == [(u, t, "a") for u in ("root", "ordinary") for t in ("walled", "bare")]
    assert len(items) == 16  # two files, two functions, two users, two tiers


def test_attacks_with_a_result_are_not_run_again(monkeypatch):
    items = chosen(monkeypatch, attack_choice.ONE, 0)
    monkeypatch.setenv(attack_choice.DONE, "\n".join(item.nodeid for item in items[2:]))
    assert [item.nodeid for item in chosen(monkeypatch, attack_choice.ONE, 0)] == [
        item.nodeid for item in items[:2]
    ]


def told(name: str, outcome: str, text: str = "") -> str:
    entry = {"name": f"inside/test_a.py::{name}", "outcome": outcome, "text": text}
    return f"{attack_choice.MARK}{json.dumps(entry)}\n"


def test_the_results_of_a_machine_that_was_cut_off_are_kept():
    names = [f"inside/test_a.py::{name}" for name in ("good", "bad", "absent", "hung", "later")]
    output = f"noise\n.{attack_choice.MARK}{json.dumps({'chosen': names})}\n"
    for name, outcome in (("good", "passed"), ("bad", "failed"), ("absent", "skipped")):
        output += told(name, attack_choice.STARTED) + told(name, outcome, "no Landlock")
    output += told("hung", attack_choice.STARTED) + told("later", "passed")[:-10]
    seen = host_trial.summary(attack_choice.ONE, {"root": host_trial.attacks_in(output)})
    assert seen["closing"] == "1 passed, 1 skipped, 1 failed, 1 did not end, 1 not started"
    assert seen["failed"] == ["inside/test_a.py::bad", "inside/test_a.py::hung"]
    assert seen["skipped"] == {"no Landlock": 1}
    counts = {"passed": 1, "skipped": 1, "failed": 1, "did not end": 1, "not started": 1}
    assert seen["rows"] == [{"file": "test_a.py", "user": "root", **counts}]


def test_each_row_counts_the_attacks_of_one_user():
    output = "".join(told(f"test_a[{case}]", "passed") for case in ("walled-ordinary", "root-x"))
    seen = host_trial.summary(attack_choice.ONE, {"root": host_trial.attacks_in(output)})
    assert [(row["user"], row["passed"]) for row in seen["rows"]] == [("ordinary", 1), ("root", 1)]


def test_the_page_shows_numbers_of_attacks_and_reasons_for_skipped_ones(place):
    output = told("good", "passed") + told("absent", "skipped", "corral refuses: no Landlock")
    attacks = host_trial.summary(attack_choice.ONE, {"root": host_trial.attacks_in(output)})
    hosts.keep({**sample(), "attacks": attacks})
    text = hosts.page()
    assert "| 1 passed, 1 skipped |" in text
    assert "| test_a.py | root | 1 | 1 | 0 | 0 | 0 |" in text
    assert "- skipped: corral refuses: no Landlock (1)" in text


NAMES = ("one", "two", "three")


class Machine:
    """A fake machine that crashes in the attack "two" at its first boot. It records which attacks
    each boot starts.
    """

    def __init__(self) -> None:
        self.boots: list[list[str]] = []

    def boot(self, name, uid, parts, env, watch) -> str:
        done = env[attack_choice.DONE].split("\n")
        left = [one for one in NAMES if f"inside/test_a.py::{one}" not in done]
        self.boots.append(left)
        chosen = json.dumps({"chosen": [f"inside/test_a.py::{one}" for one in NAMES]})
        output = f"{attack_choice.MARK}{chosen}\n"
        for one in left:
            output += told(one, attack_choice.STARTED)
            if one == "two" and len(self.boots) == 1:
                watch(output)
                raise rig.MachineError(output)
            output += told(one, "passed")
        return output


def test_a_trial_continues_after_an_attack_that_crashed_the_machine(monkeypatch, tmp_path):
    machine = Machine()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hosts, "source", lambda: "1234567")
    monkeypatch.setattr(kernel_hosts, "boot", machine.boot)
    monkeypatch.setattr(kernel_hosts, "USERS", {"root": None})
    seen = kernel_hosts.Attacks("6.12", attack_choice.ONE).run(1000)
    assert machine.boots == [["one", "two", "three"], ["three"]]
    assert seen["closing"] == "2 passed, 1 did not end"
    again = kernel_hosts.Attacks("6.12", attack_choice.ONE).run(1000)
    assert machine.boots[2:] == [["two"]]
    assert again["closing"] == "3 passed"
    monkeypatch.setattr(hosts, "source", lambda: "7654321")
    kernel_hosts.Attacks("6.12", attack_choice.ONE).run(1000)
    assert machine.boots[3:] == [["one", "two", "three"]]


def test_a_trial_tries_attacks_again_that_lacked_a_rig(monkeypatch, tmp_path):
    machine = Machine()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hosts, "source", lambda: "1234567")
    monkeypatch.setattr(kernel_hosts, "boot", machine.boot)
    monkeypatch.setattr(kernel_hosts, "USERS", {"root": None})
    trial = kernel_hosts.Attacks("6.12", attack_choice.ONE)
    texts = {"one": "needs the rig world", "two": "no Landlock", "gone": "not chosen any more"}
    output = "".join(told(name, "skipped", text) for name, text in texts.items())
    trial.file.write_text(json.dumps({"root": host_trial.attacks_in(output)}))
    seen = kernel_hosts.Attacks("6.12", attack_choice.ONE).run(1000)
    assert machine.boots == [["one", "three"]]
    assert seen["closing"] == "2 passed, 1 skipped"


def test_only_root_has_rigs_that_need_root(monkeypatch):
    monkeypatch.setattr(kernel_hosts.rigs.Rig, "missing", lambda _self: ["root"])
    kernel = kernel_hosts.KERNELS["6.12"]
    assert "world" in kernel_hosts.rigs_for("root", kernel)
    assert "world" not in kernel_hosts.rigs_for("ordinary", kernel)
    monkeypatch.setattr(kernel_hosts.rigs.Rig, "missing", lambda _self: ["iproute2"])
    assert kernel_hosts.rigs_for("root", kernel) == []


def test_a_trial_whose_time_is_over_keeps_its_results(monkeypatch, tmp_path):
    machine = Machine()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hosts, "source", lambda: "1234567")
    monkeypatch.setattr(kernel_hosts, "boot", machine.boot)
    monkeypatch.setattr(kernel_hosts, "USERS", {"root": None})
    # The trial reads the clock when it starts and before it boots the machine. At the third reading
    # the trial's time is over.
    clock = iter([0.0, 0.0])
    fake = types.SimpleNamespace(monotonic=lambda: next(clock, 2000.0))
    monkeypatch.setattr(kernel_hosts, "time", fake)
    seen = kernel_hosts.Attacks("6.12", attack_choice.ONE).run(1000)
    assert machine.boots == [["one", "two", "three"]]
    assert seen["closing"] == "1 passed, 2 not started"
