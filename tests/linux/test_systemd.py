"""Ask for a systemd scope, which is a cgroup that systemd makes for a run. The D-Bus is real, but
on it a fake systemd is silent, gives false answers, or records the calls.

tests/vm/test_systemd.py asks the real systemd. This file tests which messages corral sends, and
that corral refuses false answers.
"""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest

import rigs
from corral.plan.model import Results
from corral.platforms.linux import dbus
from corral.platforms.linux.dbus import Bus, CallError, ProtocolError, Variant
from corral.platforms.linux.init import InitProcess
from corral.platforms.linux.mechanisms import cgroup, systemd_scope
from corral.record import replace

PATIENCE = 60.0
SHORT = 0.05
JOB = "/org/freedesktop/systemd1/job/7"
SETTINGS = (
    ("memory.max", str(64 << 20)),
    ("memory.swap.max", "0"),
    ("memory.oom.group", "1"),
    ("pids.max", "129"),
    ("cpu.max", "50000 100000"),
    ("io.max", "8:0 rbps=1000 wbps=2000"),
)


@pytest.fixture
def bus(tmp_path, monkeypatch) -> str:
    """Start a dbus-daemon for this test, and make it the only bus that corral finds."""
    rigs.need("dbus")
    path = str(tmp_path / "bus")
    argv = [
        "dbus-daemon",
        "--session",
        "--nofork",
        "--nopidfile",
        f"--address=unix:path={path}",
        "--print-address",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline().startswith(b"unix:path=")
    monkeypatch.setattr(systemd_scope, "buses", lambda _uid: [path])
    yield path
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def impatient(monkeypatch):
    """Shorten the timeouts, because systemd never answers in these tests."""
    monkeypatch.setattr(systemd_scope, "START_SECONDS", 1.5)
    monkeypatch.setattr(systemd_scope, "END_SECONDS", SHORT)


def test_a_connection_to_the_bus_gets_a_name(bus):
    with Bus(bus, PATIENCE) as one, Bus(bus, PATIENCE) as other:
        assert one.name.startswith(":")
        (names,) = one.driver("ListNames")
        assert {one.name, other.name, dbus.DRIVER} <= set(names)
        assert one.driver("GetConnectionUnixProcessID", "s", one.name) == (os.getpid(),)


@pytest.mark.parametrize(
    ("member", "arguments", "name"),
    [
        ("NoSuchMethod", (), "UnknownMethod"),
        ("GetNameOwner", ("s", "org.example.nobody"), "NameHasNoOwner"),
        ("GetNameOwner", ("u", 5), "InvalidArgs"),
    ],
)
def test_a_bus_error_is_reported_by_name(bus, member, arguments, name):
    with Bus(bus, PATIENCE) as one:
        with pytest.raises(CallError) as caught:
            one.driver(member, *arguments)
        assert caught.value.name == f"org.freedesktop.DBus.Error.{name}"
        # After an error the connection still works.
        assert one.driver("GetNameOwner", "s", one.name) == (one.name,)


def test_no_service_is_activated_to_answer(bus):
    """Call a bus name that no process owns. The bus must refuse the call at once, instead of
    starting a service for this name.
    """
    with Bus(bus, PATIENCE) as one, pytest.raises(CallError) as caught:
        one.call(
            systemd_scope.NAME, systemd_scope.PATH, systemd_scope.INTERFACE, "GetDefaultTarget"
        )
    assert caught.value.name == "org.freedesktop.DBus.Error.NameHasNoOwner"


class NotABus:
    """A socket that is not a bus. It sends `words` to its first client."""

    def __init__(self, path: pathlib.Path, words: tuple[bytes, ...]) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._words = words
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection = self._listener.accept()[0]
        for words in self._words:
            connection.recv(4096)
            connection.sendall(words)
        if self._words:
            connection.recv(4096)
        else:
            while connection.recv(4096):
                pass
        connection.close()

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), TimeoutError),
        ((b"REJECTED EXTERNAL\r\n",), ProtocolError),
        ((b"A" * 300,), ProtocolError),
        ((b"OK 0123\r\n",), ConnectionError),
        ((b"OK 0123\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"), ProtocolError),
        ((b"OK 0123\r\n", b"l\x02\x00\x01\xff\xff\xff\x7f" + bytes(8)), ProtocolError),
    ],
)
def test_a_socket_that_is_not_a_bus_is_closed(tmp_path, words, error):
    stranger = NotABus(tmp_path / "socket", words)
    with pytest.raises(error):
        Bus(stranger.path, SHORT if error is TimeoutError else PATIENCE)
    stranger.close()


