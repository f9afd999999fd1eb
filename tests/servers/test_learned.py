"""Run `corral learn` on published servers, and check that the same calls succeed with the proposed
policy.

The calls are repeated under `learn` until it proposes nothing new, and then made with the proposed
policy. Four servers are also tested without `learn`: the flags that each `corral run` suggests are
added to the next run, until the calls succeed.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import secrets
import shlex
import sys

import pytest

from corral.policy import profiles
from servers import sdk
from servers.published import SERVERS
from servers.test_published import (  # noqa: F401 - fixtures
    MAIN,
    client,
    environment,
    filled,
    home,
    page,
    work,
)

pytestmark = pytest.mark.rig("servers")
MAX_ROUNDS = 5
NOT_STARTED = {"text": "it did not start", "failed": True}
IN_WORK = {"sqlite": ("--db-path", "{work}/notes.db")}
LEARNED = [
    dataclasses.replace(one, arguments=IN_WORK.get(one.profile, one.arguments))
    for one in SERVERS
    if one.profile != "playwright"  # downloads a browser
]
SENSITIVE = re.compile(r"\.ssh|id_ed25519|\.git/|/etc|\.env\b|\.netrc|\.npmrc|\.gitconfig")


class Session:
    """A server under test. `ask` starts it with a corral command, makes the server's calls, and
    returns the results and corral's messages.
    """

    def __init__(self, server, client, environment, words, errors):  # noqa: F811
        self._server, self._client, self._environment = server, client, environment
        self._words, self._errors = words, errors

    def ask(self, command: str, flags: list[str]) -> tuple[list[dict], list[str]]:
        server = self._server
        self._words["mark"] = secrets.token_hex(8)
        argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), command, *flags]
        argv += [server.reference, *filled(server.arguments, self._words)]
        try:
            found = sdk.session(
                self._client,
                self._environment,
                command="/bin/sh",
                args=["-c", f'exec "$0" "$@" 2>{shlex.quote(str(self._errors))}', *argv],
                sandboxed=None,
                env=dict(server.env),
                calls=[(name, filled(given, self._words)) for name, given, _ in server.calls],
            )
        except AssertionError:
            found = {"results": [NOT_STARTED] * len(server.calls)}
        lines = self._errors.read_text().splitlines()
        return found["results"], [line for line in lines if line.startswith("corral: ")]

    def failures(self, results: list[dict]) -> list[str]:
        """Return the answers that differ from the expected ones. Skip answers that depend on the
        Internet.
        """
        pairs = zip(self._server.calls, results, strict=True)
        return [
            result["text"]
            for (_, _, expected), result in pairs
            if expected is not None
            and (result["failed"] or filled(expected, self._words) not in result["text"])
        ]

    def check_hosts(self, flags: list[str]) -> None:
        """Check the hosts that `learn` proposes for a server whose answers depend on the Internet.

        The profile was written by hand, and lists all hosts that the server needs. So `learn` has
        to propose at least one host, and only hosts from the profile.
        """
        if any(expected is not None for _, _, expected in self._server.calls):
            return
        hosts = {word for before, word in itertools.pairwise(flags) if before == "--allow-net"}
        allow = profiles.load(self._server.profile).manifest.allow
        known = {entry.partition(":")[0] for entry in allow}
        assert hosts
        assert {host.partition(":")[0] for host in hosts} <= known


@pytest.fixture
def session(request, client, environment, page, work):  # noqa: F811
    server = request.param
    words = {
        "work": str(work),
        "host": page,
        "url": f"http://{page}/",
        "mark": secrets.token_hex(8),
    }
    env = dict(server.env)
    flags = [word for name in env for word in ("--env", name)]
    # Some packages do not declare all their dependencies. The profile lists the missing
    # dependencies in `beside`.
    flags += [word for one in profiles.load(server.profile).beside for word in ("--with", one)]
    made = Session(server, client, environment, words, work / "errors")
    made.given = flags
    return made


def accepted(lines: list[str]) -> list[str]:
    found = [line.removeprefix("corral: accepted: ") for line in lines if "accepted: " in line]
    return shlex.split(found[0]) if found else []


@pytest.mark.parametrize("session", LEARNED, ids=lambda one: one.profile, indirect=True)
def test_the_proposed_policy_makes_the_same_calls_succeed(session):
    flags: list[str] = []
    for _ in range(MAX_ROUNDS):
        _, lines = session.ask("learn", ["--accept", *session.given, *flags])
        assert [
            line
            for line in lines
            if re.search(r"watched \d+ calls .* slowed the target down", line)
        ]
        new = accepted(lines)
        if not new:
            break
        flags += new
    else:
        pytest.fail(f"the server still asks for more: {lines}")
    assert not SENSITIVE.search(" ".join(flags)), flags
    paths = [word for word in flags if word.startswith("/")]
    assert all(path.startswith(session._words["work"]) for path in paths), paths
    print(session._server.profile, flags)
    session.check_hosts(flags)
    results, lines = session.ask("run", [*session.given, *flags])
    assert session.failures(results) == [], lines
    denied = [line for line in lines if line.startswith("corral: denied: ")]
    assert [line for line in denied if "; --" in line] == []


MET = {"git", "fetch", "filesystem", "memory"}


@pytest.mark.parametrize(
    "session",
    [one for one in SERVERS if one.profile in MET],
    ids=lambda one: one.profile,
    indirect=True,
)
def test_the_flags_that_a_run_names_make_the_server_work(session):
    flags: list[str] = []
    for _ in range(MAX_ROUNDS):
        results, lines = session.ask("run", flags)
        failed = session.failures(results)
        if not failed:
            break
        named = [line.rpartition("; ")[2] for line in lines if line.startswith("corral: denied: ")]
        new = [flag for flag in dict.fromkeys(named) if flag.startswith("--")]
        assert new, (failed, lines)
        flags += [word for flag in new for word in shlex.split(flag)]
    assert failed == []
    assert flags
    print(session._server.profile, flags)
