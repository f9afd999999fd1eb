"""`corral run`: start a target in a sandbox and stay until it has ended."""

from __future__ import annotations

import os
import sys
import time

from corral.cli import output, what_to_run
from corral.denials.records import Denial, Denials, all_kept, kept_directory
from corral.directories import home_directory
from corral.errors import ChangedPathsError, SandboxError, UnenforceableError
from corral.plan.decide import default_warnings
from corral.platforms import current
from corral.record import replace
from corral.supervisor import findings, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corral.cli.option_parser import Flag, Options
    from corral.denials.audit import Audit
    from corral.denials.kept import LiveRun
    from corral.denials.server_id import ServerId
    from corral.plan.model import Plan
    from corral.platforms.contract import Ending, Watcher
    from corral.policy.model import Source
    from corral.supervisor.report import Kind, Report

    WriteReport = Callable[[Report], None]

SUMMARY = "run a command, or a server's directory, in a sandbox"
USAGE = what_to_run.USAGE.format("run")
LIMITS = {"timeout", "cpu_time", "memory", "pids"}
ENDED_BY_CLIENT = {0, 130, 143, 0xC000013A}
"""Exit codes of servers that a client usually stops: 0, 130 (SIGINT), 143 (SIGTERM), and the code
of a program that ends by Ctrl-C on Windows. They do not count as failures.
"""
EARLY_MS = 5000  # a target that fails within this time probably could not read a file that it needs


def main(options: Options, rest: list[str]) -> int:
    _fill_streams()
    write_report = _open_report(options.get("--report"))
    try:
        rest = what_to_run.replace_runner(options, rest)
        sources, command = what_to_run.sources_and_command(options, rest)
        what_to_run.refuse_other_directory(options.get("--start-in"), rest)
        plan = _prepare(command, sources, rest, _output_files(options))
        if (until := options.get("--learn-until")) is not None:
            plan = _watch_paths(plan, until)
        kept = _KeptDenials(plan, options)
        denials = Denials(
            audit=_open_audit(options.get("--audit")), announce=output.note, keep=kept.add
        )
        _warn(plan, options)
        return _watch(plan, write_report, denials, kept, rest)
    except (SandboxError, OSError) as problem:
        if isinstance(problem, UnenforceableError) and "wsl.exe" in (problem.hint or ""):
            from corral.programs.windows_wsl import with_command

            problem.hint = with_command(problem.hint or "", sys.argv[2:])
        error = output.from_os_error(problem) if isinstance(problem, OSError) else problem
        if not os.isatty(2):  # a client may not show the message, so store it for `corral why`
            _keep_refusal(rest, error)
        if write_report is not None:
            _write_refusal(rest, error, write_report)
        raise


def _watch_paths(plan: Plan, until: str) -> Plan:
    """Extend the plan, so that the run records the paths that the target opens.

    After the time `until`, return the plan unchanged. If paths cannot be watched on this system,
    only warn, so that the client's server starts nevertheless.
    """
    from corral.cli.learn_time import is_over

    if is_over(until):
        return plan
    why = "the paths that a target opens cannot be watched on this system"
    if sys.platform == "linux":
        from corral.learn.watched_run import watched_plan

        try:
            return watched_plan(plan)
        except SandboxError as problem:
            why = problem.message
    output.warn(f"nothing is learned: {why}")
    return plan


def _learn(plan: Plan, watch: Watcher, ending: Ending, missing: str) -> Ending:
    """Return how the run ended. If the run was watched, add a denial for each path that the target
    did not find. `missing` is the path of the command's script if this file does not exist.
    """
    if sys.platform == "linux" and getattr(watch.child, "path_watch", None) is not None:
        from corral.learn.watched_run import find_learned, to_denials

        try:
            learned = find_learned(plan, watch, ending.denials, missing=missing)
        except SandboxError as problem:
            output.warn(f"nothing was learned: {problem.message}")
            return ending
        output.note("this run was watched; `corral why` and `corral grant` list what was not found")
        # Put the learned paths first, because the number of stored denials is limited, and the
        # target can cause any number of other denials.
        return replace(ending, denials=(*to_denials(learned, plan), *ending.denials))
    return ending


