"""`corral run`: put a target behind walls and stay until it has ended."""

from __future__ import annotations

import os
import sys

from corral.cli import output, what_to_run
from corral.errors import ChangedPathsError, SandboxError
from corral.platforms import current
from corral.supervisor import start
from corral.supervisor.prepare import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.cli.option_parser import Flag, Options
    from corral.denials.records import Denials
    from corral.plan.model import Plan
    from corral.platforms.contract import Watcher
    from corral.policy.model import Source
    from corral.supervisor.report import Kind, Report

SUMMARY = "run a command, or a server's directory, inside walls"
USAGE = (
    "usage: corral run [OPTIONS] [--] COMMAND [ARGUMENT...]\n"
    "       corral run [OPTIONS] DIRECTORY | BUNDLE.mcpb | npm:PACKAGE | pypi:PACKAGE | "
    "CLIENT:SERVER | ORG/NAME [ARGUMENT...]"
)


def main(options: Options, rest: list[str]) -> int:
    _fill_streams()
    report_fd = _open(options.get("--report"))
    try:
        sources, command = what_to_run.sources_and_command(options, rest)
        plan = _prepare(command, sources, rest, _output_files(options))
        denials = _open_audit(options.get("--audit"))
        for text in plan.warnings:
            output.warn(text)
        return _watch(plan, report_fd, denials)
    except (SandboxError, OSError) as problem:
        if report_fd >= 0:
            error = output.from_os_error(problem) if isinstance(problem, OSError) else problem
            _write_refusal(rest, error, report_fd)
        raise


def _prepare(
    command: Sequence[str], sources: Sequence[Source], rest: list[str], protected: list[str]
) -> Plan:
    """Prepare the run; on a terminal, ask about granted paths that lead elsewhere than before."""
    where = what_to_run.start_directory(rest)

    def make() -> Plan:
        return prepare(command, sources, environment=os.environ, cwd=where, protected=protected)

    try:
        return make()
    except ChangedPathsError as error:
        from corral.cli import approve

        if not approve.is_on_terminal() or not approve.confirm_paths(error.paths):
            raise
    return make()


def __getattr__(name: str) -> tuple[Flag, ...]:
    """Load `FLAGS` when it is needed: a run without options needs neither flags nor schema."""
    if name != "FLAGS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corral.cli import run_flags

    return (*run_flags.FLAGS, *run_flags.OUTPUTS)


def _output_files(options: Options) -> list[str]:
    """Return the files that this run writes: no grant may hold them."""
    if not options.values:
        return []
    from corral.cli.run_flags import OUTPUTS

    return [os.path.realpath(path) for flag in OUTPUTS for path in options.all(flag.name)]


def _watch(plan: Plan, report_fd: int, denials: Denials | None) -> int:
    signals = current.load().signals(_forwarded())
    restore = _keep_terminal()
    watch = start.run(plan, (0, 1, 2), signals=signals, control=-1, denials=denials)
    _release_stdio()
    try:
        return _finish(plan, watch, report_fd)
    finally:
        restore()


def _open_audit(path: str | None) -> Denials | None:
    """Open the audit before anything of the target runs, like the report."""
    if path is None:
        return None
    from corral.denials.audit import Audit, open_audit
    from corral.denials.records import Denials

    try:
        return Denials(audit=Audit(open_audit(path)))
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise SandboxError(
            f"cannot write the audit to {path}: {why}",
            hint="give a new file, or one that only corral has written to",
        ) from error


def _keep_terminal() -> Callable[[], None]:
    if sys.platform != "win32":
        for fd in range(3):
            if os.isatty(fd):
                from corral.cli.terminal import save_terminal

                return save_terminal(fd)
    return lambda: None


def _forwarded() -> list[int]:
    """Return the signals to forward. One that is ignored stays so: `nohup corral run` works."""
    import _signal  # type: ignore[import-not-found]  # `signal` itself would import enum

    from corral.abi.signal_numbers import FORWARDED

    return [number for number in FORWARDED if _signal.getsignal(number) != _signal.SIG_IGN]


def _finish(plan: Plan, watch: Watcher, report_fd: int) -> int:
    from corral.supervisor import report  # imported while the target runs already

    ending = watch.until_end()
    result = report.build_report(plan, ending)
    if report_fd >= 0:
        _write(result, report_fd)
    _explain_end(result, ending.reaped.restored)
    return _signed(result.outcome.exit_code)


def _signed(code: int) -> int:
    """Return the code as `exit` takes it: on Windows a crash sets the highest of 32 bits."""
    return code - (1 << 32) if code >> 31 else code


def _write(result: Report, fd: int) -> None:
    from corral.supervisor import report

    try:
        report.write(result, fd)
    except OSError as problem:
        output.warn(f"the report could not be written: {problem.strerror}")


def _explain_end(result: Report, restored: Sequence[str]) -> None:
    for line in restored:
        output.warn(line)
    for path in result.created:
        output.warn(f"the target created {path}, which other programs run by themselves")
    if result.outcome.kind in {"timeout", "cpu_time", "memory", "pids"}:
        asked = {held.control: held.asked for held in result.controls}
        output.note(
            f"the target hit its {result.outcome.kind} limit ({asked[result.outcome.kind]})"
        )


def _fill_streams() -> None:
    """Open closed streams: a file that corral opens must not become the target's stdin."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _release_stdio() -> None:
    """Close corral's copies, so that a client sees the streams close when the target does it."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _open(path: str | None) -> int:
    """Open the report before anything of the target runs, and never through a link."""
    if path is None:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise SandboxError(
            f"cannot write the report to {path}: {error.strerror}",
            hint="give a path in a directory of yours that is not a symbolic link",
        ) from error


def _write_refusal(rest: list[str], problem: SandboxError, fd: int) -> None:
    try:
        from corral.errors import LaunchError
        from corral.supervisor import report
    except OSError as error:  # no descriptor left; `problem` is reported by the caller
        output.warn(f"the report could not be written: {error.strerror}")
        return
    kind: Kind = "setup_failed" if isinstance(problem, LaunchError) else "refused"
    _write(report.build_refusal(tuple(rest), problem, kind=kind), fd)
