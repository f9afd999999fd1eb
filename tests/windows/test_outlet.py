"""Named hosts through the relay, put together as a run does it: all but the container, which is Windows' own."""

from __future__ import annotations

import socket

import pytest

from corral.denials.records import Denials
from corral.plan.model import Plan
from corral.platforms.windows import environment
from corral.platforms.windows.mechanisms import job, process_creation
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import app_container, trial
from corral.platforms.windows.relay import start as relay_start
from corral.platforms.windows.relay.outside import outlet
from corral.programs.model import Program


@pytest.fixture
def read_back() -> bool:
    try:
        job.create(Job()).close()
    except OSError:
        return False
    return True


def test_a_named_port_is_reached_and_no_other(read_back):
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("", 0)) as other:
        ports = [str(listener.getsockname()[1]) for listener in (named, other)]
        hosts = relay_start.NamedHosts(
            allow=(f"127.0.0.1:{ports[0]}",),
            python=environment.interpreter(),
            environment=tuple(environment.machine().items()),
            memory=relay_start.SHIM_MEMORY if read_back else None,
            childless=read_back,
            read_back=read_back,
        )
        steps = (hosts, Job(read_back=read_back), process_creation.Creation())
        running = trial.start(app_container.ASK, steps, *ports)
        denials = Denials()
        asked = Plan(
            program=Program(path="", argv=()), steps=(), controls=(), environment=(),
            allow=hosts.allow,
        )  # fmt: skip
        way = outlet(asked, running.child.doors(), denials)
        seen = running.finish()
        way.close()
    assert seen.said == "200 403"
    assert [row.destination for row in denials.rows()] == [f"127.0.0.1:{ports[1]}"]
