"""Test the frame reader. It must find the same frames wherever the stream is split into pieces, and
refuse ambiguous messages.
"""

import io
import json
import random
import subprocess
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.messages import frames
from corral.messages.frames import FrameReader, TooLong

CHUNKS = st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\x01", b"\n")), max_size=12)


def read(chunks: list[bytes], max_bytes: int = 1 << 20) -> list[bytes | TooLong]:
    reader = FrameReader(max_bytes)
    found = [frame for chunk in chunks for frame in reader.feed(chunk)]
    rest = reader.end()
    return found if rest is None else [*found, rest]


@given(CHUNKS, st.integers(1, 50))
def test_each_line_of_the_stream_is_a_frame_unless_it_is_too_long(chunks, max_bytes):
    lines = io.BytesIO(b"".join(chunks)).readlines()
    found = read(chunks, max_bytes)
    assert len(found) == len(lines)
    for frame, line in zip(found, lines, strict=True):
        bare = line.removesuffix(b"\n")
        if len(bare) <= max_bytes:
            assert frame == line
        else:
            assert isinstance(frame, TooLong)
            assert frame.size == len(bare)
            assert frame.start == bare[: frames.KEPT_BYTES]
            assert frame.end == bare[-frames.KEPT_BYTES :]


def test_a_line_without_end_uses_bounded_memory():
    reader = FrameReader(1 << 16)
    tracemalloc.start()
    try:
        for _ in range(4096):
            assert not list(reader.feed(b"x" * (1 << 14)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()
    (frame,) = reader.feed(b"\n")
    assert isinstance(frame, TooLong)
    assert frame.size == 4096 << 14


@pytest.mark.parametrize("identity", [7, -1, "seven", 'q"uote', ""])
@pytest.mark.parametrize("order", [("id", "result"), ("result", "id"), ("jsonrpc", "id", "result")])
def test_the_id_of_a_long_answer_is_found(identity, order):
    values = {"jsonrpc": "2.0", "id": identity, "result": {"id": 99, "text": "x" * 5000}}
    message = {name: values[name] for name in dict.fromkeys((*order, *values))}
    (frame,) = read([json.dumps(message).encode() + b"\n"], 1000)
    assert frame.find_id() == identity


@pytest.mark.parametrize(
    "line",
    [b'{"result":{"id":9,"x":"%b"}}' % (b"x" * 5000), b'[{"id":9,' + b"x" * 5000, b"x" * 5000],
)
def test_an_id_inside_other_values_is_not_the_id_of_the_message(line):
    (frame,) = read([line], 1000)
    assert frame.find_id() is None


UNCLEAR = {
    "not JSON": b"Server started\n",
    "nothing": b"\n",
    "a name that occurs twice": b'{"jsonrpc":"2.0","id":1,"id":2,"result":{}}\n',
    "twice, one of them escaped": b'{"id":1,"\\u0069d":2}\n',
    "twice, deep inside": b'{"result":{"tools":[{"name":"a","name":"b"}]}}\n',
    "not a number": b'{"id":NaN}\n',
    "infinity": b'{"id":-Infinity}\n',
    "a carriage return inside": b'{"a":[\r{"jsonrpc":"2.0","id":1,"result":{}}\r]}\n',
    "a NUL": b'{"a":"\x00"}\n',
    "NULs between": b"\x00{\x00}\x00\n",
    "UTF-16": '{"jsonrpc":"2.0"}'.encode("utf-16-le") + b"\n",
    "a byte order mark": b'\xef\xbb\xbf{"a":1}\n',
    "not UTF-8": b'{"a":"\xff"}\n',
    "UTF-8 of a surrogate": b'{"a":"\xed\xa0\x80"}\n',
    "an overlong form": b'{"a":"\xc0\xaf"}\n',
    "two values": b'{"a":1}{"b":2}\n',
    "a comma too many": b'{"a":1,}\n',
    "a number too long": b'{"a":%b}\n' % (b"1" * 5000),
    "deep": b"[" * 100_000 + b"]" * 100_000 + b"\n",
    "too many objects": b"[" + b"{}," * 300_000 + b"0]\n",
}


@pytest.mark.parametrize("why", UNCLEAR)
def test_ambiguous_text_is_not_a_message(why):
    with pytest.raises(ValueError, match=r"."):
        frames.decode(UNCLEAR[why])


def test_brackets_and_commas_inside_strings_are_not_counted():
    text = "[{," * 400_000 + '"\\'
    assert frames.decode(json.dumps({"text": text}).encode()) == {"text": text}


SHAPES = ['{"":0},', '"\u0100",', "[[0]],"]


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_a_message_uses_bounded_memory(shape):
    size = 16 << 20
    many = shape * (size // len(shape.encode()))
    astral = json.dumps(f"\U00010000{many}", ensure_ascii=False)
    for raw in (f"[{many}0]".encode(), astral.encode()):
        tracemalloc.start()
        try:
            frames.decode(raw)
        except ValueError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 10 * len(raw), peak / len(raw)


NODE = """
for (const line of require('fs').readFileSync(0, 'utf8').split('\\n').slice(0, -1)) {
  let read;
  try { read = JSON.stringify(JSON.parse(Buffer.from(line, 'hex').toString())); } catch { read = 'refused'; }
  console.log(Buffer.from(read).toString('hex'));
}
"""
PARTS = [
    b'{"jsonrpc":"2.0",', b'"id":1', b'"id":2,', b'"result":{', b'"tools":[', b'{"name":"a"}', b"]", b"}", b",",
    b'"\\u0069d":3', b'"name"', b":", b'"\\ud83d\\ude00"', b'"\xc3\xa9"', b"\xff", b"1e3", b"-0", b"01", b"\r", b" ",
    b"\x00", b"NaN", b"true", b"null", b'"a\\"b"', b"'a'", b"//", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"\xe2\x80\xa8"',
]  # fmt: skip


@pytest.mark.rig("node")
def test_node_reads_accepted_text_as_corral_does():
    """Compare corral's results with those of node. Its JSON parser is independent of corral's, and
    most clients use it.
    """
    chance = random.Random(7)
    lines = [b"".join(chance.choices(PARTS, k=chance.randint(1, 9))) for _ in range(20_000)]
    lines += [json.dumps({"a": [chance.random(), index]}).encode() for index in range(1000)]
    asked = "".join(f"{line.hex()}\n" for line in lines)
    argv = ["/usr/bin/node", "-e", NODE]
    done = subprocess.run(
        argv, input=asked, capture_output=True, text=True, check=True, timeout=100
    )
    told = [bytes.fromhex(line).decode() for line in done.stdout.splitlines()]
    clear = 0
    for line, read in zip(lines, told, strict=True):
        try:
            value = frames.decode(line)
        except ValueError:
            continue
        clear += 1
        assert read != "refused", line
        assert json.loads(read) == value, line
    assert clear > 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([b"\n", b"\r\n", b""]))
def test_every_value_written_as_json_is_read(value, ascii_only, end):
    try:
        line = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False).encode()
    except (ValueError, UnicodeEncodeError):
        return  # JSON cannot express infinity, and UTF-8 cannot encode half of a surrogate pair
    assert frames.decode(line + end) == value


KINDS = [
    ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, "request"),
    ({"jsonrpc": "2.0", "id": None, "method": "ping"}, "request"),
    ({"jsonrpc": "2.0", "method": "ping", "more": 1}, "notification"),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, "answer"),
    ({"jsonrpc": "2.0", "error": {}}, "answer"),
    ({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}}, None),
    ({"jsonrpc": "2.0", "id": 1, "method": "ping", "result": {}}, None),
    ({"jsonrpc": "2.0", "id": 1}, None),
    ({"jsonrpc": "2.0", "id": 1, "result": {}, "Id": 2}, None),
    ({"jsonrpc": "2.0", "METHOD": "ping"}, None),
    ({"jsonrpc": "2.0", "id": 1, "result": {}, "re\u017fult": {}}, None),
    ({"jsonrpc": "1.0", "id": 1, "result": {}}, None),
    ({"id": 1, "result": {}}, None),
    ({"jsonrpc": "2.0", "id": 1, "method": 5}, None),
    ([], None),
    ("text", None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "kind"), KINDS)
def test_a_message_that_could_be_of_two_kinds_has_no_kind(message, kind):
    assert frames.kind_of(message) == kind


def test_ids_that_python_treats_as_equal_are_different():
    keys = [frames.id_key(value) for value in (1, "1", True, 1.0, None, [1], "x" * 5000)]
    assert keys[:2] == [(int, 1), (str, "1")]
    assert keys[2:] == [None] * 5
