"""Define the Program that a command resolves to: its executable and the files that it needs."""

import os

from corral.record import record
from corral.safe_text import printable

LAUNCHER = "__PYVENV_LAUNCHER__"
"""The variable that tells Python on Windows which virtual environment it belongs to."""


@record
class Program:
    """A program, and the files that must be visible to execute it.

    - `path` is the absolute path for execve. Its symlinks are not resolved, because the interpreter
      of a venv is a symlink to a file outside the venv.
    - `real` is the executable at the end of all symlinks. `device` and `inode` identify it.
    - `reads` lists real paths, which are bound read-only at the same paths in the sandbox. `why`
      contains the reason for each of them, and `seen` contains its (device, inode).
    - `links` lists the symlinks that lead to these paths, as (path, target). They are created again
      in the sandbox.
    - `cwd` is the directory in which the target starts. It is empty if the caller's directory is
      not visible in the sandbox.
    - `search` is the target's PATH.
    - `server` identifies the server of a package, and is the same for all versions of the package.
      It is empty if the command itself identifies the server.
    - `own_file` is the absolute path of the file that is the server, such as a script. It is empty
      if the command only says where to find the server, as in `python -m NAME` and `env NAME`.
    - `directory` is the real start directory if `typed` may mean another server in another
      directory, otherwise empty.
    - `home_per_directory` says whether the server keeps a separate home for each start directory.
    - `environment` contains the environment variables that a launcher would have set, if corral
      executes the program in place of its launcher.

    Files can be replaced before they are mounted, so each device and inode is checked again in the
    sandbox. If one of them is different, the target is not started.
    """

    path: str
    argv: tuple[str, ...]
    reads: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    search: tuple[str, ...] = ()
    cwd: str = ""
    typed: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    own_file: str = ""
    directory: str = ""
    home_per_directory: bool = False
    real: str = ""
    device: int = 0
    inode: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def describe(self) -> str:
        from corral.policy.variables import masked

        lines = [f"execute {self.path}" + (f" ({self.real})" if self.real != self.path else "")]
        lines += [f"  argument {text!r}" for text in masked(self.argv)[1:]]
        reasons = self.why or ("",) * len(self.reads)
        for path, reason in zip(self.reads, reasons, strict=True):
            lines.append(f"read {path}" + (f": {reason}" if reason else ""))
        lines += [f"link {path} -> {target}" for path, target in self.links]
        lines += [f"set {name}={value}" for name, value in self.environment]
        lines.append("search " + os.pathsep.join(self.search))
        lines.append(f"start in {self.cwd or 'HOME'}")
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(map(printable, lines))
