"""Skip tests whose requirements the host does not meet. Turn off hypothesis's time limits, because
machines may be slow.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from web_servers import certificate, tls, web  # noqa: F401 - fixtures

import rigs
from windows.conftest import wine

settings.register_profile(
    "patient", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("short", settings.get_profile("patient"), max_examples=50)
settings.register_profile("long", settings.get_profile("patient"), max_examples=1000)


@pytest.hookimpl(trylast=True)  # tests/conftest.py must declare the rigs first
def pytest_configure(config):
    settings.load_profile("long" if "long" in rigs.declared() else "short")
    config.addinivalue_line("markers", "links: needs symbolic links, a privilege on Windows")
    config.addinivalue_line("markers", "not_wine(reason): how Wine differs from Windows")


def pytest_runtest_setup(item):
    mark = item.get_closest_marker("not_wine")
    if mark is not None and wine():
        pytest.skip(f"Wine differs from Windows: {mark.kwargs['reason']}")
    if item.get_closest_marker("links") and sys.platform == "win32" and (why := without_links()):
        pytest.skip(why)


@functools.cache
def without_links() -> str:
    """Return why this Windows system cannot make symbolic links, or "" if it can.

    To find out, make a link, and check that it exists. Under Wine, os.symlink succeeds without
    making a link.
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            os.symlink(place, os.path.join(place, "link"), target_is_directory=True)
        except OSError as error:
            return f"symbolic links need a privilege here: {error.strerror}"
        return "" if os.path.islink(os.path.join(place, "link")) else "Wine makes no symbolic links"
