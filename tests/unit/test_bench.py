"""Test the benchmark functions that only compute: statistics, text and options."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import corral

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def load(name: str):
    """Import a benchmark script under its own name, because the scripts import each other by name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


measure = load("measure")
cpu_time = load("cpu_time")
peers = load("peers")
plot = load("plot")
processes = load("processes")
network = load("network")
streams = load("streams")
start = load("start")
syscalls = load("syscalls")
Stats, Ratio, Section = measure.Stats, measure.Ratio, measure.Section


def test_each_installers_script_starts_corral(tmp_path):
    found = peers.write_scripts(sys.executable, str(tmp_path))
    for installer, imports in (("uv", False), ("pip", True)):
        argv = [sys.executable, "-X", "importtime", found[installer], "--version"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("corral ")
        names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert ("re" in names) == imports


def test_measured_programs_take_turns_and_their_first_rounds_do_not_count():
    calls = []

    def contender(name):
        def once():
            calls.append(name)
            return float(len(calls))

        return once

    found = measure.interleave({"a": contender("a"), "b": contender("b")}, 3, warm_up=2)
    assert calls == ["a", "b"] * 5
    assert found["a"].samples == (5.0, 7.0, 9.0)
    assert found["b"].samples == (6.0, 8.0, 10.0)


def test_stats_have_minimum_and_median():
    stats = Stats("x", (5.0, 1.0, 4.0, 100.0))
    assert (stats.minimum, stats.median) == (1.0, 4.5)


def test_cpu_time_is_read_around_each_contender():
    clock = iter(range(100))
    found = measure.interleave({"a": lambda: 1.0}, 2, warm_up=1, cpu=lambda: float(next(clock)))
    assert found["a"].cpu == (1.0, 1.0)
    assert measure.interleave({"a": lambda: 1.0}, 2)["a"].median_cpu is None


def test_cpu_time_of_a_child_is_counted():
    burn = "import time\nwhile time.process_time() < 0.05: pass"
    with cpu_time.CpuTime() as cpu:
        before = cpu.read()
        subprocess.run([sys.executable, "-c", burn], check=True)
        after = cpu.read()
    assert cpu.read() is None  # by now this process has left the cgroup
    assert before is None or after - before >= 50


def test_cpu_ratios_compare_medians_if_there_are_any():
    ours, theirs = Stats("a", (1.0,), (6.0, 9.0, 30.0)), Stats("b", (1.0,), (3.0,))
    assert measure.cpu_ratio("x", ours, theirs, 2.0) == (Ratio("x, CPU", 3.0, 2.0),)
    assert measure.cpu_ratio("x", ours, Stats("b", (1.0,))) == ()


def test_a_drawing_has_a_bar_for_every_row():
    rows = (Stats("corral <1>", (10.0, 12.0), (5.0,)), Stats("other", (20.0,)))
    drawn = plot.draw([Section("Cold", "ms", rows), Section("One idle server", "")])
    root = ET.fromstring(drawn)
    words = [item.text for item in root if item.tag.endswith("text")]
    assert words == ["Cold (ms)", "corral <1>", "10.0 / 11.0, CPU 5.00", "other", "20.0 / 20.0"]
    bars = [float(item.get("width")) for item in root if item.get("height") == str(plot.ROW - 8)]
    assert bars[1] == 2 * bars[0]


def test_the_labels_and_numbers_of_a_drawing_fit():
    rows = (Stats("corral " + "x" * 44, (20.0, 32.7), (32.2,)), Stats("other", (3.0,)))
    root = ET.fromstring(plot.draw([Section("Warm", "ms", rows)]))
    for text in (item for item in root if item.tag.endswith("text")):
        x, width = int(text.get("x")), len(text.text) * plot.LETTER
        left = x - width if text.get("text-anchor") == "end" else x
        assert left >= 0, text.text
        assert left + width <= plot.WIDTH, text.text


def test_ratios_compare_minima():
    found = measure.ratio("x", Stats("ours", (6.0, 60.0)), Stats("theirs", (2.0, 1000.0)), 3.0)
    assert found == Ratio("x", 3.0, 3.0)


@pytest.mark.parametrize(
    ("value", "budget", "verdict"),
    [
        (2.9, 3.0, "pass"),
        (3.0, 3.0, "pass"),
        (3.01, 3.0, "miss"),
        (9.0, None, ""),
        (1.0, 0.0, "miss"),
    ],
)
def test_a_ratio_is_judged_only_if_it_has_a_budget(value, budget, verdict):
    assert Ratio("x", value, budget).verdict == verdict


@pytest.mark.parametrize(
    ("value", "text"), [(446.4, "446"), (54.21, "54.2"), (9.489, "9.49"), (0.121, "0.12")]
)
def test_numbers_have_three_significant_digits(value, text):
    assert measure.number(value) == text


def test_a_table_shows_measurements_ratios_and_notes():
    section = Section(
        "Cold",
        "ms",
        (Stats("corral", (10.0, 12.0)),),
        (Ratio("corral / python", 4.0, 3.0), Ratio("corral / other", 2.0)),
        ("said aside",),
    )
    assert measure.table(section).splitlines() == [
        "Cold (ms)",
        "                         min     median",
        "  corral                10.0       11.0",
        "  corral / python       4.00  budget <= 3  miss",
        "  corral / other        2.00",
        "  note: said aside",
    ]


@pytest.mark.parametrize(("budget", "code"), [(1.0, 1), (2.0, 0), (None, 0)])
def test_json_output_is_one_document_and_a_missed_budget_sets_the_exit_code(capsys, budget, code):
    output = measure.Output(json_wanted=True)
    output.show(Section("A", "ms", (Stats("x", (1.0, 2.0)),), (Ratio("r", 2.0, budget),)))
    assert output.finish() == code
    (section,) = json.loads(capsys.readouterr().out)
    row = {"name": "x", "min": 1.0, "median": 1.5, "cpu": None, "n": 2}
    assert section["rows"] == [row]
    assert section["ratios"][0]["verdict"] == {1.0: "miss", 2.0: "pass", None: ""}[budget]


def test_python_variables_do_not_reach_the_contenders():
    before = {"PYTHONDONTWRITEBYTECODE": "1", "PATH": "/bin", "HOME": "/root"}
    assert measure.clean_environment(before, HOME="/x") == {"PATH": "/bin", "HOME": "/x"}


def test_an_interrupt_prints_no_stack_trace():
    def interrupted():
        raise KeyboardInterrupt

    assert measure.guarded(interrupted) == 130
    assert measure.guarded(lambda: 1) == 1


@pytest.mark.parametrize(
    ("words", "rounds"), [([], 40), (["--quick"], 8), (["--quick", "--rounds", "2"], 2)]
)
def test_the_rounds_option_overrides_the_defaults(words, rounds):
    assert measure.rounds_of(start.arguments(words)) == rounds


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--peers", "some"], ["--only", "hot"]])
def test_meaningless_options_are_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        start.arguments(words)
    assert refused.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "calls", "workloads"),
    [
        ([], tuple(syscalls.CALLS), syscalls.WORKLOADS),
        (["--call", "stat"], ("stat",), ()),
        (["--workload", "walk", "--call", "open"], ("open",), ("walk",)),
    ],
)
def test_only_the_system_calls_that_are_named_are_measured(words, calls, workloads):
    assert syscalls.chosen(syscalls.arguments(words)) == (calls, workloads)


