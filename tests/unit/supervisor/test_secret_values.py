from __future__ import annotations

import json

import pytest

from corral.denials.records import MAX_SEARCHED_LENGTH, Denials
from corral.plan.model import Plan
from corral.programs.model import Program
from corral.supervisor import message_relay
from corral.supervisor.secret_values import SecretValues, find_secrets, hide_values

TOKEN = "ghp_Ab12Cd34Ef56Gh78"
WEBHOOK = "https://hooks.example.com/services/T0001/B0001/xUz4Kq9Lw2Rt7Ys5Mn3P"


def hide(text: str, *values: str) -> str:
    return SecretValues(("TOK", value) for value in values).hide(text)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{TOKEN}.evil.com", "***.evil.com"),
        (f"{TOKEN.lower()}.evil.com", "***.evil.com"),
        (f"x-{TOKEN.upper()}.evil.com", "x-***.evil.com"),
        ("ghp-ab12cd34.ef56gh78.evil.com", "***.evil.com"),
        ("a.b12cd34ef56gh78.evil.com", "***.evil.com"),
        ("Cd34Ef56Gh.evil.com", "***.evil.com"),
        (f"/home/me/{TOKEN}/{TOKEN}.txt", "/home/me/***/***.txt"),
        (f"/home/me/{TOKEN}/and/{TOKEN}.txt", "/home/me/***/and/***.txt"),
        ("cd34.evil.com", "cd34.evil.com"),
        ("api.github.com", "api.github.com"),
        ("", ""),
    ],
)
def test_a_value_is_masked_in_every_form_that_a_name_can_have(text, expected):
    assert hide(text, TOKEN) == expected


def test_a_short_value_is_masked_only_as_a_word():
    assert hide("pin-7a.7a.evil.com/17a", "7A") == "pin-***.***.evil.com/17a"
    assert hide("x.evil.com", "+/=") == "x.evil.com"


def test_masking_a_value_returns_the_name_of_its_variable():
    found = SecretValues([("A", "first-secret"), ("", "second-secret")])
    assert found.hide("first-secret.com") == ("***.com", "A")
    assert found.hide("second-secret.com") == ("***.com", "an argument")
    assert found.hide("third.com") == ("third.com", "")


def test_the_host_in_an_address_is_not_a_secret():
    """Check that a denial shows a database's host, but not its full address or its password."""
    value = "postgres://me:hunter2hunter2@db.example:5432/notes"
    secrets = find_secrets([("DATABASE_URL", value)], ["DATABASE_URL"], [])
    found = SecretValues(secrets)
    assert found.hide("db.example:5432")[0] == "db.example:5432"
    assert found.hide("hunter2hunter2.evil.com")[0] == "***.evil.com"
    assert found.hide(value)[0] == "***"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NOTES_TOKEN", "0123456789", ["0123456789"]),
        ("NOTES", TOKEN, [TOKEN]),
        ("NOTES_PASSWORD", "short", []),
        ("AUTH_HOST", "login.example.com", []),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json", []),
        ("API_URL", "https://x.com/?token=0123456789", ["0123456789"]),
        ("COLOUR", "a-long-value-that-is-plain", []),
    ],
)
def test_values_that_look_like_secrets_are_found(name, value, expected):
    assert [found for _, found in find_secrets([(name, value)], [], [])] == expected


def test_declared_values_and_arguments_are_found():
    typed = ("server", "--api-key", "0123456789", "--password=letmein", "plain")
    found = list(find_secrets([("COLOUR", "red")], ["COLOUR"], typed))
    assert found == [("COLOUR", "red"), ("", "0123456789"), ("", "letmein")]


def test_denials_mask_what_looks_like_a_secret():
    denials = Denials()
    denials.hide_secrets(lambda: SecretValues([("TOK", TOKEN)]).hide)
    denials.add("name", f"{TOKEN}.com", allow=f"--allow-net {TOKEN}.com")
    denials.add("start", TOKEN, allow="--allow-subprocess", why=f"by {TOKEN}")
    first, second = denials.rows()
    assert (first.destination, first.allow) == ("***.com", "")
    assert (second.destination, second.allow) == ("***", "--allow-subprocess")
    assert second.why == "by ***, with the value of TOK"


def test_a_secret_cut_off_at_the_end_of_a_long_text_is_masked():
    denials = Denials()
    denials.hide_secrets(lambda: SecretValues([("TOK", TOKEN)]).hide)
    denials.add("path", "/" + "x" * 285 + TOKEN)
    (row,) = denials.rows()
    assert "ghp" not in row.destination


def test_denials_are_masked_whole_if_the_masking_function_cannot_be_loaded():
    def fail():
        raise ImportError("the package was removed")

    denials = Denials()
    denials.hide_secrets(fail)
    denials.add("name", f"{TOKEN}.com", allow=f"--allow-net {TOKEN}.com")
    (row,) = denials.rows()
    assert (row.destination, row.allow) == ("***", "")
    assert row.why == "with the value of a possible secret"


def make_plan(*environment, typed=("server",), server=(), **more) -> Plan:
    program = Program(path="/bin/server", argv=typed, typed=typed, server=server)
    return Plan(program=program, steps=(), controls=(), environment=environment, **more)


