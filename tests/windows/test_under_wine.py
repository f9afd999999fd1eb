"""Run every Windows test under Wine. A test that did not report a result counts as failed, because
Wine may have crashed.
"""

from __future__ import annotations

import pytest

from windows import wine_run
from windows.wine_run import PLACES, TIMEOUT

pytestmark = [pytest.mark.rig("wine"), pytest.mark.timeout(TIMEOUT + 100)]


@pytest.mark.parametrize("place", PLACES)
def test_each_test_of_this_directory_passes_under_wine(place, request):
    items = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["place"] for item in items]
    judge(place, *wine_run.read_outcomes(place, wanted))


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