def _warn(plan: Plan, options: Options) -> None:
    """Print the plan's warnings. Without `-v`, warn about default limits only once per boot."""
    what_to_run.warn_of_unset_variables(options)
    if not plan.warnings:
        return
    usual = set(default_warnings(plan.controls))
    if usual and (options.has("--verbose") or findings.is_first_run()):
        usual = set()
    for text in plan.warnings:
        if text not in usual:
            output.warn(text)


def _prepare(
    command: Sequence[str], sources: Sequence[Source], rest: list[str], protected: list[str]
) -> Plan:
    """Prepare the run. On a terminal, ask about granted paths that now lead to other files."""

    def make() -> Plan:
        return what_to_run.plan_run(command, sources, rest, protected=protected, notify=output.note)

    try:
        return make()
    except ChangedPathsError as error:
        from corral.cli import approve

        if not approve.is_on_terminal() or not approve.confirm_paths(error.paths):
            raise
    return make()


def __getattr__(name: str) -> tuple[Flag, ...]:
    """Load `FLAGS` late, because a run without options needs neither the flags nor the schema."""
    if name != "FLAGS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from corral.cli import run_flags

    return run_flags.ALL


def _output_files(options: Options) -> list[str]:
    """Return the files that corral writes during this run, such as the report. No grant may contain
    them.
    """
    if not options.values:
        return []
    from corral.cli.run_flags import OUTPUTS

    return [os.path.realpath(path) for flag in OUTPUTS for path in options.all(flag.name)]


def _watch(
    plan: Plan,
    write_report: WriteReport | None,
    denials: Denials,
    kept: _KeptDenials,
    rest: Sequence[str],
) -> int:
    signals = current.load().signals(forwarded_signals())
    restore = keep_terminal()
    watch = start.run(plan, (0, 1, 2), signals=signals, control=-1, denials=denials)
    _release_stdio()
    try:
        return _finish(plan, watch, write_report, kept, rest)
    finally:
        restore()


def _open_audit(path: str | None) -> Audit | None:
    """Open the audit file before the target starts. Refuse the run if this fails."""
    if path is None:
        return None
    from corral.denials.audit import Audit, open_audit

    try:
        return Audit(open_audit(path))
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise SandboxError(
            f"cannot write the audit to {path}: {why}",
            hint=_place_hint(
                error, path, "name a new file, or an audit file that only corral has written to"
            ),
        ) from error


def keep_terminal() -> Callable[[], None]:
    """Return a function that restores the settings that the terminal has now. If there is no
    terminal, the function does nothing.
    """
    if sys.platform != "win32":
        for fd in range(3):
            if os.isatty(fd):
                from corral.cli.terminal import save_terminal

                return save_terminal(fd)
    return lambda: None


def forwarded_signals() -> list[int]:
    """Return the signals that corral forwards to the target. Leave out signals that corral itself
    ignores. For example, `nohup` starts corral with SIGHUP ignored, and the target must then
    survive the signal too.
    """
    import _signal  # type: ignore[import-not-found]  # `signal` itself would import enum

    from corral.abi.signal_numbers import FORWARDED

    return [number for number in FORWARDED if _signal.getsignal(number) != _signal.SIG_IGN]


