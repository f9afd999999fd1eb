"""Install the server of each profile that needs no account, start the server in the sandbox, and
list its tools.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from corral.messages import client as messages
from corral.policy import profiles
from servers import sdk
from servers.profile_starts import FLAGS, STARTED
from servers.test_published import MAIN, environment, home  # noqa: F401 - fixtures

pytestmark = [pytest.mark.rig("servers"), pytest.mark.timeout(600)]
START_SECONDS = 400.0


@pytest.mark.parametrize("name", STARTED)
def test_a_profiles_server_starts_and_lists_its_tools(name, environment, monkeypatch, tmp_path):  # noqa: F811
    # Allow more time for an answer, because the first start installs the server.
    monkeypatch.setattr(messages, "ANSWER_SECONDS", START_SECONDS)
    words, variables = STARTED[name]
    arguments = [word.replace("HERE", str(tmp_path)) for word in words]
    reference = profiles.load(name).packages[0]
    argv = [sys.executable, "-I", "-c", MAIN, str(sdk.SOURCE), "run", "--profile", name]
    argv += FLAGS.get(name, ())
    with subprocess.Popen(
        [*argv, reference, *arguments], env={**environment, **variables},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            client = messages.Client(process.stdout, process.stdin)
            client.initialize()
            assert client.list_all("tools/list")
        finally:
            process.stdin.close()
            process.terminate()
