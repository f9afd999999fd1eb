"""Tell the user what a command had changed when Ctrl-C ended it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def report_changes(
    read_state: Callable[[], Mapping[str, object]], *, none: str, some: str
) -> Iterator[None]:
    """If Ctrl-C ends the block, say in the exception's text which parts of the state have changed.
    The text is `none`, or `some` followed by the names of the changed parts. To find them, the
    state before the block is compared with the state after it, because a block that recorded its
    own changes could be interrupted between a change and its record.
    """
    before = read_state()
    try:
        yield
    except KeyboardInterrupt:
        after = read_state()
        changed = [name for name, value in before.items() if after.get(name) != value]
        raise KeyboardInterrupt(f"{some}: {', '.join(changed)}" if changed else none) from None
