"""Test the relay, through which a target in an AppContainer reaches hosts by name. Its processes
are connected as in a run, but there is no container.
"""

from __future__ import annotations

import socket

import pytest

from corral.denials.records import Denials
from corral.plan.model import Plan
from corral.platforms.windows.layers import machine_variables
from corral.platforms.windows.mechanisms import job, process_creation
from corral.platforms.windows.mechanisms.job import Job
from corral.platforms.windows.probes import app_container, trial
from corral.platforms.windows.relay import start as relay_start
from corral.platforms.windows.relay.outside import open_relay
from corral.platforms.windows.runtime_copies.store import own_interpreter
from corral.programs.model import Program


@pytest.fixture
def read_back() -> bool:
    try:
        job.create(Job()).release()
    except OSError:
        return False
    return True


def test_only_a_named_port_is_reached(read_back):
    with socket.create_server(("127.0.0.1", 0)) as named, socket.create_server(("", 0)) as other:
        ports = [str(listener.getsockname()[1]) for listener in (named, other)]
        hosts = relay_start.NamedHosts(
            allow=(f"127.0.0.1:{ports[0]}",),
            python=own_interpreter(),
            environment=tuple(machine_variables().items()),
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
        relay = open_relay(asked, running.child.relay_pipes(), denials)
        seen = running.finish()
        relay.close()
    assert seen.output == "200 403"
    assert [row.destination for row in denials.rows()] == [f"127.0.0.1:{ports[1]}"]
