"""Store the tools and prompts that a server offered, so that later runs can notice changes.

A pin is the complete definition of one tool or prompt, so that corral can show what has changed.
Pins that other users could have written are ignored.

corral also stores the names of the tools that `corral inspect` has listed. Only `inspect` uses
these names, to find tools of the same name in other servers.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from corral.directories import directories, refuse_shared
from corral.errors import SandboxError, UnpinnedError
from corral.messages.definitions import Pin
from corral.policy.approvals import make_store, refuse_shared_file, write_file
from corral.policy.manifest import MAX_FILE_SIZE, read_file
from corral.policy.variables import masked
from corral.record import record
from corral.safe_text import is_digest, printable, shell_word

STORE = "pins"
INSPECTED = "inspected"


@record
class PinnedServer:
    """The pins of one server. `server` is its command, with the secrets masked."""

    path: str
    server: tuple[str, ...]
    pinned: str
    pins: tuple[Pin, ...]


def load_pins(server: Sequence[str], *, required: bool) -> tuple[Pin, ...]:
    """Return the pins of a server. Raise UnpinnedError if pins are required and there are none."""
    found = find_pinned(server)
    if found is None and required:
        raise UnpinnedError(_quote_all(server), format_pinning(server))
    return found.pins if found else ()


def _quote_all(server: Sequence[str]) -> str:
    typed = server[:1] if os.path.isdir(server[0]) else masked(server)
    return printable(" ".join(map(shell_word, typed)))


def format_pinning(server: Sequence[str]) -> str:
    """Return the command that pins a server's tools, or a hint if the command would contain a
    secret.
    """
    if not os.path.isdir(server[0]) and masked(server) != tuple(server):
        return "type `corral inspect --pin` and the server's whole command"
    return f"corral inspect --pin {_quote_all(server)}"


def find_pinned(server: Sequence[str]) -> PinnedServer | None:
    return _read(_file(server))


def find_inspected(server: Sequence[str]) -> PinnedServer | None:
    return _read(_file(server, INSPECTED))


def list_pinned(besides: Sequence[str] = ()) -> Iterator[PinnedServer]:
    """Yield the pins of all servers except the one whose command is `besides`."""
    store = _store(STORE)
    names = sorted(os.listdir(store)) if os.path.isdir(store) else []
    own = os.path.basename(_file(besides))
    for name in filter(is_digest, names):
        if name != own and (found := _read(os.path.join(store, name))) is not None:
            yield found


def keep_inspected(server: Sequence[str], pins: Iterable[Pin]) -> None:
    """Store the names of a server's tools. Ignore errors, since only later comparisons need the
    names.
    """
    try:
        names = [("tool", name, "") for kind, name, _ in pins if kind == "tool"]
        _write(_file(server, INSPECTED), masked(server), names)
    except SandboxError:
        pass


def keep_pins(server: Sequence[str], pins: Iterable[Pin]) -> None:
    _write(_file(server), masked(server), pins)


def replace_pins(pinned: PinnedServer, pins: Iterable[Pin]) -> None:
    _write(pinned.path, pinned.server, pins)


def _write(path: str, server: Sequence[str], pins: Iterable[Pin]) -> None:
    """Write pins to `path`, the server's file. Also write `server`, the server's command, in which
    the secrets must be masked already.
    """
    made = {
        "server": server,
        "pinned": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pins": sorted(pins),
    }
    content = json.dumps(made).encode()
    if len(content) > MAX_FILE_SIZE:  # `_read` would ignore such a large file
        raise SandboxError(
            f"the server's definitions are larger than {MAX_FILE_SIZE >> 20} MiB: they cannot be"
            " pinned"
        )
    write_file(make_store(os.path.dirname(path)), os.path.basename(path), content)


def _store(kind: str) -> str:
    return os.path.join(directories().config, kind)


def _file(server: Sequence[str], kind: str = STORE) -> str:
    """Return the path of a server's file. Its name is a digest of the command `server`. The secrets
    in `server` must not be masked, because two servers that differ only in a secret must not share
    a file.
    """
    words = "\0".join(server).encode("utf-8", "surrogateescape")
    return os.path.join(_store(kind), sha256(words).hexdigest())


def _read(path: str) -> PinnedServer | None:
    """Return the pins in a file, or None if the file is invalid for any reason."""
    if not is_digest(os.path.basename(path)) or not os.path.lexists(path):
        return None
    try:
        refuse_shared(os.path.dirname(path), os.lstat(os.path.dirname(path)))
        data = json.loads(read_file(path, follow=False, check=refuse_shared_file))
        pins = tuple((str(kind), str(name), str(text)) for kind, name, text in data["pins"])
        server = tuple(map(str, data["server"]))
        return PinnedServer(path=path, server=server, pinned=str(data["pinned"]), pins=pins)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, SandboxError):
        return None
