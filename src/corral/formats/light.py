"""Provide JSON and SHA-256 from the C modules that `json` and `hashlib` use.

`json` imports `re`, and `hashlib` loads OpenSSL. Both take too long for a start that reads one
small file, so they are used only if the interpreter lacks the C modules.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256

__all__ = ["parse_json", "sha256"]


class _Usual:
    """The default settings of `json.loads`, in the form in which the C scanner takes them."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def parse_json(text: str) -> object:
    """Return the value of a JSON text. Raise ValueError if the text is not JSON."""
    try:
        from _json import make_scanner

        found: tuple[object, int] = make_scanner(_Usual)(text, 0)  # type: ignore[arg-type]
        if found[1] == len(text):
            return found[0]
    except (ImportError, AttributeError, StopIteration):
        pass
    import json

    return json.loads(text)
