"""After the tests, print how long each server took to start, with corral and without it."""

from __future__ import annotations

STARTS: dict[str, tuple[float, float]] = {}


def pytest_terminal_summary(terminalreporter) -> None:
    if not STARTS:
        return
    terminalreporter.section("seconds to initialize: bare, inside corral")
    for name, (bare, inside) in sorted(STARTS.items()):
        terminalreporter.write_line(f"{name:<36} {bare:5.2f} {inside:5.2f}   {inside - bare:+.2f}")