class Listener:
    """A fake systemd on the bus, made with jeepney. It records the calls and answers them.

    Every job ends with `result`. With `forged`, another client of the bus reports the result, so
    corral must ignore it.
    """

    def __init__(self, path: str, *, result: str = "done", forged: bool = False) -> None:
        blocking = pytest.importorskip("jeepney.io.blocking", reason="jeepney is not installed")
        self.calls: list = []
        self._result = result
        self._own = blocking.open_dbus_connection(bus=f"unix:path={path}")
        self._third = blocking.open_dbus_connection(bus=f"unix:path={path}") if forged else None
        self._own.send_and_get_reply(self._driver("RequestName", "su", (systemd_scope.NAME, 4)))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @staticmethod
    def _driver(member, signature, body):
        import jeepney

        address = jeepney.DBusAddress(dbus.DRIVER_PATH, dbus.DRIVER, dbus.DRIVER)
        return jeepney.new_method_call(address, member, signature, body)

    def _serve(self) -> None:
        import jeepney

        while True:
            message = self._own.receive()
            if message.header.message_type is not jeepney.MessageType.method_call:
                continue
            member = message.header.fields[jeepney.HeaderFields.member]
            if member == "Leave":
                self._own.send(jeepney.new_method_return(message))
                return
            self.calls.append(message)
            self._own.send(jeepney.new_method_return(message, "o", (JOB,)))
            emitter = jeepney.DBusAddress(systemd_scope.PATH, interface=systemd_scope.INTERFACE)
            body = (7, JOB, message.body[0], self._result)
            # First report the end of another job. corral must go on waiting for its own.
            self._own.send(
                jeepney.new_signal(emitter, "JobRemoved", "uoss", (6, f"{JOB}6", "x", "failed"))
            )
            signal = jeepney.new_signal(emitter, "JobRemoved", "uoss", body)
            (self._third or self._own).send(signal)

    def close(self, path: str) -> None:
        with Bus(path, PATIENCE) as last:
            last.call(systemd_scope.NAME, systemd_scope.PATH, systemd_scope.INTERFACE, "Leave")
        self._thread.join()
        for connection in filter(None, (self._own, self._third)):
            connection.close()


@pytest.fixture
def listen(bus):
    """Return a function that starts the fake systemd and returns its list of calls."""
    listeners: list[Listener] = []

    def start(**options) -> list:
        listeners.append(Listener(bus, **options))
        return listeners[-1].calls

    yield start
    for listener in listeners:
        listener.close(bus)


def header(message) -> tuple:
    import jeepney

    fields = message.header.fields
    names = jeepney.HeaderFields
    return (
        fields[names.path],
        fields[names.interface],
        fields[names.member],
        fields[names.signature],
    )


