from __future__ import annotations

import pytest

from corral.denials.records import Denials
from corral.supervisor.secret_values import SecretValues, find_secrets

TOKEN = "ghp_Ab12Cd34Ef56Gh78"


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


def test_the_name_of_the_variable_is_returned():
    found = SecretValues([("A", "first-secret"), ("", "second-secret")])
    assert found.hide("first-secret.com") == ("***.com", "A")
    assert found.hide("second-secret.com") == ("***.com", "an argument")
    assert found.hide("third.com") == ("third.com", "")


def test_the_host_in_an_address_is_not_a_secret():
    """Show the host of a denied database, but neither its whole address nor its password."""
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


def test_a_value_that_a_long_text_cuts_is_masked():
    denials = Denials()
    denials.hide_secrets(lambda: SecretValues([("TOK", TOKEN)]).hide)
    denials.add("path", "/" + "x" * 285 + TOKEN)
    (row,) = denials.rows()
    assert "ghp" not in row.destination


def test_denials_are_empty_if_the_mask_cannot_be_loaded():
    def fail():
        raise ImportError("the package was removed")

    denials = Denials()
    denials.hide_secrets(fail)
    denials.add("name", f"{TOKEN}.com", allow=f"--allow-net {TOKEN}.com")
    (row,) = denials.rows()
    assert (row.destination, row.allow) == ("***", "")
