"""Compare POSIX paths as text."""


def is_inside(path: str, directory: str) -> bool:
    """Return whether `path` is `directory` or is below it. Both must be absolute and normalized."""
    return path == directory or is_below(path, directory)


def is_below(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/") and path != directory
