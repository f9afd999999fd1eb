"""Find variables that a server's code mentions but that were not passed to the server.

A program reads its environment without a system call, so corral cannot watch which variables it
reads. Instead corral searches the server's files for the names of the variables in corral's own
environment.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from corral.learn.proposals import Learned, Proposal
from corral.paths.posix import is_inside
from corral.plan.model import Plan
from corral.policy.variables import is_loader_variable, is_secret
from corral.programs.needed_files import read_text

MAX_BYTES = 64 << 20
ENDINGS = (".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".sh")
ORDINARY = frozenset(
    (
        "_", "CI", "COLORTERM", "COLUMNS", "DEBUG", "DISPLAY", "FORCE_COLOR", "HOSTNAME", "LANG",
        "LANGUAGE", "LINES", "LOGNAME", "MAIL", "NO_COLOR", "OLDPWD", "PWD", "SHLVL", "TERM", "TZ",
        "USER", "USERNAME",
    )
)  # fmt: skip
"""These variables are never proposed. Libraries read them, but no server needs them."""


def find_variables(
    accesses: Mapping[tuple[str, bool], int], plan: Plan, environment: Mapping[str, str]
) -> Learned:
    """Propose the variables that the server's code mentions but that the server does not get.

    Secrets are not proposed. They are listed separately, each with the flag that passes it.
    """
    given = dict(plan.environment)
    names = [name for name in environment if name not in given and _is_of_interest(name)]
    found = dict(_find(names, _own_files((path for path, _ in accesses), plan.program.reads)))
    secret = {name for name in found if is_secret(name, environment[name])}
    return Learned(
        proposed=tuple(
            Proposal(flag="--env", path=name, why=f"{path} names the variable {name}")
            for name, path in found.items()
            if name not in secret
        ),
        never=tuple(
            (name, f"it is a secret, named in {path}; --secret {name} passes it")
            for name, path in found.items()
            if name in secret
        ),
    )


def _is_of_interest(name: str) -> bool:
    plain = name.isidentifier() and name.isascii()
    return plain and name not in ORDINARY and not is_loader_variable(name)


def _own_files(paths: Iterable[str], own: Iterable[str]) -> Iterator[str]:
    tops = tuple(own)
    for path in dict.fromkeys(paths):
        if path.endswith(ENDINGS) and any(is_inside(path, top) for top in tops):
            yield path


def _find(names: list[str], files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Find variables that the code reads. Yield each name with the first file that reads it."""
    if not names:
        return
    choices = "|".join(map(re.escape, names))
    asked = re.compile(
        rf"\b(?:environ|getenv|env|ENV)\b[^\w\n]{{1,6}}(?:get\b\W{{1,4}})?({choices})\b"
    )
    left, seen = MAX_BYTES, set[str]()
    for path in files:
        text = read_text(path)
        left -= len(text)
        for name in asked.findall(text):
            if name not in seen:
                seen.add(name)
                yield name, path
        if left < 0:
            return
