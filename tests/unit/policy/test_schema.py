"""Test that the parser, the JSON Schema and the reference of policy files agree. All three come
from one table.
"""

import json
import os

import pytest

from corral.errors import ManifestError
from corral.policy import schema
from corral.policy.manifest import Manifest, from_data
from corral.policy.model import LIMITS, Mcp, Policy
from corral.record import fields

jsonschema = pytest.importorskip("jsonschema")

REFERENCE = os.path.join(os.path.dirname(__file__), "..", "..", "..", "docs", "policy.md")

VALID = [
    {},
    {"server": {"command": ["node", "dist/index.js", ""]}},
    {"limits": {}},
    {"limits": {"memory": "1G", "cpu": "500m", "cpu_time": "10m", "pids": 128, "fds": 1024}},
    {"limits": {"memory": 1 << 20, "cpu": 0.5, "disk": "1.5GiB", "io": "50M", "timeout": "none"}},
    {"limits": {"pids": "none", "memory": "none", "address_space": "4G", "cpu": 2}},
    {
        "network": {
            "allow": ["api.github.com", "*.example.com:8443", "10.0.0.5:5432"],
            "listen": [8080],
        }
    },
    {"network": {"allow": ["[::1]:443", "fd00::/8", "10.0.0.0/8:1-60"], "listen": []}},
    {"filesystem": {"read": ["~/notes"], "write": ["./data"], "unix_sockets": [], "state": True}},
    {"subprocess": {"allow": True}},
    {"environment": {"pass": ["LANG"], "set": {"LOG_LEVEL": ""}, "secrets": ["GITHUB_TOKEN"]}},
    {"environment": {"pass": ["ProgramFiles(x86)"]}},
    {"degrade": {"allow": ["cpu", "network"]}},
    {"windows": {"app_container": False, "network": "outbound", "keep_grants": True}},
    {"macos": {"seatbelt": "off"}},
]
INVALID = [
    [],
    "version",
    {"version": 2},
    {"version": "1"},
    {"version": True},
    {"limits": []},
    {"limits": {"memroy": "1G"}},
    {"memory": "1G"},
    {"limits": {"memory": True}},
    {"limits": {"memory": 0}},
    {"limits": {"memory": -1}},
    {"limits": {"memory": 1 << 63}},
    {"limits": {"memory": "1 G"}},
    {"limits": {"memory": "1GB"}},
    {"limits": {"memory": None}},
    {"limits": {"cpu": 0}},
    {"limits": {"cpu": "1.5M"}},
    {"limits": {"cpu": -0.5}},
    {"limits": {"timeout": 60}},
    {"limits": {"timeout": "60"}},
    {"limits": {"pids": 0}},
    {"limits": {"pids": "128"}},
    {"limits": {"pids": 1.5}},
    {"limits": {"fds": 2}},
    {"server": {"command": []}},
    {"server": {"command": "node x"}},
    {"server": {"command": ["a\0b"]}},
    {"network": {"allow": "a.com"}},
    {"network": {"allow": [""]}},
    {"network": {"allow": ["a b"]}},
    {"network": {"allow": ["a\0b"]}},
    {"network": {"listen": [0]}},
    {"network": {"listen": [65536]}},
    {"network": {"listen": ["80"]}},
    {"network": {"listen": list(range(1, 66))}},
    {"filesystem": {"read": [""]}},
    {"filesystem": {"read": ["a\0"]}},
    {"filesystem": {"state": "yes"}},
    {"subprocess": {"allow": 1}},
    {"environment": {"pass": ["A=B"]}},
    {"environment": {"pass": [""]}},
    {"environment": {"set": {"1A": "x"}}},
    {"environment": {"set": {"A": 1}}},
    {"environment": {"set": {"A": "\0"}}},
    {"environment": {"secrets": [7]}},
    {"degrade": {"allow": ["everything"]}},
    {"windows": {"network": "some"}},
    {"macos": {"seatbelt": True}},
    {"extra": {}},
]
# JSON Schema cannot express these mistakes, so only the parser refuses them.
PARSER_ONLY = [
    {"limits": {"memory": "1"}},
    {"limits": {"memory": "9999999999T"}},
    {"network": {"allow": ["a.com:1-65"]}},
    {"network": {"allow": ["1.2.3"]}},
    {"environment": {"pass": ["A"], "set": {"A": "b"}}},
]


def versioned(document):
    return {"version": 1} | document if isinstance(document, dict) else document


def parses(document):
    try:
        return isinstance(from_data(document, "policy"), Manifest)
    except ManifestError:
        return False


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())
    return jsonschema.Draft202012Validator(schema.json_schema())


@pytest.mark.parametrize("document", VALID)
def test_parser_and_json_schema_accept_valid_policies(validator, document):
    assert parses(versioned(document))
    assert validator.is_valid(versioned(document))


@pytest.mark.parametrize("document", INVALID)
def test_parser_and_json_schema_refuse_invalid_policies(validator, document):
    assert not parses(versioned(document))
    assert not validator.is_valid(versioned(document))


@pytest.mark.parametrize("document", PARSER_ONLY)
def test_only_the_parser_refuses_some_policies(validator, document):
    assert not parses(versioned(document))
    assert validator.is_valid(versioned(document))


def test_a_version_is_required(validator):
    assert not parses({})
    assert not validator.is_valid({})


def test_the_schema_is_plain_json():
    assert json.loads(json.dumps(schema.json_schema())) == schema.json_schema()


def test_the_table_in_the_reference_lists_every_policy_key():
    rows = ["| key | default | flag | question |", "|---|---|---|---|"]
    for key in schema.KEYS:
        flag = f"`{key.flag}`" if key.flag else ""
        rows.append(f"| `{key.path}` | `{schema.format_default(key)}` | {flag} | {key.text} |")
    with open(REFERENCE, encoding="utf-8") as file:
        assert "\n".join(rows) + "\n" in file.read()


def test_defaults_in_the_table_match_the_policy():
    limits = {
        key.field: from_data(
            {"version": 1, "limits": {key.field: json.loads(schema.format_default(key))}}, "x"
        ).limits[key.field]
        for key in schema.KEYS
        if key.path.startswith("limits.")
    }
    assert limits == {name: getattr(Policy().limits, name) for name in LIMITS}
    assert Policy().windows.network == json.loads(
        schema.format_default(schema.BY_PATH["windows.network"])
    )
    assert Policy().macos.seatbelt == json.loads(
        schema.format_default(schema.BY_PATH["macos.seatbelt"])
    )
    for key in schema.KEYS:
        if key.path.startswith("windows.") and key.kind == "switch":
            assert getattr(Policy().windows, key.field) == json.loads(schema.format_default(key))


def test_every_policy_key_is_explained_by_a_question_and_sets_one_field():
    for key in schema.KEYS:
        assert "?" in key.text
        assert key.field in (*fields(Manifest), *LIMITS, *fields(Mcp))
    assert len({key.field for key in schema.KEYS}) == len(schema.KEYS)
