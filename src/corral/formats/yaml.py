"""Find the positions of YAML values. PyYAML reports where a value starts, but not always exactly
where it ends.

The reader is recursive. If values are nested so deeply that they exhaust the stack, `read` raises
BrokenFileError. Only clients' files are YAML, never policies.
"""

from collections.abc import Sequence

import yaml

from corral.formats import positions
from corral.formats.positions import BrokenFileError, Splice, Value, Wanted, everything, newline

quote = positions.escaped
MERGE = "tag:yaml.org,2002:merge"
NUMBERS = frozenset(("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"))
MAX_NODES = 1_000_000
MAX_CHARACTERS = 2 << 20  # PyYAML reads about 100 000 characters in a second
MAX_COLONS = 10
OTHER_BREAKS = frozenset("\x85\u2028\u2029")
"""Line breaks in YAML 1.1, but not in YAML 1.2, which most clients read. A file with one of them
could contain other servers for such a client than for corral.
"""


class Loader(yaml.SafeLoader):
    """Refuses long numbers in base 60, which YAML writes like `1:30:00`, because PyYAML takes time
    that is quadratic in their length.
    """

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        value: str = super().construct_scalar(node)
        if node.tag in NUMBERS and value.count(":") > MAX_COLONS:
            raise _broken("this number is too long", node)
        return value


class Reader:
    """Converts PyYAML's nodes to values. Values that have aliases are marked as shared."""

    def __init__(self, text: str, loader: Loader) -> None:
        self.text = text
        self.loader = loader
        self.uses: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.made: dict[int, Value] = {}

    def size(self, node: yaml.Node) -> int:
        """Return how many nodes there are after all aliases are expanded, because aliases of
        aliases can make a small file huge. Refuse a file that then has more than MAX_NODES nodes,
        and an alias that contains itself.
        """
        self.uses[id(node)] = self.uses.get(id(node), 0) + 1
        if self.uses[id(node)] > 1:
            if id(node) not in self.sizes:
                raise _broken("an alias contains itself", node)
            return self.sizes[id(node)]
        found = 1 + sum(map(self.size, _below(node)))
        if found > MAX_NODES:
            raise _broken("the aliases expand to too many values", node)
        self.sizes[id(node)] = found
        return found

    def value(self, node: yaml.Node, key: int = -1, *, shared: bool = False) -> Value:
        if id(node) not in self.made:
            self.made[id(node)] = self.fresh(node, key, shared=shared or self.uses[id(node)] > 1)
        return self.made[id(node)]

    def fresh(self, node: yaml.Node, key: int, *, shared: bool) -> Value:
        flow = bool(getattr(node, "flow_style", True))
        start, end = node.start_mark.index, node.end_mark.index
        data: object
        members = items = None
        if isinstance(node, yaml.SequenceNode):
            items = [self.value(item, shared=shared) for item in node.value]
            end = end if flow or not items else items[-1].end
            data = [item.data for item in items]
        elif isinstance(node, yaml.MappingNode):
            members = self.members(node, shared=shared)
            end = end if flow or not members else max(one.end for one in members.values())
            data = {name: one.data for name, one in members.items()}
        else:
            # For a text block, PyYAML reports the start of the next token as the end. So leave out
            # the white space before it.
            end = start + len(self.text[start:end].rstrip())
            try:
                data = self.loader.construct_object(node, deep=True)
            except AttributeError:  # raised by PyYAML if a tag does not match its text
                raise _broken(f"{node.tag} does not fit this value", node) from None
        return Value(
            data=data, start=start, end=end, key=key,
            members=members, items=items, flow=flow, shared=shared,
        )  # fmt: skip

    def members(self, node: yaml.MappingNode, *, shared: bool) -> dict[str, Value]:
        """Read a table. If it merges another table (`<<`), mark all its members as shared."""
        shared = shared or any(name.tag == MERGE for name, _ in node.value)
        found: dict[str, Value] = {}
        for name, below in node.value:
            key = str(name.value)
            if key in found:
                raise _broken(f"the key {key!r} appears twice", name)
            found[key] = self.value(below, name.start_mark.index, shared=shared)
        return found


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [below for _, below in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _broken(what: str, node: yaml.Node) -> BrokenFileError:
    return BrokenFileError(what, (node.start_mark.line + 1, node.start_mark.column + 1))


def read(text: str, _wanted: Wanted = everything) -> Value:
    if len(text) > MAX_CHARACTERS:
        raise BrokenFileError("the file is too large for YAML")
    if not OTHER_BREAKS.isdisjoint(text):
        raise BrokenFileError("it contains a line break that not all clients know")
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise BrokenFileError("the file is empty")
        reader = Reader(text, loader)
        reader.size(node)
        return reader.value(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = str(getattr(error, "problem", None) or getattr(error, "reason", "this is not YAML"))
        raise BrokenFileError(what, (mark.line + 1, mark.column + 1) if mark else None) from None
    except (ValueError, TypeError) as error:
        raise BrokenFileError(str(error)) from None
    except RecursionError:
        raise BrokenFileError("the values are nested too deeply") from None


def load(text: str) -> object:
    try:
        value: object = yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise BrokenFileError(str(error)) from None
    return value


def member(text: str, table: Value, after: Value, name: str, words: Sequence[str]) -> str:
    listed = f"{name}: [{', '.join(words)}]"
    if table.flow:
        return f", {listed}"
    column = after.key - (text.rfind("\n", 0, after.key) + 1)
    return newline(text) + " " * column + listed


def prepend(text: str, items: Value, drop: int, words: Sequence[str]) -> Splice:
    found = items.items or ()
    if items.flow or not found:
        return positions.prepend(text, items, drop, words)
    start = _dash(text, found[0])
    gap = newline(text) + " " * (start - (text.rfind("\n", 0, start) + 1))
    lines = [f"- {word}" for word in words]
    if drop >= len(found):
        return Splice(start=start, end=items.end, text=gap.join(lines))
    return Splice(start=start, end=_dash(text, found[drop]), text=gap.join([*lines, ""]))


def without(text: str, items: Value, drop: int) -> Splice:
    found = items.items or ()
    if items.flow or not found:
        return positions.without(text, items, drop)
    start = _dash(text, found[0])
    if drop >= len(found):
        return Splice(start=start, end=items.end, text="[]")
    return Splice(start=start, end=_dash(text, found[drop]), text="")


def _dash(text: str, item: Value) -> int:
    """Return the position of the last dash before a list item. If this dash is in a comment, the
    caller notices the mistake when it checks the changed text.
    """
    return text.rfind("-", 0, item.start)
