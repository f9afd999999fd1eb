"""Tell the user what a command had changed when Ctrl-C ended it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def report_changes(
    read_state: Callable[[], Mapping[str, object]], *, none: str, some: str
) -> Iterator[None]:
    """If Ctrl-C ends the block, say in the exception which parts of the state have changed by then.

    The state is compared, because an interrupt can come between a change and a note of it. The text
    is `none`, or `some` and the names of the changed parts.
    """
    before = read_state()
    try:
        yield
    except KeyboardInterrupt:
        after = read_state()
        changed = [name for name, value in before.items() if after.get(name) != value]
        raise KeyboardInterrupt(f"{some}: {', '.join(changed)}" if changed else none) from None
