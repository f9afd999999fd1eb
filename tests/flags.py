"""Parse the flags in the messages about denials."""

import shlex


def entry(allow: str) -> str:
    """Return the entry of `network.allow` in a denial's flag, as a shell would pass it."""
    words = shlex.split(allow)
    assert words[:1] in ([], ["--allow-net"])
    return "".join(words[1:])
