"""Run corral with `--report run.html`, and open the page in a real browser."""

import html.parser
import json
import re
import struct
import subprocess
import zlib

import pytest

import rigs
from corral.denials.records import Denial, Discarded
from corral.network.traffic import Traffic
from corral.plan.model import Held
from corral.supervisor.report import Outcome, Report
from corral.supervisor.report_page import render

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m\u202e\"'&"
TARGET = """\
import socket
try:
    socket.getaddrinfo("api.x.com", 443)
except OSError:
    pass
"""
BROWSER = "/usr/bin/chromium"
SCHEMES = {"light": 1, "dark": 0}
"""Blink's numbers for `preferredColorScheme`."""
MIN_CONTRAST = 4.5
"""The minimum contrast of text that WCAG 2 requires at level AA."""


class Elements(html.parser.HTMLParser):
    """Collect the names of all elements, and the text of the page."""

    def __init__(self, text):
        super().__init__()
        self.names, self.text = set(), ""
        self.feed(text)

    def handle_starttag(self, tag, _attributes):
        self.names.add(tag)

    def handle_data(self, data):
        self.text += data


def hostile_report():
    held = Held(
        control="network",
        asked=HOSTILE,
        stated=True,
        mechanism=HOSTILE,
        status="verified",
        why=HOSTILE,
    )
    return Report(
        command=(HOSTILE,),
        outcome=Outcome(kind="exited", exit_code=0, detail=HOSTILE),
        controls=(held,),
        warnings=(HOSTILE,),
        created=(HOSTILE,),
        denials=(
            Denial(kind="name", destination=HOSTILE, allow=HOSTILE, why=HOSTILE, guessed=True),
        ),
        discarded=(Discarded(path=HOSTILE, bytes=12345),),
        discarded_whole=False,
        traffic=((HOSTILE, Traffic(connections=1, up=1, down=2)), ("", Traffic(connections=1))),
    )


def browse(path, *flags):
    rigs.need("chromium")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", *flags, f"file://{path}"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


def test_every_text_of_the_page_is_escaped():
    page = render(hostile_report())
    plain = Elements(page)
    assert not plain.names & {"script", "img"}
    assert "\x1b" not in page
    assert "\u202e" not in page


@pytest.mark.rig("chromium")
def test_a_browser_shows_every_text_of_the_page_as_text(tmp_path):
    page = render(hostile_report())
    plain = Elements(page)
    path = tmp_path / "run.html"
    path.write_text(page)
    shown = Elements(browse(path, "--dump-dom"))
    assert not shown.names & {"script", "img"}
    assert shown.text.count("<script>") == plain.text.count("<script>") >= 8
    assert "</script><img" in shown.text


def read_colours(page: str) -> dict[str, dict[str, str]]:
    """Return the colours of the page: for each colour scheme, a mapping from name to colour."""
    first, second = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    names = {
        scheme: dict(re.findall(r"--(\w+): #(\w+);", text))
        for scheme, text in (("light", first), ("dark", second))
    }
    assert set(names["light"]) == set(names["dark"]) >= {"text", "back", "card"}
    return names


def brightness(colour: str) -> float:
    """Return the relative luminance of a colour, as defined by WCAG 2."""
    digits = colour if len(colour) == 6 else "".join(2 * one for one in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_text_colour_of_the_page_has_enough_contrast(scheme):
    colours = read_colours(render(hostile_report()))[scheme]
    for text in set(colours) - {"back", "card", "line"}:
        for back in ("back", "card"):
            low, high = sorted(brightness(colours[one]) for one in (text, back))
            assert (high + 0.05) / (low + 0.05) >= MIN_CONTRAST, (text, back)


def read_pixels(path) -> list[tuple[int, int, int]]:
    """Return the pixels of a screenshot. It must be a PNG with 8 bits per channel, with or without
    transparency.
    """
    raw, at, body = path.read_bytes(), 8, b""
    width, height, _, kind = struct.unpack_from(">IIBB", raw, 16)
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at)
        if raw[at + 4 : at + 8] == b"IDAT":
            body += raw[at + 8 : at + 8 + size]
        at += size + 12
    step = {2: 3, 6: 4}[kind]
    lines, above, pixels = zlib.decompress(body), bytearray(width * step), []
    for row in range(height):
        start = row * (width * step + 1)
        line = unfilter(lines[start], bytearray(lines[start + 1 :][: width * step]), above, step)
        pixels += [tuple(line[one : one + 3]) for one in range(0, width * step, step)]
        above = line
    return pixels


def unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    for at in range(len(line)):
        left = line[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        guess = left + above[at] - corner
        nearest = min((left, above[at], corner), key=lambda one: abs(guess - one))
        line[at] = (line[at] + (0, left, above[at], (left + above[at]) // 2, nearest)[kind]) % 256
    return line


@pytest.mark.rig("chromium")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_browser_shows_the_page_in_light_and_dark(tmp_path, scheme):
    page, picture = tmp_path / "run.html", tmp_path / "run.png"
    page.write_text(render(hostile_report()))
    browse(
        page,
        f"--screenshot={picture}",
        "--window-size=480,480",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
    )
    pixels = [f"{red:02x}{green:02x}{blue:02x}" for red, green, blue in read_pixels(picture)]
    colours = read_colours(page.read_text())[scheme]
    back = "ffffff" if colours["back"] == "fff" else colours["back"]
    assert pixels.count(back) > len(pixels) / 4
    assert pixels.count(colours["text"]) > 0


@pytest.mark.rig("chromium")
def test_the_browser_of_these_tests_runs_scripts_of_other_pages(tmp_path):
    path = tmp_path / "control.html"
    path.write_text("<body><script>document.body.append('r' + 'an')</script>")
    assert "ran" in Elements(browse(path, "--dump-dom")).text


@pytest.mark.rig("chromium")
def test_a_run_writes_a_page_that_a_browser_shows(user, tmp_path):
    page = user.home / "run.html"
    page.unlink(missing_ok=True)
    done = user.corral(
        "run", "--allow-net", "example.com", "--report", str(page), "--", user.python, "-c", TARGET
    )
    assert done.returncode == 0, done.stderr
    assert page.stat().st_mode & 0o777 == 0o600
    copy = tmp_path / "run.html"
    copy.write_bytes(page.read_bytes())
    page.unlink()
    assert "http" not in copy.read_text().replace("http-equiv", "")
    shown = Elements(browse(copy, "--dump-dom")).text
    for words in (
        "exit code 0",
        "Walls and limits",
        "subprocess",
        "api.x.com",
        "--allow-net api.x.com",
    ):
        assert words in shown


BUSY = """
import time
held, end = [], time.process_time() + 1
while time.process_time() < end:
    if len(held) < 64:
        held.append(bytearray(1 << 20))
    sum(range(10_000))
"""


@pytest.mark.rig("chromium")
def test_a_sampled_run_has_a_timeline(user, tmp_path):
    """Limit the CPU time and allow subprocesses. corral then samples the run's resource usage again
    and again, even on a host with cgroups, and the timeline shows these samples.
    """
    page, report = user.home / "run.html", user.home / "run.json"
    command = ("--", user.python, "-c", BUSY)
    for path in (page, report):
        done = user.corral(
            "run", "--allow-subprocess", "--max-cpu-time", "60s", "--max-memory", "1G",
            "--report", str(path), *command,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    moments = json.loads(report.read_text())["timeline"]
    assert len(moments) > 2
    assert [one["at_ms"] for one in moments] == sorted(one["at_ms"] for one in moments)
    assert 0 < moments[-1]["cpu_ms"] <= json.loads(report.read_text())["usage"]["cpu_ms"]
    assert max(one["memory"] for one in moments) > 10 << 20
    copy = tmp_path / "run.html"
    copy.write_bytes(page.read_bytes())
    shown = Elements(browse(copy, "--dump-dom"))
    assert {"svg", "path", "figcaption"} <= shown.names
    assert "memory: peak" in shown.text
    assert "processors: at most" in shown.text
    for path in (page, report):
        path.unlink()


def test_a_run_that_was_not_sampled_has_no_timeline():
    assert "<svg" not in render(hostile_report())


def test_a_refused_run_writes_a_page(user):
    page = user.home / "refused.html"
    done = user.corral("run", "--report", str(page), "--read", "/", "--", user.python, "-c", "")
    assert done.returncode == 125
    assert "refused" in page.read_text()
    page.unlink()
