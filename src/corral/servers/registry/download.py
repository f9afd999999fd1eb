"""Download a file or a small document over HTTPS, with limits on size, time and redirects.

HTTP without TLS is allowed only for loopback, where no other machine can change the answer. A
redirect must stay on HTTPS. A download goes into a new file, and the caller compares its digest
before it uses the file.
"""

from __future__ import annotations

import os
import sys

from corral.errors import SandboxError
from corral.safe_text import has_escapes, printable, shown
from corral.servers.store.tree import sha256_of_file
from corral.units import MAX_DIGITS, is_digits

TYPE_CHECKING = False
# `http.client` is imported later, because a server that is already in the store does not need it.
if TYPE_CHECKING:
    from http.client import HTTPResponse
    from typing import BinaryIO

    from corral.servers.registry.deadline import Deadline

CHUNK_BYTES = 1 << 16
MAX_REDIRECTS = 5
MAX_SILENCE_SECONDS = 30.0
MAX_DOWNLOAD_SECONDS = 600.0
CLEAR_LINE = "\r\033[K"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class NotFoundError(SandboxError):
    pass


def check_url(url: str, *, after: str = "") -> str:
    """Return the URL if corral may request it, and otherwise raise SandboxError. If the URL comes
    from a redirect, `after` is the URL that redirected to it.
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise SandboxError(f"{shown(url, 200)} is not a web address") from None
    plain = all("!" <= c <= "~" for c in url)
    if not host or not plain or parts.username or parts.password:
        raise SandboxError(f"{shown(url, 200)} is not a web address that corral accepts")
    if parts.scheme == "https" or (
        parts.scheme == "http" and host in LOOPBACK and not after.startswith("https:")
    ):
        return url
    raise SandboxError(
        f"{shown(url, 200)} is not https",
        hint="without https another machine could change the download",
    )


def fetch_document(url: str, *, max_bytes: int) -> bytes:
    import io

    document = io.BytesIO()
    _copy(url, document, max_bytes=max_bytes, label="")
    return document.getvalue()


def fetch_file(url: str, path: str, *, max_bytes: int) -> str:
    """Download a URL into a new file at `path`. Return the SHA-256 of the file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o600), "wb") as file:
        _copy(url, file, max_bytes=max_bytes, label=url.rpartition("/")[2])
    return sha256_of_file(path).hex()


def _copy(url: str, target: BinaryIO, *, max_bytes: int, label: str) -> None:
    import http.client

    from corral.servers.registry.deadline import Deadline

    too_late = SandboxError(f"{shown(url, 200)} took longer than {MAX_DOWNLOAD_SECONDS:.0f} s")
    with Deadline(MAX_DOWNLOAD_SECONDS) as deadline:
        try:
            with _open(check_url(url), deadline) as answer:
                _copy_body(answer, url, target, max_bytes=max_bytes, label=label)
        # `urllib` raises ValueError for a redirect to "https://[" or to an invalid host name.
        except (OSError, ValueError, http.client.HTTPException, SandboxError) as error:
            if deadline.is_over:
                raise too_late from error
            if isinstance(error, SandboxError):
                raise
            why = getattr(error, "reason", error)
            raise SandboxError(f"{shown(url, 200)} cannot be fetched: {why}") from error
        finally:
            show_progress("")
        if deadline.is_over:
            raise too_late  # the end of the answer may be cut off


def _copy_body(
    answer: HTTPResponse, url: str, target: BinaryIO, *, max_bytes: int, label: str
) -> None:
    too_large = SandboxError(f"{shown(url, 200)} is larger than {max_bytes >> 20} MiB")
    length = answer.headers.get("Content-Length", "")
    size = int(length) if is_digits(length) and len(length) < MAX_DIGITS else 0
    if size > max_bytes:
        raise too_large
    done = 0
    while chunk := answer.read1(CHUNK_BYTES):
        done += len(chunk)
        if done > max_bytes:
            raise too_large
        target.write(chunk)
        if label:
            total = f" of {size >> 10}" if size else ""
            show_progress(f"fetching {label[:60]!r} ... {done >> 10}{total} KiB")
    if size and done != size:
        raise SandboxError(f"{shown(url, 200)} ended after {done} of {size} bytes")


def is_progress_shown() -> bool:
    return has_escapes(sys.stderr)


def show_progress(text: str) -> None:
    """Replace the last line of the terminal, or remove it if `text` is empty. Without a terminal,
    do nothing.
    """
    if is_progress_shown():
        sys.stderr.write(f"{CLEAR_LINE}corral: {printable(text)}" if text else CLEAR_LINE)
        sys.stderr.flush()


def _open(url: str, deadline: Deadline) -> HTTPResponse:
    """Open a URL. This function follows redirects itself, so that it can check each new URL."""
    import urllib.error
    import urllib.request
    from urllib.parse import urljoin

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(NoRedirects(), *deadline.handlers())
    for _ in range(MAX_REDIRECTS + 1):
        request = urllib.request.Request(url, headers={"User-Agent": "corral", "Accept": "*/*"})  # noqa: S310 - checked
        try:
            answer: HTTPResponse = opener.open(request, timeout=MAX_SILENCE_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                following = error.headers.get("Location", "")
            if error.code in REDIRECTS and following:
                try:
                    following = urljoin(url, following)
                except ValueError:  # such as "https://["
                    raise SandboxError(
                        f"{shown(url, 200)} redirects to something that is not a URL"
                    ) from None
                url = check_url(following, after=url)
                continue
            if error.code == 404:
                raise NotFoundError(f"{shown(url, 200)} does not exist") from None
            raise SandboxError(f"{shown(url, 200)} answered {error.code}") from None
        return answer
    raise SandboxError(f"more than {MAX_REDIRECTS} redirects, the last to {shown(url, 200)}")
