"""Write an export to a temporary directory and rename that directory at the end, so that an
incomplete export is never visible.
"""

import os
import shutil
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase as fnmatch

from corral.disk_hints import disk_hint
from corral.errors import SandboxError


def publish(
    directory: str, fill: Callable[[str], None], *, names: Collection[str], force: bool
) -> None:
    """Create `directory` and let `fill` write its files. Refuse a directory that already exists.

    With `force`, replace an existing directory if it contains only files whose names match the
    patterns in `names`.
    """
    directory = os.path.abspath(directory)
    if os.path.lexists(directory) and not force:
        raise SandboxError(f"{directory} exists already", hint="--force replaces it")
    fresh = f"{directory}.{os.urandom(4).hex()}"
    try:
        os.makedirs(fresh, mode=0o755)
        fill(fresh)
        if force:
            _remove_export(directory, names)
        os.rename(fresh, directory)
    except OSError as error:
        raise SandboxError(
            f"cannot write {error.filename or directory}: {error.strerror}",
            hint=disk_hint(error, directory, "name another directory with -o"),
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _remove_export(directory: str, names: Collection[str]) -> None:
    """Remove an earlier export. Refuse a directory that contains other files."""
    if not os.path.lexists(directory):
        return
    if not all(any(fnmatch(one, name) for name in names) for one in os.listdir(directory)):
        raise SandboxError(
            f"{directory} contains files that are not part of an export",
            hint="name another directory with -o",
        )
    shutil.rmtree(directory)
