"""Mark suspicious parts of a server's definitions that a person would easily overlook.

A mark is only a warning, and a definition without marks may still mislead a model.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from corral.messages.definitions import LISTS, list_items
from corral.record import record
from corral.safe_text import INVISIBLE, printable, shown

SHOWN_LENGTH = 80
MAX_ADDRESSED = 3
MAX_POSITION_LENGTH = 200
CUT = "..."
MIN_MENTIONED_LENGTH = 6
BIDIRECTIONAL = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
TAGS = range(0xE0000, 0xE0080)
SUPPLEMENTARY_SELECTORS = range(0xE0100, 0xE01F0)
LAYOUT = frozenset("\n\r\t")
EMOJI_PARTS = frozenset("\ufe0f\u200d")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
OUT_OF_VIEW = re.compile(r"[ \t]{80,}|(?:[ \t]*\n){15,}")
ADDRESSED = (
    r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instructions?|prompts?|rules|guidelines)\b",
    (
        r"\b(?:do not|don't|never|without)\b.{0,30}"
        r"\b(?:tell|inform|mention|show|reveal|notify|ask)\w*\b.{0,30}\buser\b"
    ),
    r"\bhid(?:e|den)\b.{0,30}\b(?:from|user)\b",
    # The number of spaces is limited, because otherwise a search could take quadratic time.
    r"<\s{0,9}/?\s{0,9}(?:important|system|instructions?|secret|assistant|critical)\s{0,9}>",
    r"\bsystem prompt\b",
    r"\byou are (?:now |an? )\b",
    r"\bbefore (?:using|calling|you (?:use|call))\b.{0,40}\b(?:tool|this|any)\b",
    r"\b(?:you|assistant|model|llm|agent)\b.{0,20}\b(?:must|should|shall)\b.{0,20}\b(?:always|first|also|never)\b",
    (
        r"\b(?:read|open|cat|send|include|attach|pass)\b.{0,60}"
        r"(?:\.ssh|id_rsa|id_ed25519|\.env\b|\.aws|mcp\.json|credentials|api[ _-]?keys?)"
    ),
    r"\b(?:conversation|chat) (?:history|context)\b",
)
PATTERN = re.compile("|".join(ADDRESSED), re.IGNORECASE | re.DOTALL)
FIELDS = (*(listed.field for listed in LISTS.values()), "instructions")


@record
class Mark:
    """A warning. `kind` is "hidden" (invisible characters), "bidirectional", "addressed" (text that
    addresses a model), "out of view" (text after many spaces or empty lines), "name" (an unusual
    tool name) or "shadows" (a name or text that can be confused with another server's tool).
    """

    kind: str
    where: str
    text: str

    def describe(self) -> str:
        return printable(f"{self.where}: {self.kind}: {self.text}")


def find_marks(offer: Mapping[str, object], others: Mapping[str, Iterable[str]]) -> list[Mark]:
    """Return the marks of a server's definitions. `others` contains the other servers' tools."""
    texts = list(_texts("", {field: offer.get(field) for field in FIELDS}))
    names = [str(item.get("name")) for item in list_items(offer, "tools")]
    marks = [mark for where, text in texts for mark in _mark_text(where, text)]
    marks += [mark for name, count in Counter(names).items() for mark in _mark_name(name, count)]
    for server, tools in others.items():
        marks += _find_shadows(texts, names, server, set(tools))
    return list(dict.fromkeys(marks))


def _texts(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every string in a value, and the names of its keys, each with its position.

    A position consists of keys, and the server chooses their names. Long positions are cut, because
    otherwise the positions of many nested values could take much more memory than the message
    itself.
    """
    waiting = [(path, value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            inner = []
            for key, item in value.items():
                yield f"{path} (a key)", key
                inner.append((_join(path, f".{key}" if path else key), item))
            waiting += reversed(inner)
        elif isinstance(value, list):
            names = [
                item.get("name", number) if isinstance(item, dict) else number
                for number, item in enumerate(value)
            ]
            inner = [
                (_join(path, f"[{name}]"), item) for name, item in zip(names, value, strict=True)
            ]
            waiting += reversed(inner)


def _join(path: str, part: str) -> str:
    if path.endswith(CUT):
        return path
    whole = path + part
    return whole if len(whole) <= MAX_POSITION_LENGTH else whole[:MAX_POSITION_LENGTH] + CUT


def _mark_text(where: str, text: str) -> Iterator[Mark]:
    if not text.isascii():
        hidden = {
            char for before, char in zip(" " + text, text, strict=False) if _hides(before, char)
        }
        turns = BIDIRECTIONAL.intersection(text)
        for kind, found in (("hidden", hidden - turns), ("bidirectional", turns)):
            if found:
                yield Mark(kind=kind, where=where, text=_describe(text, found))
    elif any(unicodedata.category(char) == "Cc" and char not in LAYOUT for char in text):
        yield Mark(kind="hidden", where=where, text=shown(text, SHOWN_LENGTH))
    for found_text in islice(PATTERN.finditer(text), MAX_ADDRESSED):
        yield Mark(kind="addressed", where=where, text=shown(found_text[0], SHOWN_LENGTH))
    if (gap := OUT_OF_VIEW.search(text)) is not None and (rest := text[gap.end() :].strip()):
        yield Mark(kind="out of view", where=where, text=shown(rest, SHOWN_LENGTH))


def _hides(before: str, char: str) -> bool:
    if char in EMOJI_PARTS and unicodedata.category(before) in {"So", "Sk", "Mn", "Nd", "Po"}:
        return False
    if char in INVISIBLE or ord(char) in SUPPLEMENTARY_SELECTORS:
        return True
    return unicodedata.category(char) in {"Cf", "Co", "Cc", "Cn"} and char not in LAYOUT


def _describe(text: str, found: set[str] | frozenset[str]) -> str:
    names = sorted(f"U+{ord(char):04X}" for char in found)
    words = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    spelled = "".join(chr(ord(char) - TAGS.start) for char in text if ord(char) in TAGS)
    return f"{words}: {shown(spelled, SHOWN_LENGTH)}" if spelled else words


def _mark_name(name: str, count: int) -> Iterator[Mark]:
    where = f"tools[{name}].name"
    if not PLAIN_NAME.fullmatch(name):
        yield Mark(
            kind="name",
            where=where,
            text=f"{shown(name)} does not consist of plain letters and digits",
        )
    if count > 1:
        yield Mark(kind="name", where=where, text=f"{shown(name)} is offered more than once")


def _find_shadows(
    texts: Iterable[tuple[str, str]], names: list[str], server: str, tools: set[str]
) -> Iterator[Mark]:
    """Mark tools whose names can be confused with those of other servers' tools, and texts that
    mention a tool of another server.
    """
    alike = {_fold(tool): tool for tool in tools}
    for name in names:
        if (tool := alike.get(_fold(name))) is not None:
            text = f"{server} has a tool {shown(tool)}"
            yield Mark(kind="shadows", where=f"tools[{name}].name", text=text)
    wanted = [tool for tool in tools.difference(names) if len(tool) >= MIN_MENTIONED_LENGTH]
    if not wanted:
        return
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(wanted)))})(?!\w)")
    for where, text in texts:
        if (found := pattern.search(text)) is not None:
            words = f"it mentions {shown(found[0])}, a tool of {server}"
            yield Mark(kind="shadows", where=where, text=words)


def _fold(name: str) -> str:
    """Return a normalized form, which is the same for names that a person or a model may
    confuse.
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[\W_]+", "", plain)
