"""Secrets in arguments: nothing marks them, so what looks like one is not shown."""

from __future__ import annotations

import json
import sys

import pytest

from corral.cli import main
from corral.clients.configured_servers import mask_command
from corral.errors import SandboxError
from corral.policy.variables import MASK, masked
from corral.programs.model import Program
from corral.supervisor import report

SHOWN = {
    "--api-key k3y": "--api-key ***",
    "--apiKey k3y --token t": "--apiKey *** --token ***",
    "--password=a": "--password=***",
    "-e GITHUB_TOKEN=a=b": "-e GITHUB_TOKEN=***",
    "Authorization:Bearer|k3y": "Authorization:***",
    "postgres://me:p@h:5432/db?sslmode=off": "postgres://me:***@h:5432/db?sslmode=off",
    "postgres://me:p@ss@h/db": "postgres://me:***@h/db",
    "redis://:p@h": "redis://:***@h",
    "https://k3y@h/x": "https://***@h/x",
    "https://h/mcp?api_key=k3y&x=1": "https://h/mcp?api_key=***&x=1",
    "host=h;password=k3y;user=u": "host=h;password=***;user=u",
    "ghp_0123456789abcdef": "***",
}
KEPT = (
    "server.js --verbose /data/notes C:\\notes --port=80 https://h/a?b=c user@h a:b",
    "--api-key --other",
    "--api-key ${KEY} --token=${env:TOKEN} Authorization:${AUTH}",
    "sk-short",
)


@pytest.mark.parametrize("words", SHOWN)
def test_what_looks_like_a_secret_is_masked(words):
    split = [word.replace("|", " ") for word in words.split(" ")]
    assert masked(split) == tuple(SHOWN[words].split(" "))


@pytest.mark.parametrize("words", KEPT)
def test_other_words_and_variables_stay(words):
    assert masked(words.split(" ")) == tuple(words.split(" "))


def test_names_behind_a_flag_of_corrals_are_no_values():
    flags = ["run", "--secret", "API_KEY", "--env", "TOKEN=k3y", "--"]
    told = mask_command([*flags, "srv", "--secret", "k3y"])
    assert told == (*flags[:4], f"TOKEN={MASK}", "--", "srv", "--secret", MASK)
    assert mask_command(["npx", "pkg", "--", "--token", "k3y"])[-1] == MASK


def test_reports_and_plans_do_not_show_them(capsys):
    argv = ("/usr/bin/python3", "-c", "pass", "--token", "k3y", "kept")
    assert "k3y" not in Program(path=argv[0], argv=argv).describe()
    assert "'kept'" in Program(path=argv[0], argv=argv).describe()
    refused = report.build_refusal(argv, SandboxError("no"))
    assert refused.command == (*argv[:4], MASK, "kept")
    if sys.platform == "linux":
        assert main(["explain", "--json", "--", *argv]) == 0
        told = capsys.readouterr().out
        assert ("k3y" in told, json.loads(told)["program"]["argv"][-2:]) == (False, [MASK, "kept"])