def _finish(
    plan: Plan,
    watch: Watcher,
    write_report: WriteReport | None,
    kept: _KeptDenials,
    rest: Sequence[str],
) -> int:
    from corral.supervisor import report  # imported late, so that it does not delay the start

    ending = watch.until_end(_preload)
    missing = find_missing(plan, ending, rest)
    ending = _learn(plan, watch, ending, missing)
    result = report.build_report(plan, ending)
    denials = [row for row in result.denials if row.kind != "unreachable"]
    kept.end(denials, _describe_failure(result, missing))
    if write_report is not None:
        write_report(result)
    _explain_end(result, told={*plan.warnings, *ending.replaced}, missing=missing)
    code = result.outcome.exit_code
    # `os._exit` takes a signed integer, but on Windows the exit code of a crash has the highest bit
    # set. So return this code as a negative number.
    return code - (1 << 32) if code >> 31 else code


def find_missing(plan: Plan, ending: Ending, rest: Sequence[str]) -> str:
    """If the target failed and the command's script does not exist, return the script's path.
    Otherwise return "".
    """
    from corral.supervisor.report import find_outcome

    outcome = find_outcome(plan, ending)
    if outcome.kind != "exited" or outcome.exit_code == 0:
        return ""
    from corral.programs.missing_script import find_missing_script_of

    return find_missing_script_of(plan.program, rest)


def _describe_failure(result: Report, missing: str) -> str:
    """Return how the target failed, or "" if it succeeded or was ended by a signal."""
    ending = result.outcome
    if missing:
        from corral.programs.missing_script import describe_missing_script

        return describe_missing_script(missing)
    if ending.kind in LIMITS:
        return f"it hit {_describe_limit(result)}"
    if ending.kind == "exited" and ending.exit_code not in ENDED_BY_CLIENT:
        return f"it ended with exit code {ending.exit_code}"
    return ""


def _describe_limit(result: Report) -> str:
    name = result.outcome.kind
    asked = next((held.asked for held in result.controls if held.control == name), "")
    flag = ""
    try:
        from corral.cli.higher_limit import find_higher_limit

        flag = find_higher_limit(name, asked)
    except (OSError, ImportError, ValueError):
        pass  # corral's files were replaced during the run, or the limit is not a number
    more = f"; to allow more: {flag}" if flag else ""
    return f"its {name} limit ({asked}){more}"


def _preload() -> None:
    """Import now what is needed at the end of a run, because corral's files may be replaced while
    the target runs.
    """
    from corral.denials import discarded, kept  # noqa: F401
    from corral.platforms.posix import unblocked_write  # noqa: F401
    from corral.policy import secret_paths, server_identity  # noqa: F401
    from corral.programs import missing_script  # noqa: F401
    from corral.supervisor import secret_values  # noqa: F401


class _KeptDenials:
    """Stores a run's denials, and how it failed, for `corral why`. A run with neither denials nor a
    failure is stored only if earlier runs of the same server are stored.
    """

    def __init__(self, plan: Plan, options: Options) -> None:
        self._program = plan.program
        self._options = options
        self._run: LiveRun | None = None

    def add(self, denial: Denial) -> None:
        self._open().add(denial, time.time())

    def end(self, denials: Sequence[Denial], failure: str) -> None:
        # `_has_runs` calls `_server`, whose imports take time. So first check whether runs of any
        # server are stored.
        if denials or failure or (os.path.isdir(all_kept()) and self._has_runs()):
            self._open().end(denials, time.time(), failure)

    def _has_runs(self) -> bool:
        return os.path.isdir(kept_directory(self._server()))

    def _open(self) -> LiveRun:
        if self._run is None:
            from corral.denials.kept import LiveRun

            self._run = LiveRun(self._server(), self._flags())
        return self._run

    def _server(self) -> ServerId:
        from corral.policy.server_identity import identify_command

        program = self._program
        return identify_command(program.server or program.typed, program.directory)

    def _flags(self) -> Sequence[str]:
        """Return the words of the flags that grant something. Secrets in them are masked."""
        if not self._options.values:
            return ()
        from corral.cli.run_flags import list_grants
        from corral.policy.variables import masked

        return masked(list_grants(self._options))


