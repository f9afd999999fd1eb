"""Test that arguments are masked if they look like secrets. A command line does not say which of
its arguments are secret.
"""

from __future__ import annotations

import json
import sys

import pytest

from corral.cli import main
from corral.clients.configured_servers import mask_command
from corral.errors import SandboxError
from corral.policy.variables import is_secret, masked
from corral.programs.model import Program
from corral.safe_text import MASK
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
def test_arguments_that_look_like_secrets_are_masked(words):
    split = [word.replace("|", " ") for word in words.split(" ")]
    assert masked(split) == tuple(SHOWN[words].split(" "))


SECRET_VALUES = (
    "postgresql://u:p@h/db",
    "mongodb+srv://u:p@h",
    "amqps://:p@h",
    "https://k3y@h/x",
    "Server=h;User Id=u;Password=p;",
    "host=h password=p",
    "DefaultEndpointsProtocol=https;AccountKey=k3y",
    "ghp_0123456789abcdef",
)


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_that_looks_like_a_secret_makes_its_variable_a_secret(value):
    assert is_secret("WHERE", value)


@pytest.mark.parametrize(
    "value", ["postgresql://h/db", "https://h/x?y=1", "info", "a:b", "", None, 3]
)
def test_other_values_do_not_make_a_secret(value):
    assert not is_secret("WHERE", value)


@pytest.mark.parametrize(
    "name", ["DATABASE_URI", "SENTRY_DSN", "db_url", "AZURE_CONNECTION_STRING"]
)
def test_names_of_connection_strings_are_secrets(name):
    assert is_secret(name, "x")


@pytest.mark.parametrize("words", KEPT)
def test_other_arguments_and_variables_are_not_masked(words):
    assert masked(words.split(" ")) == tuple(words.split(" "))


def test_names_after_a_flag_of_corral_are_not_masked():
    flags = ["run", "--secret", "API_KEY", "--env", "TOKEN=k3y", "--"]
    told = mask_command([*flags, "srv", "--secret", "k3y"])
    assert told == (*flags[:4], f"TOKEN={MASK}", "--", "srv", "--secret", MASK)
    assert mask_command(["npx", "pkg", "--", "--token", "k3y"])[-1] == MASK


def test_reports_and_plans_do_not_show_secrets(capsys):
    argv = ("/usr/bin/python3", "-c", "pass", "--token", "k3y", "kept")
    assert "k3y" not in Program(path=argv[0], argv=argv).describe()
    assert "'kept'" in Program(path=argv[0], argv=argv).describe()
    refused = report.build_refusal(argv, SandboxError("no"))
    assert refused.command == (*argv[:4], MASK, "kept")
    if sys.platform == "linux":
        assert main(["explain", "--json", "--", *argv]) == 0
        told = capsys.readouterr().out
        assert ("k3y" in told, json.loads(told)["program"]["argv"][-2:]) == (False, [MASK, "kept"])


def test_masking_takes_linear_time():
    """Mask a word with many `key=value` pairs. If each pair were replaced in the whole word, this
    would take minutes.
    """
    pairs = [f"key=a{number:06}" for number in range(200_000)]
    assert masked(["x&" + "&".join(pairs)]) == ("x" + f"&key={MASK}" * len(pairs),)
    assert masked(["a=b&" * 200_000]) == ("a=b&" * 200_000,)


def test_text_equal_to_a_secret_is_masked_only_where_the_secret_is():
    assert masked(["http://me:db@db:db@h/:db@?key=b&b"]) == (
        f"http://me:{MASK}@h/:db@?key={MASK}&b",
    )