def test_corral_is_compared_with_every_contender():
    stats = {name: Stats(name, (value,)) for name, value in [("true", 1), ("srt", 100), ("us", 10)]}
    assert start.compare(stats, "us", {"srt": 0.2}) == (Ratio("us / srt", 0.1, 0.2),)


def test_an_idle_server_has_budgets_for_memory_and_wake_ups():
    section = start.weight(
        [
            {"role": "supervisor", "pss": 13.0, "wake_ups": 0},
            {"role": "init", "pss": None, "wake_ups": 4},
        ]
    )
    assert [item.verdict for item in section.ratios] == ["miss", "pass", "miss"]
    assert section.notes == ("the memory of init is shown to root only",)


def test_a_field_of_a_proc_file_is_read():
    text = "Name:\tcat\nPPid:\t7\nPss:                3472 kB\nPss_Dirty:  1 kB\n"
    assert processes.field(text, "PPid") == 7
    assert processes.field(text, "Pss") == 3472
    with pytest.raises(KeyError):
        processes.field(text, "VmSwap")


def test_bubblewrap_is_started_with_the_same_visible_files_as_corral(tmp_path):
    walls = {
        "binds": [
            {"source": "/usr", "target": "/usr", "access": "read"},
            {"source": "/data", "target": "/data", "access": "write"},
            {"source": "/dev/null", "target": "/dev/null", "access": "device"},
        ],
        "private": ["/tmp"],
        "links": [["/bin", "usr/bin"], ["/dev/fd", "/proc/self/fd"]],
        "files": [["/etc/passwd", "user"]],
    }
    made = str(tmp_path / "made-0")
    assert peers.filesystem(walls, str(tmp_path)) == [
        *("--dev", "/dev", "--proc", "/proc"),
        *("--ro-bind", "/usr", "/usr", "--bind", "/data", "/data"),
        *("--tmpfs", "/tmp"),
        *("--symlink", "usr/bin", "/bin"),
        *("--ro-bind", made, "/etc/passwd"),
        *("--remount-ro", "/"),
    ]
    assert pathlib.Path(made).read_text(encoding="utf-8") == "user"


