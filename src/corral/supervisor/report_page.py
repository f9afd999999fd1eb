"""Make one self-contained HTML page from a run's report (`--report run.html`).

The target chooses names, paths and arguments, so all text is escaped. The page's content security
policy forbids scripts and requests.
"""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from corral.network.traffic import Traffic
from corral.platforms.contract import Moment
from corral.safe_text import printable
from corral.supervisor.report import Report

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --dim: #5c6370; --back: #fff; --line: #d9dce1;
  --card: #f6f7f9; --good: #1a7f37; --fair: #8a5a00; --bad: #c01c28; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e6ea; --dim: #9aa2ad; --back: #16181c;
  --line: #343941; --card: #1f2228; --good: #57c878; --fair: #e0a83c; --bad: #ff7b72; } }
body { margin: 0 auto; max-width: 64rem; padding: 2rem 1rem; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.command { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .8rem; margin: .8rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem .8rem; } dt { color: var(--dim); font-size: 12px; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid var(--line); } th { color: var(--dim); font-weight: 500; }
.good { color: var(--good); } .fair { color: var(--fair); } .bad { color: var(--bad); }
.none { color: var(--dim); }
figure { margin: .6rem 0; } figcaption { color: var(--dim); font-size: 12px; }
svg { display: block; width: 100%; height: 7rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; }
svg path { fill: none; stroke: var(--good); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.ends { display: flex; justify-content: space-between; color: var(--dim); font-size: 12px; }
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">
<title>corral: {title}</title><style>{style}</style></head><body>
<h1>{title}</h1>
<div class="command"><code>{command}</code></div>
{body}
</body></html>
"""
COLOURS = {"verified": "good", "applied": "good", "cooperative": "fair", "degraded": "bad"}
UNITS = ("B", "kB", "MB", "GB", "TB")
THOUSAND = 1000
MIN_MOMENTS = 2


def render(report: Report) -> str:
    outcome = report.outcome
    title = f"{outcome.kind}, exit code {outcome.exit_code}"
    sections = [
        _facts(report),
        _list("Warnings", report.warnings),
        _list("Limits that were reached", report.hit),
        _timeline(report.timeline),
        _controls(report),
        _denials(report),
        _traffic(report.traffic),
        _discarded(report),
        _list("New files that other programs run automatically", report.created),
    ]
    return PAGE.format(
        title=text(title),
        style=STYLE,
        command=" ".join(map(text, report.command)),
        body="\n".join(filter(None, sections)),
    )


def write(report: Report, fd: int) -> None:
    """Write the page to `fd`. The caller opened `fd` before the launch, without following links."""
    with open(fd, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as file:
        file.write(render(report))


def text(value: object) -> str:
    """Escape HTML, control characters, and characters that change the direction of text."""
    return escape(printable(str(value)), quote=True)


def format_size(size: int) -> str:
    value, unit = float(size), 0
    while value >= THOUSAND and unit < len(UNITS) - 1:
        value, unit = value / THOUSAND, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{size} B"


def _facts(report: Report) -> str:
    usage = report.usage
    facts = [
        ("took", f"{usage.wall_ms / 1000:.2f} s"),
        ("CPU", f"{usage.cpu_ms / 1000:.2f} s"),
        *([("memory", format_size(usage.memory))] if usage.memory else []),
        *([("tasks", str(usage.tasks))] if usage.tasks else []),
        ("denials", str(sum(one.count for one in report.denials))),
    ]
    cells = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in facts)
    detail = f"<p>{text(report.outcome.detail)}</p>" if report.outcome.detail else ""
    return f'{detail}<dl class="facts">{cells}</dl>'


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f"<h2>{text(title)}</h2><ul>{items}</ul>"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> str:
    """Return a table of cells that are already HTML. Without rows, return the text `none`."""
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    if not lines:
        return f'<h2>{text(title)}</h2><p class="none">{text(none)}</p>'
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<h2>{text(title)}</h2><div class="wide"><table><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _controls(report: Report) -> str:
    rows = []
    for one in report.controls:
        colour = COLOURS.get(one.status.partition(":")[0], "none")
        why = f": {text(one.why)}" if one.why else ""
        state = f'<span class="{colour}">{text(one.status)}</span>{why}'
        rows.append((text(one.control), text(one.asked), text(one.mechanism), state))
    head = ("control", "asked", "enforced by", "status")
    return _table("Walls and limits", head, rows, "The target did not start.")


def _denials(report: Report) -> str:
    rows = []
    for one in report.denials:
        what = one.destination + (" (a guess)" if one.guessed else "")
        flag = f"<code>{text(one.allow)}</code>" if one.allow else '<span class="none">none</span>'
        rows.append((text(one.kind), text(what), text(one.why), text(one.count), flag))
    head = ("kind", "wanted", "why", "times", "allowed by")
    return _table("Denials", head, rows, "Nothing was denied.")


def _traffic(traffic: Sequence[tuple[str, Traffic]]) -> str:
    rows = [
        (
            text(host or "others"),
            text(one.connections),
            text(one.failed),
            text(format_size(one.up)),
            text(format_size(one.down)),
        )
        for host, one in traffic
    ]
    head = ("name", "connections", "failed", "sent", "received")
    return _table("Traffic by name", head, rows, "No connection left the sandbox.")


def _timeline(moments: Sequence[Moment]) -> str:
    """Return a chart of memory and a chart of CPU use. Nothing needs escaping, because all values
    are numbers.
    """
    if len(moments) < MIN_MOMENTS:
        return ""
    cores = [
        ((new.cpu_ms - old.cpu_ms) / max(1, new.at_ms - old.at_ms))
        for old, new in pairwise(moments)
    ]
    times = [one.at_ms for one in moments]
    memory = [float(one.memory) for one in moments]
    peak = f"peak {format_size(int(max(memory)))}, {max(one.tasks for one in moments)} tasks"
    charts = [] if not any(memory) else [_chart("memory", times, memory, peak)]
    charts.append(_chart("processors", times[1:], cores, f"at most {max(cores):.1f}"))
    return "<h2>Over time</h2>" + "".join(charts)


def _chart(name: str, times: Sequence[int], values: Sequence[float], caption: str) -> str:
    top, width = max(values) or 1.0, max(1, times[-1])
    points = " L".join(
        f"{at * 1000 / width:.1f} {100 - value * 95 / top:.1f}"
        for at, value in zip(times, values, strict=True)
    )
    return (
        f'<figure><figcaption>{name}: {caption}</figcaption><svg viewBox="0 0 1000 100" '
        f'preserveAspectRatio="none" role="img" aria-label="{name} over time">'
        f'<path d="M{points}"/></svg><div class="ends"><span>0 s</span>'
        f"<span>{width / 1000:.1f} s</span></div></figure>"
    )


def _discarded(report: Report) -> str:
    if not report.discarded:
        return ""
    rows = [(f"<code>{text(one.path)}</code>", format_size(one.bytes)) for one in report.discarded]
    more = "" if report.discarded_whole else "<p>The list is not complete.</p>"
    return _table("Files that were discarded after the run", ("file", "size"), rows, "") + more
