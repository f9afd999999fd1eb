"""Define SandboxError, the base class of corral's errors, and those of its subclasses that several
packages use.

    SandboxError                 exit code, and a hint for the user
      ManifestError              all mistakes in a policy file, with their lines
      PolicyError                sources that cannot be combined into one policy
        ChangedPathsError        granted paths that resolve to different files than before
        UnpinnedError            the policy requires pins, and the server has none
      UnenforceableError         all controls that this host cannot enforce
      LaunchError                a step failed, so the target never ran
      CommandError               the target's program cannot be found or executed (126, 127)
      UnchosenReadsError         the server's own files refer to files that the user did not name
      SupervisionError           a running sandbox could not be watched or stopped

Mechanisms raise `OSError`. It is translated once into one of these exceptions, with
`raise ... from`. A limit that the target reaches is an outcome in the report, never an exception.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE = 2
EXIT_TIMEOUT = 124
EXIT_REFUSED = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class SandboxError(Exception):
    """The base class of corral's errors.

    `exit_code` is the exit code of `corral run`. `hint` tells the user what to type. `details` are
    additional lines. Line ends inside `message` or a detail are escaped when they are printed.
    """

    exit_code = EXIT_REFUSED

    def __init__(
        self, message: str, *, hint: str | None = None, details: Sequence[str] = ()
    ) -> None:
        self.lines = (message, *details)
        self.message = "\n".join(self.lines)
        self.hint = hint
        super().__init__(self.message)


class Mistake(tuple[str, int | None, str, str]):
    """One mistake in a policy file: (file, line if known, key path, description)."""

    __slots__ = ()

    def __str__(self) -> str:
        file, line, key, text = self
        where = file if line is None else f"{file}:{line}"
        return f"{where}: {key}: {text}" if key else f"{where}: {text}"


class ManifestError(SandboxError):
    """A policy file has mistakes: `mistakes` lists all of them, with their lines."""

    def __init__(self, mistakes: list[Mistake], *, hint: str | None = None) -> None:
        first, *details = [*map(str, mistakes)] or [""]
        super().__init__(first, hint=hint, details=details)
        self.mistakes = tuple(mistakes)


class PolicyError(SandboxError):
    """The sources of a policy cannot be combined, or ask for something that is never granted."""


class ChangedPathsError(PolicyError):
    """Granted paths resolve to different files than before. `paths` is {path: (before, now)}."""

    def __init__(self, paths: dict[str, tuple[str, str]], message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.paths = paths


class UnpinnedError(PolicyError):
    """The policy requires pins, and the server has none. `mend` says how to pin its tools."""

    def __init__(self, words: str, mend: str) -> None:
        super().__init__(
            f"mcp.pins: nothing is pinned for {words}", hint=f"check its tools and pin them: {mend}"
        )


class UnenforceableError(SandboxError):
    """The host cannot enforce the policy. `missing` contains a tuple (control, reason, hint) for
    each control that the host cannot enforce.
    """

    def __init__(self, missing: Sequence[tuple[str, str, str]], *, hint: str | None = None) -> None:
        reasons: dict[str, list[str]] = {}
        for control, why, _ in missing:
            reasons.setdefault(why, []).append(control)
        parts = [f"{', '.join(controls)}: {why}" for why, controls in reasons.items()]
        fixes = dict.fromkeys(fix for _, _, fix in missing if fix)
        advice = "; ".join([*fixes, *([hint] if hint else [])])
        super().__init__("this host cannot enforce " + "; ".join(parts), hint=advice or None)
        self.missing = tuple(missing)


class UnchosenReadsError(SandboxError):
    """The server needs files that the user did not name. `reads` lists the paths to grant."""

    def __init__(self, message: str, *, reads: Sequence[str], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reads = tuple(reads)


class LaunchError(SandboxError):
    """A step of the sandbox failed, so the target never ran. `step` is the name of the step."""

    def __init__(self, step: str, cause: str, *, hint: str | None = None) -> None:
        super().__init__(f"{step}: {cause}", hint=hint)
        self.step = step
        self.cause = cause


class CommandError(SandboxError):
    """The program does not exist (exit code 127) or cannot be executed (126)."""

    def __init__(self, message: str, *, exit_code: int, hint: str | None = None) -> None:
        needed = "can be executed" if exit_code == EXIT_NOT_EXECUTABLE else "exists"
        advice = f"name a program that {needed}, as a path or a name on PATH"
        super().__init__(message, hint=hint or advice)
        self.exit_code = exit_code


class SupervisionError(SandboxError):
    """A running sandbox could not be watched or stopped."""