def test_a_missing_sandbox_program_is_reported_with_its_package(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = [peers.bubblewrap({}, ""), peers.firejail(), peers.srt("")]
    words = [str(item) for item in found]
    assert "`bubblewrap`" in words[0]
    assert "`firejail`" in words[1]
    assert "npm" in words[2]


@pytest.mark.skipif(sys.platform == "win32", reason="the test's npm is a shell script")
def test_srt_names_its_missing_programs(monkeypatch, tmp_path):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert str(peers.srt("")).endswith("bubblewrap, socat, ripgrep")


def test_without_srt_the_network_is_measured_with_a_note(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    installed = peers.Installed(python="/bin/false", corral="corral")
    compared, absent = network.find_starts(str(tmp_path), installed, {}, 1)
    assert list(compared) == ["loopback", "gateway"]
    assert [text.partition(":")[0] for text in absent] == ["srt is absent", "broker is absent"]
    assert "npm" in absent[0]


def test_a_transfer_rate_is_computed_from_the_shortest_time():
    found = {"a": Stats("a", (500.0, 250.0)), "b": Stats("b", (1000.0,))}
    assert network.rates("MB", 128, found) == "MB per second: a 512, b 128"


def test_a_peer_that_fails_is_left_out_with_its_error():
    fails = [sys.executable, "-c", "import sys; sys.exit('no user namespaces')"]
    assert str(peers.try_out("x", fails, {})) == "skipped x: does not run here: no user namespaces"
    assert peers.try_out("x", [sys.executable, "-c", ""], {}) is None


def test_the_cpu_time_of_a_process_is_the_kernels_count():
    """Compare the result with `os.times` for this process. The two may differ by one tick of the
    kernel's clock.
    """
    before = os.times()
    found = processes.cpu_seconds(os.getpid())
    after = os.times()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before.user + before.system - tick <= found <= after.user + after.system + tick


def test_the_copy_that_reports_no_denials_differs_only_in_the_listed_files(tmp_path):
    """Check that the benchmark's copy of corral, which reports no denials, differs from corral in
    exactly the files of NOTICES. If it did not differ, the benchmark would compare corral with
    itself.
    """
    script = pathlib.Path(peers.write_silent_script(sys.executable, str(tmp_path)))
    assert script.stat().st_mode & 0o111
    source, copy = pathlib.Path(corral.__file__).parent, tmp_path / "silent" / "corral"
    files = {path.relative_to(source) for path in source.rglob("*.py")}
    changed = {str(one) for one in files if (source / one).read_text() != (copy / one).read_text()}
    assert changed == set(peers.NOTICES)
    with pytest.raises(ValueError, match="2 times"):
        peers.replace_once("aa", "a", "b")
