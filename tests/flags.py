"""Parse the flags in the messages about denials."""

import shlex


def entry(allow: str) -> str:
    """Return the value of the `--allow-net` flag that a denial suggests, without shell quotes, or ""
    if the denial suggests no flag.
    """
    words = shlex.split(allow)
    assert words[:1] in ([], ["--allow-net"])
    return "".join(words[1:])
