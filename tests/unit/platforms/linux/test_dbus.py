"""Test D-Bus messages with known bytes, round trips, another implementation, and invalid input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.platforms.linux import dbus
from corral.platforms.linux.dbus import Message, ProtocolError, Reader, Variant

# The first bytes that libdbus 1.14 sends, recorded from its socket.
HELLO = (
    b"l\x01\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x6e\x00\x00\x00"
    b"\x01\x01o\x00\x15\x00\x00\x00/org/freedesktop/DBus\x00\x00\x00"
    b"\x06\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00"
    b"\x02\x01s\x00\x14\x00\x00\x00org.freedesktop.DBus\x00\x00\x00\x00"
    b"\x03\x01s\x00\x05\x00\x00\x00Hello\x00\x00\x00"
)
# The arguments of a call that makes systemd create a scope, encoded by hand.
ARGUMENTS = (
    b"\x07\x00\x00\x00a.scope\x00" b"\x04\x00\x00\x00fail\x00" b"\x00\x00\x00"
    b"\x34\x00\x00\x00" b"\x00\x00\x00\x00"
    b"\x08\x00\x00\x00Delegate\x00" b"\x01b\x00" b"\x01\x00\x00\x00" b"\x00\x00\x00\x00"
    b"\x04\x00\x00\x00PIDs\x00" b"\x02au\x00" b"\x00\x00\x00" b"\x08\x00\x00\x00" b"\x02\x00\x00\x00\x03\x00\x00\x00"
    b"\x00\x00\x00\x00"
)  # fmt: skip


def boolean(value):
    return Variant(signature="b", value=value)


@pytest.mark.parametrize(
    ("signature", "values", "raw"),
    [
        # The two examples from the specification's chapter on marshalling.
        ("sss", ("foo", "+", "bar"), (b"\3\0\0\0foo\0" b"\1\0\0\0+\0\0\0" b"\3\0\0\0bar\0")),
        ("ax", ([5],), (b"\x08\0\0\0" b"\0\0\0\0" b"\x05\0\0\0\0\0\0\0")),
        # An empty array has padding too.
        ("yat", (1, []), (b"\1\0\0\0" b"\0\0\0\0")),
        ("yatu", (1, [], 2), (b"\1\0\0\0" b"\0\0\0\0" b"\2\0\0\0")),
        ("at", ([],), (b"\0\0\0\0" b"\0\0\0\0")),
        ("v", (boolean(True),), (b"\1b\0" b"\0" b"\1\0\0\0")),
        ("(yq)", ((1, 2),), b"\1\0\2\0"),
        ("yg", (7, "a{sv}"), (b"\7" b"\5a{sv}\0")),
        ("i", (-2,), b"\xfe\xff\xff\xff"),
        (
            "ssa(sv)a(sa(sv))",
            ("a.scope", "fail", [("Delegate", boolean(True)), ("PIDs", Variant(signature="au", value=[2, 3]))], []),
            ARGUMENTS,
        ),
    ],
)  # fmt: skip
def test_values_are_encoded_as_known_bytes_and_decoded_again(signature, values, raw):
    assert dbus.marshal(signature, values) == raw
    assert Reader(raw, "<").values(signature) == values


def test_values_in_big_endian_byte_order_are_read():
    raw = b"\0\0\0\3foo\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\5"
    assert Reader(raw, ">").values("sax") == ("foo", [5])


def test_a_call_of_libdbus_is_read():
    name, path = "org.freedesktop.DBus", "/org/freedesktop/DBus"
    seen = dbus.decode(HELLO)
    call = Message(
        kind=dbus.CALL, serial=1, path=path, interface=name, member="Hello", destination=name
    )
    assert seen == call
    assert dbus.decode(dbus.encode(call)) == call
    assert len(dbus.encode(call)) == len(HELLO)


NUMBERS = {
    "y": st.integers(0, 2**8 - 1),
    "b": st.booleans(),
    "n": st.integers(-(2**15), 2**15 - 1),
    "q": st.integers(0, 2**16 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "u": st.integers(0, 2**32 - 1),
    "x": st.integers(-(2**63), 2**63 - 1),
    "t": st.integers(0, 2**64 - 1),
    "d": st.floats(allow_nan=False),
    "s": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9),
    "o": st.sampled_from(["/", "/a", "/org/freedesktop/systemd1"]),
    "g": st.sampled_from(["", "a{sv}", "(yt)au"]),
}
BASIC = st.sampled_from(sorted(NUMBERS))


def wider(inner):
    structs = st.lists(inner, min_size=1, max_size=3).map(lambda kinds: f"({''.join(kinds)})")
    entries = st.tuples(BASIC, inner).map(lambda pair: f"a{{{pair[0]}{pair[1]}}}")
    return inner.map(lambda kind: f"a{kind}") | structs | entries | st.just("v")


KINDS = st.recursive(BASIC, wider, max_leaves=6)


def values_of(kind: str, depth: int = 0):
    if kind in NUMBERS:
        return NUMBERS[kind]
    if kind == "v":
        inner = KINDS if depth < 2 else BASIC
        return inner.flatmap(
            lambda chosen: values_of(chosen, depth + 1).map(
                lambda value: Variant(signature=chosen, value=value)
            )
        )
    if kind.startswith("a{"):
        key, value = dbus.split_fields(kind[1:])
        pairs = st.tuples(values_of(key, depth), values_of(value, depth))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if kind.startswith("a"):
        return st.lists(values_of(kind[1:], depth), max_size=3)
    return st.tuples(*(values_of(inner, depth) for inner in dbus.split_fields(kind)))


BODIES = st.lists(KINDS, min_size=1, max_size=3).flatmap(
    lambda kinds: st.tuples(st.just("".join(kinds)), st.tuples(*map(values_of, kinds)))
)


@given(BODIES)
def test_written_values_are_read_back(body):
    signature, values = body
    assert dbus.split(signature)
    assert Reader(dbus.marshal(signature, values), "<").values(signature) == values
    message = Message(kind=dbus.SIGNAL, serial=9, member="M", signature=signature, body=values)
    assert dbus.decode(dbus.encode(message)) == message


def theirs(kind: str, value):
    """Return a value as jeepney represents it: dictionaries are dicts and variants are pairs."""
    if kind == "v":
        return value.signature, theirs(value.signature, value.value)
    if kind.startswith("a{"):
        left, right = dbus.split_fields(kind[1:])
        return {theirs(left, one): theirs(right, other) for one, other in value}
    if kind.startswith("a"):
        return [theirs(kind[1:], item) for item in value]
    if kind.startswith("("):
        pairs = zip(dbus.split_fields(kind), value, strict=True)
        return tuple(theirs(inner, item) for inner, item in pairs)
    return value


@given(BODIES)
def test_another_implementation_writes_the_same_bytes(body):
    low_level = pytest.importorskip("jeepney.low_level", reason="jeepney is not installed")
    signature, values = body
    kind = f"({signature})"  # jeepney writes one value at a time, so put all values into one struct
    parsed = low_level.parse_signature(list(kind))
    raw = parsed.serialise(theirs(kind, values), 0, low_level.Endianness.little)
    assert dbus.marshal(signature, values) == raw


@pytest.mark.parametrize(
    ("signature", "values"),
    [
        ("y", (256,)), ("u", (-1,)), ("t", (1 << 64,)), ("s", (1,)), ("s", ("a\0b",)), ("s", ("\ud800",)), ("i", ("1",)),
        ("u", (1.5,)), ("(ii)", ((1,),)), ("au", (1,)), ("ss", ("one",)), ("v", ("bare",)), ("v", (Variant(signature="uu", value=1),)),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_not_written(signature, values):
    with pytest.raises(ValueError):
        dbus.marshal(signature, values)


@pytest.mark.parametrize(
    "signature",
    ["a", "(", "()", "(y", "y)", "{sv}", "a{s}", "a{vs}", "a{svs}", "a{(y)s}", "h", "z", "\u0660", "a" * 40 + "y", "y" * 256, "(" * 40 + "y" + ")" * 40],
)  # fmt: skip
def test_invalid_signatures_are_refused(signature):
    with pytest.raises(ProtocolError):
        dbus.split(signature)


@pytest.mark.parametrize(
    ("signature", "raw"),
    [
        ("u", b"\0\0\0"), ("s", b"\xff\xff\xff\xff"), ("s", b"\1\0\0\0ab"), ("s", b"\1\0\0\0a"), ("s", b"\2\0\0\0a\0\0"),
        ("s", b"\1\0\0\0\xff\0"), ("b", b"\2\0\0\0"), ("yu", b"\1\1\0\0\1\0\0\0"), ("au", b"\xff\xff\xff\x7f"), ("au", b"\3\0\0\0\0\0\0"),
        ("at", b"\x08\0\0\0\1\0\0\0" + bytes(8)), ("v", b"\2uu\0"), ("v", b"\1z\0"), ("v", b"\0\0"), ("v", b"\1v\0" * 70 + b"\1y\0\0"),
    ],
)  # fmt: skip
def test_invalid_values_are_refused(signature, raw):
    with pytest.raises(ProtocolError):
        Reader(raw, "<").values(signature)


def test_nested_values_within_the_bounds_are_read():
    assert Reader(b"\1v\0" * 20 + b"\1y\0\7", "<").values("v")


def changed(at: int, byte: int) -> bytes:
    raw = bytearray(HELLO)
    raw[at] = byte
    return bytes(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"", HELLO[:15], HELLO[:-1], HELLO + b"\0", changed(0, ord("x")), changed(3, 2), changed(4, 8), changed(12, 0x6c),
        changed(15, 0x7f), changed(18, ord("s")), changed(26, 0xff),
    ],
)  # fmt: skip
def test_invalid_messages_are_refused(raw):
    with pytest.raises(ProtocolError):
        dbus.decode(raw)


def test_a_message_that_is_too_long_is_refused_at_once():
    start = changed(7, 1)[: dbus.FIXED]
    with pytest.raises(ProtocolError, match="a message of"):
        dbus.length(start)
    assert dbus.length(HELLO[: dbus.FIXED]) == len(HELLO)


@given(st.integers(0, len(HELLO) - 1), st.integers(0, 255))
def test_a_damaged_message_is_read_or_refused(at, byte):
    try:
        dbus.decode(changed(at, byte))
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw):
    for text in (raw, HELLO[:4] + raw):
        try:
            dbus.decode(text)
        except ProtocolError:
            pass
