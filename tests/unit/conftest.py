"""What some hosts lack, by marks; and no clock: no deadline makes a slow machine's example fail."""

from __future__ import annotations

import functools
import os
import sys
import tempfile

import pytest
from hypothesis import settings
from web_servers import certificate, tls, web  # noqa: F401 - fixtures

from windows.conftest import wine

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config):
    config.addinivalue_line("markers", "links: needs symbolic links, a privilege on Windows")
    config.addinivalue_line("markers", "not_wine(reason): what Wine does otherwise than Windows")


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("not_wine")
    if mark is not None and wine():
        pytest.skip(f"Wine is no Windows here: {mark.kwargs['reason']}")
    if item.get_closest_marker("links") and sys.platform == "win32" and (why := without_links()):
        pytest.skip(why)


@functools.cache
def without_links() -> str:
    """Why this Windows makes no symbolic links; empty if it does. Wine says yes and makes none."""
    with tempfile.TemporaryDirectory() as place:
        try:
            os.symlink(place, os.path.join(place, "link"), target_is_directory=True)
        except OSError as error:
            return f"symbolic links need a privilege here: {error.strerror}"
        return "" if os.path.islink(os.path.join(place, "link")) else "Wine makes no symbolic links"