def _explain_end(result: Report, told: set[str], missing: str) -> None:
    for line in result.warnings:
        if line not in told:
            output.warn(line)
    for path in result.created:
        output.warn(f"the target created {path}, which other programs run without asking you")
    if result.discarded:
        from corral.denials.discarded import describe_discarded
        from corral.policy.secret_paths import is_sensitive

        home, whole = home_directory(os.environ), result.discarded_whole
        output.note(
            describe_discarded(result.discarded, home=home, whole=whole, is_sensitive=is_sensitive)
        )
    failed = result.outcome.kind == "exited" and result.outcome.exit_code != 0
    if missing:
        from corral.programs.missing_script import describe_missing_script

        output.note(describe_missing_script(missing))
    elif failed and result.usage.wall_ms < EARLY_MS and sys.platform == "linux":
        output.note("the target ended with an error; `corral learn` shows the files it looked for")
    if result.outcome.kind in LIMITS:
        output.note(f"the target hit {_describe_limit(result)}")


def _fill_streams() -> None:
    """Open the null device in place of each standard stream that is closed. Otherwise a file that
    corral opens later could become the target's stdin.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _release_stdio() -> None:
    """Close corral's copies of stdin and stdout, so that a client notices when the target closes
    its copies.
    """
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _place_hint(error: Exception, path: str, otherwise: str) -> str:
    from corral.disk_hints import disk_hint

    error = error if isinstance(error, OSError) else OSError()
    return disk_hint(error, os.path.abspath(path), otherwise)


def _open_report(path: str | None) -> WriteReport | None:
    """Open the report file before the target runs, without following symlinks. Return a function
    that writes the report.
    """
    if path is None:
        return None
    from corral.abi.output_file import open_output

    try:
        fd = open_output(path, os.O_WRONLY | os.O_TRUNC)
    except OSError as error:
        raise SandboxError(
            f"cannot write the report to {path}: {error.strerror}",
            hint=_place_hint(error, path, "name a regular file in a directory that you own"),
        ) from error
    if path.lower().endswith((".html", ".htm")):
        from corral.supervisor import report_page

        return lambda result: _write(report_page.write, result, fd, path)
    return lambda result: _write(_write_json, result, fd, path)


def _write_json(result: Report, fd: int) -> None:
    from corral.supervisor import report

    report.write(result, fd)


def _write(write: Callable[[Report, int], None], result: Report, fd: int, path: str) -> None:
    try:
        write(result, fd)
    except OSError as problem:
        output.warn(f"the report could not be written to {path}: {problem.strerror}")
        try:
            os.ftruncate(fd, 0)  # a partial report could be mistaken for a complete one
        except OSError:
            pass  # only a regular file can be truncated
    finally:
        os.close(fd)


def _keep_refusal(rest: list[str], problem: SandboxError) -> None:
    """Store why a run was refused, without the run's flags. Stored flags would hide the earlier
    denials that they allow, although the target never ran with them.
    """
    try:
        from corral.denials.kept import NOT_STARTED, keep
        from corral.policy.server_identity import identify_command
        from corral.policy.variables import masked
        from corral.servers.reference import name_server

        message = " ".join(masked(problem.message.partition("\n")[0].split(" ")))
        server = identify_command(name_server(rest))
        keep(server, (), time.time(), failure=f"{NOT_STARTED}: {message}")
    except (SandboxError, OSError, ImportError):
        return  # only `corral why` lacks the refusal: the caller still reports `problem`


def _write_refusal(rest: list[str], problem: SandboxError, write_report: WriteReport) -> None:
    try:
        from corral.errors import LaunchError
        from corral.supervisor import report
    except (OSError, ImportError) as error:  # warn only: the caller still reports `problem`
        output.warn(f"the report could not be written: {error}")
        return
    kind: Kind = "setup_failed" if isinstance(problem, LaunchError) else "refused"
    write_report(report.build_refusal(tuple(rest), problem, kind=kind))