def test_the_request_to_systemd_has_the_limits(listen):
    heard = listen()
    with systemd_scope._Manager(PATIENCE) as manager:
        manager.start("corral-x.scope", systemd_scope.properties((2, 3), SETTINGS))
    (call,) = heard
    slice_ = "app.slice" if os.geteuid() else "system.slice"
    expected = [
        ("Description", ("s", "corral sandbox")),
        ("Delegate", ("b", True)),
        ("Slice", ("s", slice_)),
        ("CollectMode", ("s", "inactive-or-failed")),
        ("TimeoutStopUSec", ("t", 5_000_000)),
        ("PIDs", ("au", [2, 3])),
        ("MemoryMax", ("t", (64 << 20) + systemd_scope.OWN_MEMORY)),
        ("MemorySwapMax", ("t", 0)),
        ("TasksMax", ("t", 130)),
        ("CPUQuotaPerSecUSec", ("t", 500_000)),
        ("IOReadBandwidthMax", ("a(st)", [("/dev/block/8:0", 1000)])),
        ("IOWriteBandwidthMax", ("a(st)", [("/dev/block/8:0", 2000)])),
    ]
    where = (systemd_scope.PATH, systemd_scope.INTERFACE, "StartTransientUnit", "ssa(sv)a(sa(sv))")
    assert header(call) == where
    assert call.body == ("corral-x.scope", "fail", expected, [])


def test_arguments_are_encoded_as_the_jeepney_library_encodes_them():
    low_level = pytest.importorskip("jeepney.low_level", reason="jeepney is not installed")
    chosen = systemd_scope.properties((2, 3), SETTINGS)
    raw = dbus.marshal("ssa(sv)a(sa(sv))", ("corral-x.scope", "fail", chosen, []))
    pairs = [(name, (variant.signature, variant.value)) for name, variant in chosen]
    parsed = low_level.parse_signature(list("(ssa(sv)a(sa(sv)))"))
    data = ("corral-x.scope", "fail", pairs, [])
    assert raw == parsed.serialise(data, 0, low_level.Endianness.little)


def test_a_scope_without_limits_overrides_the_managers_defaults():
    chosen = dict(systemd_scope.properties((2,), ()))
    assert chosen["TasksMax"] == Variant(signature="t", value=(1 << 64) - 1)
    assert not {name for name in chosen if name.startswith(("Memory", "CPU", "IO"))}


def test_a_scope_whose_systemd_job_fails_is_an_error(listen):
    listen(result="failed")
    with (
        systemd_scope._Manager(PATIENCE) as manager,
        pytest.raises(OSError, match=r"did not start .*: failed"),
    ):
        manager.start("corral-x.scope", [])


def test_only_systemd_can_report_the_end_of_a_job(listen):
    heard = listen(forged=True)
    with systemd_scope._Manager(PATIENCE) as manager:
        manager._bus._deadline = time.monotonic() + 2
        with pytest.raises(TimeoutError):
            manager.start("corral-x.scope", [])
    assert len(heard) == 1  # corral requested one job and ignored the forged report


def test_a_manager_that_only_claims_success_is_not_trusted(listen):
    """Report the job as done without moving the process. corral must notice this."""
    heard = listen()
    with pytest.raises(OSError, match=f"left process {os.getpid()} in "):
        systemd_scope.start("corral-x.scope", (os.getpid(),), ())
    assert len(heard) == 1


CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from corral.platforms.linux.mechanisms import systemd_scope
systemd_scope.buses = lambda _uid: [sys.argv[2]]
with systemd_scope._Manager(20.0) as manager:
    manager.start("corral-x.scope", [])
