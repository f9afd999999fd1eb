"""Encode messages between a caller and a corral process. They contain plans, hosts, errors and
`Ending`s, which say how runs ended.

A record is sent as the name of its class and those fields that differ from their default values.
Only names of corral's own record classes are accepted. `marshal` is safe here, because both ends
run the same Python and the same corral, and no other process can use the channel. `json` would
import `re`, which would slow down every fork of the zygote.
"""

from __future__ import annotations

import marshal
import os
import sys

from corral.errors import CommandError, LaunchError, PolicyError, SandboxError, SupervisionError
from corral.record import fields, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from corral.plan.host import Host
    from corral.plan.model import Plan
    from corral.platforms.contract import Ending

    Kind = TypeVar("Kind")
    Data = None | str | int | float | list["Data"] | dict[str, "Data"]

CLASS = "$"
HEADER = 8  # the size in bytes of the length that precedes each message
MAX_READ_BYTES = 1 << 20
ACKNOWLEDGES = sys.platform == "darwin"
"""Whether a receiver of descriptors acknowledges them. If it does, the sender keeps its own
descriptors open until then. Chromium found that macOS loses sockets that the sender closes too
early.
"""


SENT_ERRORS: dict[str, type[SandboxError]] = {
    cls.__name__: cls
    for cls in (CommandError, LaunchError, PolicyError, SupervisionError, SandboxError)
}
"""Errors of these classes keep their class when they are sent.

Any other error is sent as its nearest base class in this table.
"""


def add_header(message: bytes) -> bytes:
    return len(message).to_bytes(HEADER, "little") + message


def read_message(read: Callable[[int], bytes]) -> bytes:
    """Return one message, or b"" if the other end is closed. `read` may return fewer bytes than it
    was asked for.
    """
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


def encode(item: Plan | Ending | Host) -> bytes:
    return marshal.dumps(_to_data(item))


def encode_plan(plan: Plan) -> bytes:
    """Encode a plan, without the parts that only the caller's report needs."""
    program = replace(plan.program, notes=())
    return encode(replace(plan, program=program, watched=(), warnings=()))


def decode(raw: bytes, kind: type[Kind]) -> Kind:
    made = _from_data(marshal.loads(raw))  # noqa: S302 - from corral itself
    if not isinstance(made, kind):
        raise ValueError(f"the message is not a {kind.__name__}")  # noqa: TRY004 - the data is wrong
    return made


def encode_error(error: SandboxError | OSError) -> bytes:
    if isinstance(error, OSError):
        file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        words = ("OSError", error.strerror or str(error), file, "", "", str(error.errno or 0))
    else:
        step, cause = getattr(error, "step", ""), getattr(error, "cause", "")
        code = str(error.exit_code) if isinstance(error, CommandError) else ""
        name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in SENT_ERRORS)
        words = (name, error.message, error.hint or "", step, cause, code)
    return "\0".join(words).encode(errors="surrogateescape")


def decode_error(raw: bytes) -> SandboxError | OSError:
    """Decode an error. The result is an OSError, or has one of the classes in SENT_ERRORS."""
    name, message, hint, step, cause, code = raw.decode(errors="surrogateescape").split("\0")
    if name == "LaunchError":
        return LaunchError(step, cause, hint=hint or None)
    if name == "CommandError":
        return CommandError(message, exit_code=int(code), hint=hint or None)
    if name == "OSError":
        return OSError(int(code), message, hint or None)
    first, *details = message.split("\n")
    return SENT_ERRORS[name](first, hint=hint or None, details=details)


def _to_data(item: object) -> Data:
    if item is None or isinstance(item, str | int | float):
        return item
    if isinstance(item, tuple | list | frozenset):
        return [_to_data(entry) for entry in item]
    cls = type(item)
    defaults: dict[str, object] = cls.__defaults__  # type: ignore[attr-defined]
    made: dict[str, Data] = {CLASS: f"{cls.__module__}:{cls.__qualname__}"}
    for name in fields(item):
        value = getattr(item, name)
        if name not in defaults or value != defaults[name]:
            made[name] = _to_data(value)
    return made


def _from_data(item: object) -> object:
    if isinstance(item, list):
        return tuple(_from_data(entry) for entry in item)
    if not isinstance(item, dict):
        return item
    named = item[CLASS]
    if named not in _classes:
        _classes[named] = _import_class(named)
    cls = _classes[named]
    made: object = cls(**{key: _from_data(value) for key, value in item.items() if key != CLASS})
    return made


_classes: dict[str, type] = {}


def _import_class(named: str) -> type:
    module, _, name = named.partition(":")
    if not module.startswith("corral."):
        raise ValueError(f"{module} is not a module of corral")
    try:
        __import__(module)
    except ImportError as error:
        raise ValueError(f"there is no module {module!r}") from error
    cls: type = getattr(sys.modules[module], name)
    if not hasattr(cls, "__match_args__"):
        raise ValueError(f"{name} is not a record")
    return cls
