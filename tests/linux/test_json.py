"""Check the JSON output of commands against the schemas in corral's package."""

import json
import platform

import jsonschema
import pytest

from corral.cli import schema as schemas
from corral.demo.anonymous import remove_names


def closed(schema):
    """Return a copy of the schema that refuses unknown keys.

    Programs that read the JSON must accept new keys. In this test a new key means that the schema
    was not updated.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


def check(name: str, data: object) -> None:
    schema = schemas.read_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, closed(schema), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", schemas.NAMES)
def test_every_schema_is_printed(ordinary, name):
    done = ordinary.corral("schema", name)
    assert done.returncode == 0, done.stderr
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
    assert json.loads(done.stdout)["description" if name != "policy" else "title"]


def test_a_missing_schema_is_an_error(ordinary):
    done = ordinary.corral("schema", "nothing")
    assert (done.returncode, done.stdout) == (2, b"")


def test_doctor_matches_its_schema(user):
    data = json.loads(user.corral("doctor", "--json").stdout)
    check("doctor", data)
    assert data["works"] is True


def test_explain_matches_its_schema(user, scratch):
    flags = ("--write", str(scratch), "--timeout", "1m", "--env", "A=1")
    check("explain", json.loads(user.corral("explain", "--json", *flags, "--", "true").stdout))


@pytest.mark.parametrize("flags", [(), ("--state",)])
def test_explain_masks_secret_arguments_in_every_field(user, flags):
    """Check that no field shows a secret argument. The arguments occur in two fields. With
    `--state` they also occur in the step for the home that the server keeps between runs, because
    each command has its own home.
    """
    words = ("/bin/true", "--token=hunter2", "visible")
    shown = user.corral("explain", "--json", *flags, "--", *words).stdout
    assert b"hunter2" not in shown
    assert b"--token=***" in shown
    assert shown.count(b'"visible"') == (3 if flags else 2)


@pytest.mark.parametrize(
    ("flags", "command", "kind"),
    [
        ((), ("/bin/true",), "exited"),
        (("--timeout", "200ms"), ("/bin/sleep", "60"), "timeout"),
        ((), ("no-such-program",), "refused"),
        (("--max-fds", "3"), ("/bin/true",), "setup_failed"),
    ],
)
def test_reports_match_their_schema(user, scratch, flags, command, kind):
    path = scratch / "report.json"
    user.run(*command, flags=("--report", str(path), *flags))
    data = json.loads(path.read_text())
    check("report", data)
    assert data["outcome"]["kind"] == kind


def test_a_report_with_denials_and_traffic_matches_its_schema(user, scratch):
    path = scratch / "report.json"
    code = "import socket\ntry: socket.create_connection(('denied.example', 443))\nexcept OSError: pass"
    flags = ("--report", str(path), "--allow-net", "allowed.example")
    user.run(user.python, "-ISc", code, flags=flags)
    data = json.loads(path.read_text())
    assert data["denials"]
    check("report", data)


def test_the_demo_matches_its_schema(user):
    done = user.corral("demo", "--json")
    data = json.loads(done.stdout)
    check("demo", data)
    assert (done.returncode, data["did_not_hold"], data["not_tried"]) == (0, [], [])
    assert len(data["held"]) == len(data["acts"]) == 20
    assert data["host"]["findings"]


def test_the_demos_file_contains_nothing_about_the_user(user, scratch):
    """Check that the demo's JSON does not contain the user's name or directories, the machine's
    name, or the path of a file that the demo makes.
    """
    env = user.environment(USER="somebody", LOGNAME="somebody", TMPDIR=str(scratch))
    text = user.corral("demo", "--json", env=env).stdout.decode()
    names = ("somebody", str(scratch), str(user.home), platform.node())
    assert [name for name in names if name in text] == []
    assert list(scratch.iterdir()) == []


def test_the_users_name_is_removed_from_every_text(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("LOGNAME", "somebody")
    said = {"a": ["read /home/somebody/x"], "b": "uid of somebody", "c": 1, "d": None}
    found = remove_names(said)
    assert found == {"a": ["read HOME/x"], "b": "uid of USER", "c": 1, "d": None}


def test_a_demo_that_cannot_run_still_prints_valid_json(user):
    """Make the demo fail before its first act. Its JSON must list the findings, and say that
    nothing was tried.
    """
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from corral.demo import run; from corral.errors import SandboxError\n"
    code += "def fail(*_): raise SandboxError('made to fail')\nrun.Decoys = fail\nfrom corral.cli import main; sys.exit(main())"
    argv = [user.python, "-c", code, str(user.package), "demo", "--json"]
    process = user.popen(argv, stdin=-3, stdout=-1, stderr=-1)
    out, errors = process.communicate(timeout=60)
    data = json.loads(out)
    check("demo", data)
    assert (process.returncode, data["ok"], data["acts"], errors) == (1, False, [], b"")
    assert data["not_tried"] == ["all acts (the demo could not run: made to fail)"]


def test_the_schema_check_finds_an_unknown_key(user):
    """Sanity check for the tests above: a changed document does not match its schema."""
    data = json.loads(user.corral("doctor", "--json").stdout)
    for broken in ({**data, "more": 1}, {**data, "version": 2}):
        with pytest.raises(jsonschema.ValidationError):
            check("doctor", broken)
