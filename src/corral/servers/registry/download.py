"""Fetch a file or a small document over HTTPS: bounded in size, time and redirects.

HTTP without TLS is for loopback only, where there is nobody in between; a redirect may not leave
HTTPS. What was fetched is written to a new file, and counts only once its digest was compared.
"""

from __future__ import annotations

import os
import time

from corral.errors import SandboxError
from corral.safe_text import shown
from corral.servers.packages import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from http.client import HTTPResponse
    from typing import BinaryIO

CHUNK = 1 << 16
MOST_REDIRECTS = 5
SILENCE = 30.0
"""Seconds without a byte."""
LONGEST = 600.0
"""Seconds for a whole file, however slowly it comes."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Missing(SandboxError):  # noqa: N818 - the server's own word for it is "not found"
    pass


def check_url(url: str, *, after: str = "") -> str:
    """The URL, if it may be asked."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise SandboxError(f"{shown(url, 200)} is no web address") from None
    plain = not any(ord(c) <= 32 or ord(c) == 127 for c in url)
    if not host or not plain or parts.username or parts.password:
        raise SandboxError(f"{shown(url, 200)} is no web address that corral would ask")
    if parts.scheme == "https" or (
        parts.scheme == "http" and host in LOOPBACK and not after.startswith("https:")
    ):
        return url
    raise SandboxError(
        f"{shown(url, 200)} is not https", hint="anybody on the way could have changed what comes"
    )


def fetch_text(url: str, *, most: int) -> bytes:
    """A small document."""
    import io

    held = io.BytesIO()
    copy(url, held, most=most, label="")
    return held.getvalue()


def fetch_file(url: str, path: str, *, most: int) -> str:
    """Into a new file at `path`; its SHA-256."""
    from corral.servers.store.tree import file_digest

    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o600), "wb") as file:
        copy(url, file, most=most, label=url.rpartition("/")[2])
    return file_digest(path).hex()


def copy(url: str, target: BinaryIO, *, most: int, label: str) -> None:
    import http.client

    until = time.monotonic() + LONGEST
    try:
        with opened(check_url(url)) as answer:
            told = answer.headers.get("Content-Length", "")
            size = int(told) if told.isdigit() else 0
            if size > most:
                raise too_large(url, most)
            done = 0
            while chunk := answer.read1(CHUNK):
                done += len(chunk)
                if done > most:
                    raise too_large(url, most)
                if time.monotonic() > until:
                    raise SandboxError(f"{shown(url, 200)} took longer than {LONGEST:.0f} s")
                target.write(chunk)
                show(label, done, size)
            if size and done != size:
                raise SandboxError(f"{shown(url, 200)} broke off after {done} of {size} bytes")
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise SandboxError(f"{shown(url, 200)} cannot be fetched: {why}") from error
    finally:
        progress.show("")


def too_large(url: str, most: int) -> SandboxError:
    return SandboxError(f"{shown(url, 200)} is larger than {most >> 20} MiB")


def show(label: str, done: int, size: int) -> None:
    if label:
        whole = f" of {size >> 10}" if size else ""
        progress.show(f"fetching {label[:60]!r} ... {done >> 10}{whole} KiB")


def opened(url: str) -> HTTPResponse:
    """Redirects by hand: each is checked like the first."""
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(Stay())
    for _ in range(MOST_REDIRECTS + 1):
        request = urllib.request.Request(url, headers={"User-Agent": "corral", "Accept": "*/*"})  # noqa: S310 - checked
        try:
            answer: HTTPResponse = opener.open(request, timeout=SILENCE)
        except urllib.error.HTTPError as error:
            with error:
                following = error.headers.get("Location", "")
            if error.code in REDIRECTS and following:
                from urllib.parse import urljoin

                url = check_url(urljoin(url, following), after=url)
                continue
            if error.code == 404:
                raise Missing(f"{shown(url, 200)} is not there") from None
            raise SandboxError(f"{shown(url, 200)} answered {error.code}") from None
        return answer
    raise SandboxError(f"more than {MOST_REDIRECTS} redirects, the last to {shown(url, 200)}")
