"""Every test for Windows as a test of this host. One that did not report has failed: Wine may have come down."""

from __future__ import annotations

import pytest

from vm import ahead
from windows import rig, wine_run
from windows.wine_run import PLACES, TIMEOUT

pytestmark = pytest.mark.timeout(TIMEOUT + 100)


@pytest.fixture(scope="module")
def told(request):
    """What each test came to, and all that was printed."""
    rig.require()
    items = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["place"] for item in items]
    return ahead.answer(ahead.WINE) or wine_run.told(wanted)


@pytest.mark.parametrize("place", PLACES)
def test_under_wine(place, told):
    judge(place, *told)


def judge(place, found, output):
    if place not in found:
        pytest.fail(f"{place} was not run:\n{output}", pytrace=False)
    texts = {
        outcome: "\n".join(sorted({e["text"] for e in found[place] if e["outcome"] == outcome}))
        for outcome in {entry["outcome"] for entry in found[place]}
    }
    if "failed" in texts:
        pytest.fail(f"under Wine:\n{texts['failed']}", pytrace=False)
    if "skipped" in texts:
        pytest.skip(f"under Wine: {texts['skipped']}")
    if "xfailed" in texts:
        pytest.xfail(f"under Wine: {texts['xfailed']}")
