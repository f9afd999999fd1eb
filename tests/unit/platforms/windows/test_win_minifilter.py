"""Test corral's client for a minifilter driver, which asks corral about a target's file accesses.

A fake driver takes part over a socket pair. The layout of the client's messages is compared with C
structs that a compiler has laid out.
"""

import pathlib
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rigs
from corral.abi import win32
from corral.platforms.windows.mechanisms import minifilter
from corral.platforms.windows.mechanisms import minifilter_messages as wire

if sys.platform != "linux":
    pytest.skip("this system has no SOCK_SEQPACKET for the driver's end", allow_module_level=True)

from minifilter_driver import Driver, file_check, ping, registry_check

VOLUME = r"\Device\HarddiskVolume3"
CHECKS = minifilter.Checks(
    read=(r"\DEVICE\HARDDISKVOLUME3\NOTES",), write=(r"\DEVICE\HARDDISKVOLUME3\DATA",)
)
ALLOW, DENY = 0, 1
LAYOUT = pathlib.Path(__file__).parent / "minifilter_layout.c"
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=200)


@pytest.fixture
def driver():
    made = Driver()
    yield made
    made.close()


@pytest.fixture
def session(driver):
    made = minifilter.Session(driver.transport, CHECKS)
    yield made
    made.release()


# --- layout ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    rigs.need("gcc")
    program = tmp_path_factory.mktemp("layout") / "layout"
    subprocess.run(["gcc", "-o", program, LAYOUT], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    return {name: int(number) for name, number in map(str.split, done.stdout.splitlines())}


def test_sizes_match_those_of_the_c_structs(layout):
    header = wire.HEADER.size
    found = {
        "header": header,
        "ping": header + wire.PING_BODY.size,
        "session": header + wire.SESSION_BODY.size,
        "unregister": header + wire.TOKEN_BODY.size,
        "config": header + wire.CONFIG_BODY.size,
        "exclude": header + wire.EXCLUDE_BODY.size,
        "file": header + wire.FILE_BODY.size,
        "registry": header + wire.REGISTRY_BODY.size,
        "response": header + wire.RESPONSE_BODY.size,
        "message_header": wire.MESSAGE_HEADER.size,
        "reply_header": wire.REPLY_HEADER.size,
    }
    assert found == {name: size for name, size in layout.items() if "." not in name}
    # The driver refuses messages of any other size.
    assert found["session"] == 1072
    assert found["config"] == 40
    assert found["exclude"] == 24
    assert found["file"] == 2128
    assert found["registry"] == 1600


def unpack(form, data, at):
    return struct.unpack_from(f"<{form}", data, at)[0]


def test_sent_messages_have_the_layout_of_the_c_structs(layout):
    sent = wire.register_session(1, 0x1122334455667788, 4242, "C:\\w")
    assert unpack("Q", sent, layout["session.token"]) == 0x1122334455667788
    assert unpack("I", sent, layout["session.root"]) == 4242
    assert sent[layout["session.path"] :].startswith("C:\\w\0".encode("utf-16-le"))
    config = wire.set_config(1, timeout_ms=1, failures=2, cache_entries=3, cache_ms=4)
    names = ("mode", "timeout", "failures", "entries", "ttl")
    assert [unpack("I", config, layout[f"config.{name}"]) for name in names] == [1, 1, 2, 3, 4]
    identity = wire.Identity(message=5, kind=1, request=9)
    answer = wire.response(identity, "deny", 77)
    assert unpack("Q", answer, layout["reply_header.id"]) == 5
    assert unpack("I", answer, 16 + layout["response.decision"]) == 1
    assert unpack("I", answer, 16 + layout["response.ttl"]) == 77
    echoed = wire.pong(identity, 123)
    assert unpack("I", echoed, 16 + layout["ping.version"]) == wire.VERSION
    assert unpack("Q", echoed, 16 + layout["ping.time"]) == 123


@pytest.mark.parametrize(
    ("name", "kind", "numbers", "texts"),
    [
        ("file", 1, ("token", "process", "thread", "operation", "disposition", "access"), ("path", "destination")),
        ("registry", 2, ("token", "process", "thread", "operation", "type", "size"), ("key", "value")),
    ],
)  # fmt: skip
def test_received_messages_have_the_layout_of_the_c_structs(layout, name, kind, numbers, texts):
    body = bytearray(layout[name])
    struct.pack_into("<IIQ", body, 0, kind, layout[name], 99)
    for at, field in enumerate(numbers, start=1):
        struct.pack_into("<Q" if field == "token" else "<I", body, layout[f"{name}.{field}"], at)
    for field in texts:
        struct.pack_into(
            f"<{2 * len(field)}s", body, layout[f"{name}.{field}"], field.encode("utf-16-le")
        )
    head = bytearray(layout["message_header"])
    struct.pack_into("<Q", head, layout["message_header.id"], 55)
    identity, request = wire.read_request(bytes(head + body))
    assert identity == wire.Identity(message=55, kind=kind, request=99)
    values = [getattr(request, field) for field in type(request).__match_args__]
    assert values == [1, 2, 3, 4, 5, 6, *texts]


@given(U64, U32, U32, U32, U32, TEXTS, TEXTS)
def test_a_request_of_the_driver_is_decoded_as_it_was_encoded(
    token, operation, access, request, message, path, destination
):
    if max(len(item.encode("utf-16-le", "surrogatepass")) for item in (path, destination)) > 1036:
        return
    raw = lambda item: item.encode("utf-16-le", "surrogatepass").ljust(1040, b"\0")
    body = struct.pack("<QIIIII", token, 1, 2, operation, 3, access)
    body += raw(path) + raw(destination) + bytes(4)
    data = struct.pack("<I4xQ", 40, message) + wire.HEADER.pack(1, 16 + len(body), request) + body
    identity, check = wire.read_request(data)
    assert (identity.message, identity.request) == (message, request)
    assert (check.token, check.operation, check.access) == (token, operation, access)
    assert (check.path, check.destination) == (path, destination)


# --- commands to the driver ----------------------------------------------------------------------


def test_a_session_is_registered_and_unregistered(driver):
    session = minifilter.Session(driver.transport, CHECKS)
    session.register(4242, "C:\\work")
    session.release()
    kinds = [struct.unpack_from("<I", message)[0] for message in driver.seen]
    assert kinds == [104, 107, 100, 101]
    config, exclude, register, unregister = driver.seen
    # With this setting, the driver denies an access if an error occurs.
    assert struct.unpack_from("<I", config, 16)[0] == 1
    assert struct.unpack_from("<I", exclude, 16)[0] > 0
    assert struct.unpack_from("<QI", register, 16) == (session.token, 4242)
    assert struct.unpack_from("<Q", unregister, 16) == (session.token,)
    requests = [struct.unpack_from("<Q", message, 8)[0] for message in driver.seen]
    assert len(set(requests)) == len(requests)


def test_the_driver_refuses_short_messages(driver):
    """Send a message without the padding at its end, as some other clients do."""
    whole = wire.register_session(1, 2, 3, "C:\\w")
    cut = whole[:1068]
    with pytest.raises(OSError, match="parameter"):
        driver.transport.send(struct.pack("<II", 100, len(cut)) + cut[8:])
    driver.transport.send(whole)  # Sanity check: the whole message is accepted
    driver.transport.close()


def test_a_session_that_was_never_registered_is_not_unregistered(driver):
    minifilter.Session(driver.transport, CHECKS).release()
    assert driver.seen == []


def test_a_workspace_that_is_too_long_is_refused(session):
    with pytest.raises(ValueError, match="longer than 519"):
        session.register(1, "C:\\" + "x" * 600)


def test_a_ping_is_answered(driver, session):
    reply = driver.ask(ping(0x10002, 987654321))
    assert struct.unpack("<IIQI4xQ", reply) == (50, 32, 7, wire.VERSION, 987654321)


# --- decisions ------------------------------------------------------------------------------------

DATA, NOTES, OTHER = rf"{VOLUME}\data", rf"{VOLUME}\notes", rf"{VOLUME}\Users\u\.ssh\id"


@pytest.mark.parametrize(
    ("operation", "path", "destination", "access", "decision"),
    [
        (3, rf"{DATA}\x.txt", "", 0, ALLOW),
        (3, DATA.upper() + "\\X", "", 0, ALLOW),
        (1, rf"{DATA}\new\deep", "", 0, ALLOW),
        (4, rf"{DATA}\x", "", 0, ALLOW),
        (3, rf"{NOTES}\x.txt", "", 0, DENY),
        (2, rf"{NOTES}\x.txt", "", 1, ALLOW),
        (2, rf"{NOTES}\x.txt", "", 0x40000000, DENY),  # a "read" that asks for GENERIC_WRITE
        (2, rf"{NOTES}\x.txt", "", 0x00010000, DENY),  # a "read" that asks for DELETE
        (2, rf"{DATA}\x.txt", "", 0x2, ALLOW),
        (2, OTHER, "", 1, DENY),
        (3, OTHER, "", 0, DENY),
        (3, rf"{VOLUME}\database", "", 0, DENY),
        (3, rf"{DATA}\..\Users\u\x", "", 0, DENY),
        (3, rf"{DATA}\.\x", "", 0, DENY),
        (3, rf"{DATA}\\x", "", 0, DENY),
        (3, r"C:\data\x", "", 0, DENY),
        (3, r"\??\C:\data\x", "", 0, DENY),
        (3, r"\Device\HarddiskVolume4\data\x", "", 0, DENY),
        (3, r"\Device\Mup\server\share\data", "", 0, DENY),
        (3, "", "", 0, DENY),
        (5, rf"{DATA}\x", rf"{DATA}\y", 0, ALLOW),
        (5, rf"{DATA}\x", rf"{VOLUME}\Users\u\Startup\y", 0, DENY),
        (5, rf"{NOTES}\x", rf"{DATA}\y", 0, DENY),
        (5, rf"{DATA}\x", "", 0, DENY),
        (0, rf"{DATA}\x", "", 0, DENY),
        (6, rf"{DATA}\x", "", 0, DENY),
    ],
)  # fmt: skip
def test_file_checks_follow_the_grants(
    driver, session, operation, path, destination, access, decision
):
    message = file_check(session.token, operation, path, destination, access)
    assert driver.decide(message)[0] == decision


@pytest.mark.parametrize(
    ("operation", "decision"), [(6, ALLOW), *((n, DENY) for n in (0, 1, 2, 3, 4, 5, 7))]
)
def test_only_one_registry_operation_is_allowed(driver, session, operation, decision):
    key = r"\REGISTRY\USER\S-1-5-21\Software\Microsoft\Windows\CurrentVersion\Run"
    assert driver.decide(registry_check(session.token, operation, key))[0] == decision


def test_checks_of_another_session_are_denied(driver, session):
    assert driver.decide(file_check(session.token, 3, rf"{DATA}\x"))[0] == ALLOW
    assert driver.decide(file_check(session.token ^ 1, 3, rf"{DATA}\x"))[0] == DENY


def test_only_answers_that_depend_on_operation_and_path_are_cached(driver, session):
    """Check which decisions the driver may cache. Its cache ignores the destination of a rename,
    and the access that an open asks for. So a decision that depends on one of these may be cached
    only for the shortest time, 1 ms.
    """
    remembered = {
        "write": driver.decide(file_check(session.token, 3, rf"{DATA}\x"))[1],
        "rename": driver.decide(file_check(session.token, 5, rf"{DATA}\x", rf"{DATA}\y"))[1],
        "read": driver.decide(file_check(session.token, 2, rf"{DATA}\x"))[1],
    }
    assert remembered["write"] > 1000
    # For 0, the driver would use its own default of a few seconds.
    assert remembered["rename"] == remembered["read"] == 1


# --- invalid messages ---------------------------------------------------------------------------


def malformed():
    good = file_check(1, 3, rf"{DATA}\x")
    yield "truncated", good[:-1]
    yield "no padding", struct.pack("<II", 1, 2124) + good[8:2124]
    yield "oversized", struct.pack("<II", 1, 2136) + good[8:] + bytes(8)
    yield "lying size", struct.pack("<II", 1, 16) + good[8:]
    yield "header only", good[:16]
    yield "half a header", good[:10]
    yield "nothing", b""
    yield "unknown type", struct.pack("<IIQ", 77, 16, 1)
    yield "our own command", struct.pack("<IIQQ", 101, 24, 1, 1)
    yield "path without an end", good[:44] + b"A\0" * 520 + good[1084:]
    yield "path cut off by the driver", good[:44] + b"A\0" * 519 + bytes(2) + good[1084:]
    yield "a ping too short", struct.pack("<IIQI", 0, 20, 1, 1)


@pytest.mark.parametrize(
    "message", [item for _, item in malformed()], ids=[n for n, _ in malformed()]
)
def test_a_malformed_message_is_denied_and_the_next_is_answered(driver, session, message):
    assert driver.decide(message) == (DENY, 1)
    assert driver.decide(file_check(session.token, 3, rf"{DATA}\x"))[0] == ALLOW


@given(st.binary(max_size=2200))
def test_random_bytes_are_never_allowed(data):
    checks = minifilter.Checks(write=(r"\DEVICE",))
    session = minifilter.Session.__new__(minifilter.Session)
    session._checks, session._token = checks, 1
    answer = session.answer(data)
    if answer is not None and unpack("I", answer, 16) != 50:
        assert unpack("I", answer, 32) == DENY


def test_notices_of_the_driver_get_no_answer(driver, session):
    driver.send(struct.pack("<IIQQIIQ", 3, 40, 1, session.token, 5, 6, 7))
    assert driver.decide(file_check(session.token, 3, rf"{DATA}\x"))[0] == ALLOW


def test_a_session_can_be_released_after_the_driver_has_disconnected():
    driver = Driver()
    session = minifilter.Session(driver.transport, CHECKS)
    session.register(1, "C:\\w")
    driver.close()
    session.release()  # must neither hang nor raise


# --- from drive letters to devices ----------------------------------------------------------------

DEVICES = {
    "C:": VOLUME,
    "D:": r"\??\C:\sub",
    "E:": r"\??\D:\again",
    "X:": r"\Device\LanmanRedirector\;X:00000\server\share",
    "N:": r"\Device\;LanmanRedirector\;N:0\server\share",
    "Z:": "nonsense",
}


def query(drive):
    try:
        return DEVICES[drive.upper()]
    except KeyError:
        raise OSError(0, "no such drive") from None


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("C:\\Data", r"\DEVICE\HARDDISKVOLUME3\DATA"),
        ("c:\\Data\\", r"\DEVICE\HARDDISKVOLUME3\DATA"),
        ("D:\\x", r"\DEVICE\HARDDISKVOLUME3\SUB\X"),
        ("E:\\x", ""),
        ("N:\\x", ""),
        ("Z:\\x", ""),
        ("Q:\\x", ""),
        ("C:x", ""),
        (r"\\server\share\x", ""),
        (r"\\?\C:\x", ""),
        ("é:\\x", ""),
        ("", ""),
    ],
)
def test_paths_become_device_paths(path, root):
    assert minifilter.device_roots([path], query) == ((root,) if root else ())


