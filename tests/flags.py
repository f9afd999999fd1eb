"""Parse the flags in the messages about denials."""

import shlex


def entry(allow: str) -> str:
    """Return the value of a denial's --allow-net, as a shell would pass it, or "" if `allow` is empty."""
    words = shlex.split(allow)
    assert words[:1] in ([], ["--allow-net"])
    return "".join(words[1:])
