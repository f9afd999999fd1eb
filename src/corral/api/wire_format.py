"""Messages between a caller and a process of corral: plans, hosts, reports and errors as bytes.

Records are sent with the name of their class. Only records of corral are made from received names.
"""

from __future__ import annotations

import json
import sys

from corral.errors import CommandError, LaunchError, SandboxError
from corral.record import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from corral.plan.host import Host
    from corral.plan.model import Plan
    from corral.supervisor.report import Report

    Kind = TypeVar("Kind")

CLASS = "$"
HEADER = 8
"""Bytes of a message's length before it."""
MAX_READ_BYTES = 1 << 20


def add_header(message: bytes) -> bytes:
    return len(message).to_bytes(HEADER, "little") + message


def read_message(read: Callable[[int], bytes]) -> bytes:
    """Return one message; nothing when the other end is gone. `read` may return less than asked."""
    header = _read_exactly(read, HEADER)
    return _read_exactly(read, int.from_bytes(header, "little")) if header else b""


def _read_exactly(read: Callable[[int], bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        try:
            chunk = read(min(size - len(found), MAX_READ_BYTES))
        except ConnectionError:
            chunk = b""  # the other end died before it read everything
        if not chunk:
            return b""
        found += chunk
    return found


def encode(item: Plan | Report | Host) -> bytes:
    return json.dumps(_to_json(item), separators=(",", ":")).encode("utf-8", "surrogateescape")


def decode(raw: bytes, kind: type[Kind]) -> Kind:
    made = _from_json(json.loads(raw.decode("utf-8", "surrogateescape")))
    if not isinstance(made, kind):
        raise ValueError(f"the message is not a {kind.__name__}")  # noqa: TRY004 - data, not a type
    return made


def encode_error(error: SandboxError) -> bytes:
    step = getattr(error, "step", "")
    cause = getattr(error, "cause", "")
    code = str(error.exit_code) if isinstance(error, CommandError) else ""
    words = (type(error).__name__, error.message, error.hint or "", step, cause, code)
    return "\0".join(words).encode(errors="surrogateescape")


def decode_error(raw: bytes) -> SandboxError:
    """Return the supervisor's error, with the class that it had there."""
    name, message, hint, step, cause, code = raw.decode(errors="surrogateescape").split("\0")
    if name == "LaunchError":
        return LaunchError(step, cause, hint=hint or None)
    if name == "CommandError":
        return CommandError(message, exit_code=int(code), hint=hint or None)
    return SandboxError(message, hint=hint or None)


def _to_json(item: object) -> object:
    if hasattr(item, "__match_args__"):
        cls = type(item)
        values = {name: _to_json(getattr(item, name)) for name in fields(item)}
        return {CLASS: f"{cls.__module__}:{cls.__qualname__}", **values}
    if isinstance(item, tuple | list | frozenset):
        return [_to_json(entry) for entry in item]
    return item


def _from_json(item: object) -> object:
    if isinstance(item, list):
        return tuple(_from_json(entry) for entry in item)
    if not isinstance(item, dict):
        return item
    module, _, name = item[CLASS].partition(":")
    if not module.startswith("corral."):
        raise ValueError(f"{module} is not a module of corral")
    try:
        __import__(module)
    except ImportError as error:
        raise ValueError(f"there is no module {module!r}") from error
    cls = getattr(sys.modules[module], name)
    if not hasattr(cls, "__match_args__"):
        raise ValueError(f"{name} is not a record")
    made: object = cls(**{key: _from_json(value) for key, value in item.items() if key != CLASS})
    return made
