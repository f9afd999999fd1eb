"""Start published servers that corral was not tuned for: bare and in corral, cold and warm.

The servers were chosen by a rule that was written down before the first try. The source is the list
punkpeye/awesome-mcp-servers (README.md at commit 00011d6a, its first 48,000 characters). From this
list the rule takes the first fifteen entries for TypeScript and the first fifteen for Python that
meet these conditions:

- TypeScript: npm has a package with the name of the entry's repository (NAME or @OWNER/NAME). The
  package contains a program, and names the repository in its metadata.
- Python: PyPI has a project with the name of the repository. The project offers a wheel, and names
  the repository in its metadata.

Servers get no account, no arguments and no grants. A server that does not start stays in the table.

Bare starts are `npx -y NAME` and `uvx NAME`. Starts in corral are `corral run npm:NAME` and `corral
run pypi:NAME`. The table shows how many seconds pass until the server answers `tools/list`. A cold
start uses a new home with empty caches. There are three kinds of warm starts: bare, in corral, and
the command that corral runs in the sandbox, started without corral. All kinds of starts take turns.
Each warm start is repeated three times, and the table shows the minimum. If a server starts bare
but not in corral, the script tries the flags that corral suggested.

Run the script as a user who owns no files. With `--results` it continues an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

NPM = (
    "discogs-mcp-server", "anilist-mcp", "mcp-open-library", "bazi-mcp", "mcp-server-kubernetes",
    "@jinzcdev/leetcode-mcp-server", "ssh-mcp", "@line/line-bot-mcp-server", "slack-mcp-server",
    "@softeria/ms-365-mcp-server", "@bytebase/dbhub", "airtable-mcp-server", "nocodb-mcp-server",
    "@ergut/mcp-bigquery-server", "@f4ww4z/mcp-mysql-server",
)  # fmt: skip
PYPI = (
    "aseprite-mcp", "browser-use-mcp-server", "alibaba-cloud-ops-mcp-server", "kubectl-mcp-server",
    "codemcp", "cli-mcp-server", "acp-mcp", "didlogic-mcp", "mcp-tinybird", "wren-engine",
    "chroma-mcp", "mcp-clickhouse", "elasticsearch-mcp-server", "postgres-mcp", "mysql-mcp-server",
)  # fmt: skip
MAX_SECONDS = 90.0
COLD_ROUNDS = 1
WARM_ROUNDS = 3
COLUMNS = ("bare_cold", "corral_cold", "bare_warm", "entry_warm", "corral_warm")
PROTOCOL = "2025-06-18"
NAMED = re.compile(
    r"--(?:allow-subprocess|allow-install-scripts|own-unix-sockets)\b"
    r"|--(?:allow-net|python|node|with) [^\s;,]+"
)
"""Matches the flags that corral suggests in its hints and denials."""


class Start:
    """One start: the seconds until the tools were listed (None if never), and the printed text."""

    def __init__(self, seconds: float | None, printed: str) -> None:
        self.seconds = seconds
        self.printed = printed


def start(argv: list[str], env: dict[str, str], cwd: str) -> Start:
    began = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            answered = converse(process, began + MAX_SECONDS)
            seconds = time.monotonic() - began if answered else None
        finally:
            end(process)
        errors.seek(0)
        return Start(seconds, errors.read().decode(errors="replace"))


def converse(process: subprocess.Popen, deadline: float) -> bool:
    client = {"name": "bench", "version": "1"}
    hello = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
    try:
        send(process, {"id": 1, "method": "initialize", "params": hello})
        if not wait_for(process, 1, deadline):
            return False
        send(process, {"method": "notifications/initialized"})
        send(process, {"id": 2, "method": "tools/list", "params": {}})
        return wait_for(process, 2, deadline)
    except OSError:
        return False


def send(process: subprocess.Popen, message: dict[str, object]) -> None:
    process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    process.stdin.flush()


def wait_for(process: subprocess.Popen, number: int, deadline: float) -> bool:
    """Return whether the server answered request `number` with a result before the deadline. Skip
    all lines that are not the answer.
    """
    pending = b""
    fd = process.stdout.fileno()
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            return False
        chunk = os.read(fd, 65536)
        if not chunk:
            return False
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("id") == number:
                return "result" in message
    return False


def end(process: subprocess.Popen) -> None:
    """End the server as clients do: close stdin, wait, send a signal."""
    process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                os.killpg(process.pid, number)
            process.wait(3)
            break
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    process.stdout.close()


def try_server(kind: str, name: str, work: str, env: dict[str, str]) -> dict[str, object]:
    runner = ["npx", "-y", name] if kind == "npm" else ["uvx", name]
    inside = ["corral", "run", f"{kind}:{name}"]
    bare, corral = [], []
    for at in range(COLD_ROUNDS):
        bare.append(start(runner, make_home(work, f"bare{at}", env), work))
        corral.append(start(inside, make_home(work, f"corral{at}", env), work))
    homes = [env | {"HOME": f"{work}/{who}{COLD_ROUNDS - 1}"} for who in ("bare", "corral")]
    row: dict[str, object] = {
        "server": f"{kind}:{name}",
        "bare_cold": [one.seconds for one in bare],
        "corral_cold": [one.seconds for one in corral],
    }
    entry = find_entry_point(f"{kind}:{name}", homes[1], work)
    contenders = {
        "bare": (runner, homes[0]),
        "entry": (entry, homes[1]),
        "corral": (inside, homes[1]),
    }
    last = {}
    for who, (argv, home) in contenders.items():
        last[who] = start(argv, home, work) if argv else Start(None, "")
        row[f"{who}_warm"] = [last[who].seconds]
    row |= {"bare_says": last_line(last["bare"].printed)}
    row |= {"corral_says": last_line(last["corral"].printed)}
    for _ in range(WARM_ROUNDS - 1):
        for who, (argv, home) in contenders.items():
            if last[who].seconds:
                row[f"{who}_warm"].append(start(argv, home, work).seconds)
    if starts(row, "bare") and not starts(row, "corral"):
        row |= try_flags(inside, [*corral, last["corral"]], homes[1], work)
    return row


def make_home(work: str, name: str, env: dict[str, str]) -> dict[str, str]:
    """Make a home with empty caches. Run corral's probes and cache their findings there, so that no
    measured start includes the probes.
    """
    home = env | {"HOME": f"{work}/{name}"}
    os.mkdir(home["HOME"])
    subprocess.run(["corral", "doctor"], env=home, stdout=subprocess.DEVNULL, check=False)
    return home


def find_entry_point(server: str, env: dict[str, str], cwd: str) -> list[str]:
    """Return the command that corral runs in the sandbox, or [] if `corral explain` fails."""
    done = subprocess.run(
        ["corral", "explain", "--json", server], env=env, cwd=cwd, capture_output=True, check=False
    )
    return json.loads(done.stdout)["program"]["argv"] if not done.returncode else []


def try_flags(
    inside: list[str], tried: list[Start], env: dict[str, str], cwd: str
) -> dict[str, object]:
    flags = list(dict.fromkeys(NAMED.findall("".join(one.printed for one in tried))))
    words = [word for flag in flags for word in flag.split(" ")]
    again = start([*inside[:2], *words, *inside[2:]], env, cwd) if flags else None
    return {"flags": flags, "with_flags": again.seconds if again else None}


def starts(row: dict[str, object], who: str) -> bool:
    return any((*row[f"{who}_cold"], *row[f"{who}_warm"]))


def last_line(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    lines = [line for line in lines if "complete log" not in line and "npm notice" not in line]
    marked = [
        line for line in lines if re.search(r"(?i)error|cannot|denied|hint:|must|required", line)
    ]
    return (marked or lines or [""])[-1][:160]


def best(row: dict[str, object], what: str) -> float | None:
    return min((one for one in row[what] if one), default=None)


def format_table(rows: list[dict[str, object]]) -> list[str]:
    lines = [
        "| server | bare cold | corral cold | bare warm | entry point | corral warm | note |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = [best(row, what) for what in COLUMNS]
        cells = [f"{one:.2f}" if one else "-" for one in found]
        lines.append(f"| {row['server']} | {' | '.join(cells)} | {describe(row)} |")
    return lines


def describe(row: dict[str, object]) -> str:
    if starts(row, "corral"):
        return "" if starts(row, "bare") else "starts only in corral"
    if not starts(row, "bare"):
        return f"starts in neither: {row['bare_says']}".replace("|", "/")
    if row.get("with_flags"):
        return f"starts with `{' '.join(row['flags'])}`, which corral suggests"
    return f"only bare; corral: {row['corral_says']}".replace("|", "/")


def summarize(rows: list[dict[str, object]]) -> list[str]:
    bare = [row for row in rows if starts(row, "bare")]
    plain = [row for row in bare if starts(row, "corral")]
    flagged = [row for row in bare if row.get("with_flags")]
    lines = [
        f"{len(rows)} servers, of which {len(bare)} start bare",
        f"of these {len(plain)} start in corral without a flag,"  # noqa: ISC004 - one line
        f" {len(flagged)} more with the flags that it suggests",
    ]
    both = [row for row in rows if all(best(row, what) for what in COLUMNS)]
    if both:
        cold = [best(row, "corral_cold") / best(row, "bare_cold") for row in both]
        warm = [best(row, "corral_warm") / best(row, "bare_warm") for row in both]
        over = [1000 * (best(row, "corral_warm") - best(row, "entry_warm")) for row in both]
        lines.append(
            f"medians of the {len(both)} that always start:"
            f" cold {statistics.median(cold):.2f} x bare, warm {statistics.median(warm):.2f} x bare"
            f" and {statistics.median(over):.0f} ms over the entry point"
        )
    return lines


def read_results(path: str | None) -> dict[str, dict[str, object]]:
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {row["server"]: row for row in map(json.loads, file)}


def try_in_new_home(kind: str, name: str) -> dict[str, object]:
    kept = ("PATH", "LANG", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CONFIG_FILE")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="unknown-servers-") as work:
        try:
            return try_server(kind, name, work, env)
        finally:
            # Make everything writable first, because the directories of corral's store are
            # read-only.
            subprocess.run(["chmod", "-R", "u+rwX", work], check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument(
        "--results", metavar="FILE", help="append the results to FILE, and skip those in it"
    )
    options = parser.parse_args()
    chosen = [("npm", name) for name in NPM] + [("pypi", name) for name in PYPI]
    chosen = [one for one in chosen if not options.only or one[1] in options.only]
    done = read_results(options.results)
    for kind, name in chosen:
        if f"{kind}:{name}" in done:
            continue
        row = done[f"{kind}:{name}"] = try_in_new_home(kind, name)
        print(format_table([row])[-1], file=sys.stderr, flush=True)
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
    rows = [done[f"{kind}:{name}"] for kind, name in chosen]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join([*format_table(rows), "", *summarize(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