@given(st.text(max_size=30))
def test_any_path_becomes_a_device_path_or_nothing(path):
    assert all(root.startswith("\\DEVICE\\") for root in minifilter.device_roots([path], query))


def test_the_windows_directory_can_be_read_and_not_written():
    step = minifilter.Minifilter(read=("C:\\notes",), write=("C:\\data",), workspace="C:\\data")
    checks = step.checks(query=query, windows="C:\\Windows")
    library = rf"{VOLUME}\Windows\System32\ntdll.dll"
    assert minifilter.is_within(library, checks.read)
    assert not minifilter.is_within(library, checks.write)
    assert minifilter.is_within(rf"{VOLUME}\notes\x", checks.read)
    assert minifilter.is_within(rf"{VOLUME}\data\x", checks.write)
    assert not minifilter.is_within(rf"{VOLUME}\Users\u\x", (*checks.read, *checks.write))


# --- no driver ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (win32.ERROR_FILE_NOT_FOUND, "no driver"),
        (win32.ERROR_ACCESS_DENIED, "administrators"),
        (1238, "another program"),
        (win32.E_NOTIMPL, "not implemented"),
        (31, "error 31"),
    ],
)
def test_the_reason_for_a_missing_driver_is_reported(code, words):
    error = OSError(0, f"error {code}")
    error.winerror = code
    assert words in minifilter.absence(error)


def test_other_systems_have_no_driver():
    with pytest.raises(minifilter.AbsentError, match="no filter manager"):
        minifilter.connect(CHECKS)
    assert minifilter.probe().status == "absent"