"""


@pytest.mark.parametrize(("before", "calls"), [((), 1), (("unshare", "-c", "-pf"), 0)])
def test_pids_of_another_pid_namespace_are_not_sent_to_systemd(bus, listen, before, calls):
    """Ask for a scope from a PID namespace that is not systemd's. corral must not send its pids,
    because in systemd's namespace the same numbers belong to other processes. Sanity check: in the
    PID namespace of the bus, corral sends its pids.
    """
    if before and subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare -c -pf does not work here")
    heard = listen()
    source = str(pathlib.Path(systemd_scope.__file__).parents[4])
    argv = [*before, sys.executable, "-c", CLIENT, source, bus]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (len(heard), done.returncode) == (calls, 0 if calls else 1), done.stderr
    assert ("the bus knows process" in done.stderr) == (not calls)


def test_a_bus_without_systemd_gives_no_scope(bus, impatient):
    with pytest.raises(OSError, match="systemd is not on the bus"):
        systemd_scope.start("corral-x.scope", (os.getpid(),), ())
    systemd_scope.stop("corral-x.scope")  # without systemd, `stop` does nothing


def test_systemd_may_join_the_bus_later(bus, listen):
    """Look for systemd before it has joined the bus. This happens when a session's first client
    starts the bus. corral must wait for systemd.
    """
    answers: list[str] = []

    def ask() -> None:
        with systemd_scope._Manager(PATIENCE) as manager:
            answers.append(manager._owner)

    with Bus(bus, PATIENCE) as watcher:
        thread = threading.Thread(target=ask)
        watcher.driver("AddMatch", "s", "type='signal',member='NameOwnerChanged'")
        thread.start()
        # The signal shows that the thread is connected. Start the fake systemd only now.
        watcher.wait(lambda message: message.member == "NameOwnerChanged")
        listen()
        thread.join()
        assert watcher.driver("GetNameOwner", "s", systemd_scope.NAME) == (answers[0],)


def children() -> str:
    return pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_failed_start_leaves_no_process_behind(bus, impatient):
    """Start a scope while systemd is not on the bus. The start must fail, no child process may be
    left, and later steps must not get a cgroup.
    """
    leaf = cgroup.Leaf(base="/nowhere", run="x", controllers=(), settings=())
    results = Results()
    before = children()
    results.add(InitProcess(pid=os.getpid()))
    with pytest.raises(OSError, match="systemd is not on the bus"):
        systemd_scope.plan(leaf).apply(results)
    assert results.find(cgroup.Cgroup) is None
    assert children() == before


def test_a_planned_scope_describes_its_unit_and_limits():
    leaf = cgroup.Leaf(base="/sys/fs/cgroup/m", run="1-a", controllers=(), settings=SETTINGS[:1])
    step = systemd_scope.plan(leaf)
    assert step.unit == "corral-1-a.scope"
    assert step.residue.endswith("/corral-1-a.scope/corral/1-a")
    assert "memory.max = 67108864" in step.describe()
    assert step.leaf == replace(leaf, base=step.leaf.base)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("unix:path=/run/user/1000/bus", ["/run/user/1000/bus"]),
        ("unix:path=/run/bus,guid=12", ["/run/bus"]),
        ("unix:guid=12,path=/a%20b%c3%a9", ["/a b\u00e9"]),
        ("tcp:host=h,port=1;unix:path=/b", ["/b"]),
        ("unix:path=/a;unix:path=/b", ["/a", "/b"]),
        ("unix:abstract=/tmp/x", []),
        ("unix:path=/a%zz", []),
        ("unix:path=", []),
        ("nonsense", []),
        ("", []),
    ],
)
def test_bus_addresses_are_parsed(text, paths):
    assert systemd_scope.addresses(text) == paths


def test_the_users_bus_is_searched_in_the_known_places(tmp_path, monkeypatch):
    for name in ("bus", "other"):
        (tmp_path / name).touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(
        "DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/other;unix:path=/absent/bus"
    )
    assert systemd_scope.buses(4242) == [f"{tmp_path}/other", f"{tmp_path}/bus"]
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
    assert systemd_scope.buses(4242) == [f"{tmp_path}/bus"]
    # Root must not use the bus of a user's manager.
    assert not {f"{tmp_path}/bus"} & set(systemd_scope.buses(0))


def test_the_bus_module_is_imported_only_if_needed():
    code = "import sys; import corral.cli, corral.platforms.linux.backend; print([n for n in sys.modules if 'dbus' in n or 'systemd' in n])"
    source = str(pathlib.Path(systemd_scope.__file__).parents[4])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