def test_values_that_the_server_chose_are_not_secrets():
    name = "c2-server.attacker.example"
    chosen = make_plan(("A_TOKEN", name), requested_names=("A_TOKEN",))
    assert hide_values(chosen)(name) == (name, "")
    command = make_plan(typed=("python3", "main.py", f"--token={name}"), server=("/srv/notes",))
    assert hide_values(command)(name) == (name, "")
    # Sanity checks: values in the same places are masked if the user gave them.
    assert hide_values(make_plan(("A_TOKEN", name)))(name) == ("***", "A_TOKEN")
    typed = make_plan(typed=("python3", "main.py", f"--token={name}"))
    assert hide_values(typed)(name) == ("***", "an argument")
    given = make_plan(requested_names=("A_TOKEN",), given_values=(TOKEN,))
    assert hide_values(given)(f"{TOKEN}.evil.com") == ("***.evil.com", "a setting")


@pytest.mark.parametrize(
    "text", ["sk-c2.attacker.example.com", "npm_install_and_run", "hf_read_all_my_files", "a?key=b"]
)
def test_a_name_that_only_looks_like_a_key_is_not_masked(text):
    """Check that the name of a host or a tool is not masked, even if it looks like a key. The next
    test checks that an argument is masked.
    """
    assert hide_values(make_plan())(text) == (text, "")


def test_an_argument_that_looks_like_a_key_is_masked():
    describe = message_relay.describe_arguments(hide_values(make_plan()))
    given = {"url": "https://h/?key=k3y&x=1", "words": [TOKEN, "plain"], "token": "t", "n": None}
    assert json.loads(describe(given)) == {
        "url": "https://h/?key=***&x=1",
        "words": ["***", "plain"],
        "token": "***",
        "n": None,
    }


@pytest.mark.parametrize("given", [["x" * 10_000_000], ["x"] * 1_000_000])
def test_long_arguments_are_masked_only_up_to_their_limit(given):
    searched = []

    def hide(text: str) -> tuple[str, str]:
        searched.append(len(text))
        return text, ""

    describe = message_relay.describe_arguments(hide)
    assert len(describe(given)) == message_relay.MAX_ARGUMENTS_LENGTH
    assert sum(searched) <= message_relay.MAX_ARGUMENTS_LENGTH


def test_overlapping_values_take_linear_time():
    """Mask values that overlap, so that each character belongs to many of them. If a character
    were marked once for each value, this would take minutes.
    """
    values = SecretValues((f"T{size}", "a" * size) for size in range(8, 2000))
    text = "a" * MAX_SEARCHED_LENGTH
    assert {values.hide(text)[0] for _ in range(5)} == {"***"}


def test_a_long_variable_takes_linear_time():
    """Mask a variable with many `key=value` pairs. If each pair were replaced in the whole text,
    this would take minutes.
    """
    value = "x" + "".join(f"&key=a{number:06}" for number in range(200_000))
    hide = hide_values(make_plan(("A", value), ("B", value), typed=("server", value)))
    assert hide("a000000.evil.com")[0] == "***.evil.com"


def test_only_the_start_of_a_text_is_searched():
    searched = []

    def hide(text: str) -> tuple[str, str]:
        searched.append(len(text))
        return text, ""

    denials = Denials(announce=lambda _: None)
    denials.hide_secrets(lambda: hide)
    long = "x" * 1_000_000
    denials.add("tool", long, allow=long, why=long)
    denials.note(long)
    denials.log("call", tool=long)
    assert max(searched) == MAX_SEARCHED_LENGTH
    assert len(searched) >= 4


def test_a_short_value_is_masked_only_in_one_piece():
    assert hide("10.1.234.5:80", "1234") == "10.1.234.5:80"
    assert hide("x1234.evil.com", "1234") == "x***.evil.com"
    assert hide("12.345.678", "12345678") == "***"


def test_parts_of_a_secret_address_are_masked():
    secret = WEBHOOK.rpartition("/")[2]
    assert hide(f"{secret[:12]}.{secret[12:]}.evil.com", WEBHOOK) == "***.evil.com"
    assert hide(f"x{secret[:12]}.evil.com", WEBHOOK) == "x***.evil.com"
    assert hide("hooks.example.com:443", WEBHOOK) == "hooks.example.com:443"


def test_a_denial_with_a_masked_destination_suggests_no_flag():
    denials = Denials()
    denials.hide_secrets(lambda: SecretValues([("TOK", "a'b")]).hide)
    denials.add("path", "/x/a'b", allow="--write '/x/a'\"'\"'b'")
    denials.add("path", "/x/a-b", allow="--write /x/a-b")
    first, second = denials.rows()
    assert (first.destination, first.allow) == ("/x/***", "")
    assert (second.destination, second.allow) == ("/x/a-b", "--write /x/a-b")


def test_a_denied_host_that_looks_like_a_key_is_shown_with_its_flag():
    denials = Denials()
    denials.hide_secrets(lambda: hide_values(make_plan(("TOK_TOKEN", TOKEN))))
    hosts = ["sk-c2.attacker.example.com", "hf_exfil.attacker2.example.org"]
    for host in (*hosts, f"{TOKEN}.com"):
        denials.add("name", host, allow=f"--allow-net {host}")
    rows = [(row.destination, row.allow, row.why) for row in denials.rows()]
    shown = [(host, f"--allow-net {host}", "") for host in hosts]
    assert rows == [*shown, ("***.com", "", "with the value of TOK_TOKEN")]
