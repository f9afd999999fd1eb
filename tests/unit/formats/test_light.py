"""Compare corral's own small JSON and SHA-256 functions with `json` and `hashlib`."""

import hashlib
import json
import subprocess
import sys

import pytest

from corral.formats import light

TEXTS = (
    "{}", '{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"], "b": {"c": ""}}', " [1] ", "1",
    '"\\ud800"', "[NaN, Infinity, -Infinity]", "123456789012345678901234567890", '{"a": 1, "a": 2}',
)  # fmt: skip
WRONG = ("", " ", "{", "[1,]", '{"a" 1}', "nul", '"a\nb"', "1 2", "{} x", "'a'")


@pytest.mark.parametrize("text", TEXTS)
def test_the_small_json_parser_reads_text_as_the_json_module_does(text):
    assert repr(light.parse_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize("text", WRONG)
def test_the_small_json_parser_refuses_invalid_text(text):
    with pytest.raises(ValueError, match=r"."):
        light.parse_json(text)


def test_the_small_json_parser_refuses_deeply_nested_text_without_a_crash():
    with pytest.raises(RecursionError):
        light.parse_json("[" * 200_000)


def test_the_small_sha256_function_returns_the_same_digest_as_hashlib():
    assert light.sha256(b"text").hexdigest() == hashlib.sha256(b"text").hexdigest()


def test_an_installed_package_is_found_without_importing_large_modules():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from corral.servers import open_reference\n"
        "from corral.servers.store import store\n"
        "assert store.read_entry(sys.argv[2]).name == 'x'\n"
        "store.entry_path('pypi:x')\n"
        "print(*sys.modules)"
    )
    import pathlib
    import tempfile

    source = pathlib.Path(light.__file__).parents[2]
    with tempfile.TemporaryDirectory() as directory:
        entry = pathlib.Path(directory, "entry")
        values = dict.fromkeys(("key", "kind", "name", "version"), "x")
        entry.write_text(json.dumps({"format": 1, "digest": "0" * 64, "command": [], **values}))
        argv = [sys.executable, "-I", "-S", "-c", code, str(source), str(entry)]
        done = subprocess.run(argv, check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "corral.servers.store.store" in loaded
    assert not loaded & {"re", "json", "hashlib", "contextlib", "enum", "functools", "typing"}
