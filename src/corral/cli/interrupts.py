"""Tell the user what a command had already changed when Ctrl-C ended it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def report_changes(
    read_state: Callable[[], Mapping[str, object]], *, none: str, some: str
) -> Iterator[None]:
    """If Ctrl-C ends the block, raise KeyboardInterrupt with a text that says what has changed:
    `none`, or `some` and the names of the changed things.

    `read_state` returns {name: state} and is called before and after the block. The block cannot
    record its changes itself, because Ctrl-C could come between a change and its record.
    """
    before = read_state()
    try:
        yield
    except KeyboardInterrupt:
        after = read_state()
        changed = [name for name, value in before.items() if after.get(name) != value]
        raise KeyboardInterrupt(f"{some}: {', '.join(changed)}" if changed else none) from None
