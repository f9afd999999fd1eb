"""Try corral on a host and record the results, check the records, and make a page from them.

A record is the file `docs/hosts/KIND-NAME.json`. It contains the results of `tests/host_trial.py`
or `tests/file_system_trial.py` on one host. `docs/hosts.md` is made from the records.

    python3 tests/hosts.py try KIND NAME [PART...]   try a host, and write its record and the page
    python3 tests/hosts.py write                     write the page from the records
    python3 tests/hosts.py check                     fail if the page is stale

KIND is `kernel` or `file_system`. For a kernel, PART is one of the parts of `host_trial.py`,
`one_attack` or `every_attack`. A file system has no parts.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs/hosts"
PAGE = ROOT / "docs/hosts.md"
Record = dict[str, Any]

FIELDS = {
    "kind": str,
    "name": str,
    "how": str,
    "architecture": str,
    "system": str,
    "user": str,
    "date": str,
    "corral": str,
    "verdict": str,
    "held": list,
    "absent": dict,
    "runs": list,
    "demo": dict,
    "attacks": dict,
}
"""The fields in the record of a host that was tried. If a host was not available, its record has
only `kind`, `name`, and `not_had`, which says how we tried to get the host.
"""

FILE_SYSTEM_FIELDS = {
    **dict.fromkeys(("kind", "name", "how", "system", "date", "corral"), str),
    "tries": list,
}
"""The fields in the record of a file system. `tries` contains the results of
`tests/file_system_trial.py`, each with a place (a directory that corral uses), a user and a tier.
"""

KINDS = {
    "kernel": ("Kernels", "vm.kernel_hosts"),
    "file_system": ("File systems", "file_system_hosts"),
}
"""For each kind, its title on the page, and the module that tries a host of this kind. The module's
`look(name, *parts)` returns parts of the record.
"""

NOT_RUN = {"attacks": {"rule": "", "passed": 0, "skipped": {}, "failed": [], "closing": "not run"}}

HEAD = """\
# Hosts that corral was tried on

corral was tried on the kernels and file systems that this page lists. The page shows what worked on each of them.

On each kernel one user ran `corral doctor --json`, `corral demo --json`, and `corral run -- /bin/true` with and without `--strict`. If the
column *attacks* has numbers, the attacks in `tests/inside` were run as well. An emulated machine is ten to twenty times slower than the
machine that emulates it, so only a part of the attacks ran there. Each section says which attacks ran, and why some were skipped. Each attack
runs in one of these tiers:

- *with namespaces*: this is meant if the reason of a skipped attack does not name a tier.
- *without namespaces*: a seccomp filter around corral forbids namespaces and mounts, as in containers.
- *replaced*: this filter also forbids pidfd_getfd, as Docker's does.
- *listened*: this filter has a seccomp listener, so corral cannot have one.

In the table of capabilities, *yes* means that a probe proved the capability on that host. corral never concludes from a version number that a
capability is present. For an absent capability, the page quotes corral's message and hint. All quotations are from the day of the trial, and some
messages have changed since then.

Each record ends with its date and corral's version. `src` is the hash of corral's source, as `git rev-parse --short HEAD:src` prints it. A
record without this hash was made with an earlier state of that version.

`python3 tests/hosts.py write` makes this page from the records in [hosts/](hosts/), and a test checks that the page is up to date.
`python3 tests/hosts.py try KIND NAME` tries a host again and writes a new record.
"""


FILE_SYSTEMS = """\
The columns of the table below are the directories that corral uses. Each was put on each file system in turn. Root and an ordinary user
tried it with namespaces (*walled*), and under a filter that forbids namespaces (*bare*). In the table, *works* means that this was seen:

- Read grant and write grant: the server can read a file. With the write grant it can also write and rename files. A file beside the grant is
  denied. With namespaces an `.env` file is hidden, and `.git` is read-only.
- HOME: corral runs, and a file that the server keeps (`--state`) is still there in its next run.
- store (the directory of installed servers): two processes can install the same bundle at the same time.
- /tmp: a server can write a file to its private directory there.
- corral's code: corral runs from its package on this file system.

*refuses* means that corral refused the run with an error and a hint. If the hint for a grant was a `chown` command, the command was run, and
afterwards the grant worked. After the refusal for the used-up quota, files were removed, and the run then worked. User-mode Linux does not
have Landlock, so it was tried only with namespaces.

If a disk is full, or too small for a package from npm or PyPI, corral does not install the package. It names the reason and leaves nothing
behind. With enough room the installation works (`tests/linux/test_full_disk_installs.py`).
"""


class RecordError(Exception):
    """Raised when the fields of a record do not match the format."""


def read(path: pathlib.Path) -> Record:
    """Return the record in a file. Raise RecordError if it does not match the format or the file's name."""
    record = json.loads(path.read_text(encoding="utf-8"))
    wanted = (
        {"kind": str, "name": str, "not_had": str} if "not_had" in record else fields_of(record)
    )
    if set(record) != set(wanted):
        raise RecordError(f"{path.name}: fields that differ: {set(record) ^ set(wanted)}")
    for field, kind in wanted.items():
        if not isinstance(record[field], kind):
            raise RecordError(f"{path.name}: {field} is not of type {kind.__name__}")
    if path != place(record) or record["kind"] not in KINDS:
        raise RecordError(f"{path.name}: does not belong to {record['kind']} {record['name']}")
    return record


def fields_of(record: Record) -> dict[str, type]:
    return FILE_SYSTEM_FIELDS if record["kind"] == "file_system" else FIELDS


def place(record: Record) -> pathlib.Path:
    return RECORDS / f"{record['kind']}-{record['name']}.json"


def records(kind: str) -> list[Record]:
    """Return all records of a kind, sorted by the version numbers in their names."""
    found = [read(path) for path in RECORDS.glob(f"{kind}-*.json")]
    return sorted(found, key=lambda record: order(record["name"]))


def order(name: str) -> list[tuple[int, str]]:
    parts = name.replace("-", ".").split(".")
    return [(int(part) if part.isdigit() else 10**6, part) for part in parts]


def page() -> str:
    sections = [HEAD]
    for kind, (title, _) in KINDS.items():
        if found := records(kind):
            sections.append(f"## {title}\n\n{section(found)}")
    return "\n".join(sections)


def section(found: list[Record]) -> str:
    tried = [record for record in found if "not_had" not in record]
    if found[0]["kind"] == "file_system":
        return file_systems(found, tried)
    parts = [overview(tried), matrix(tried)] if tried else []
    return "\n".join([*parts, *absent(found), *map(details, tried)])


def absent(found: list[Record]) -> list[str]:
    return [
        f"There is no record for **{record['name']}**. {record['not_had']}\n"
        for record in found
        if "not_had" in record
    ]


def file_systems(found: list[Record], tried: list[Record]) -> str:
    places = list(dict.fromkeys(one["place"] for record in tried for one in record["tries"]))
    rows = [[record["name"], *(at_place(record, place) for place in places)] for record in tried]
    return "\n".join(
        [FILE_SYSTEMS, table(["", *places], rows), *absent(found), *map(file_system, tried)]
    )


def at_place(record: Record, place: str) -> str:
    """Return each result at `place` that is not "works", with its user and tier. If there is none,
    return "works", or "not tried" if `place` was not tried.
    """
    tries = [one for one in record["tries"] if one["place"] == place]
    others = [f"{one['result']} ({one['user']}, {one['tier']})" for one in tries if one["said"]]
    return "; ".join(others) or ("works" if tries else "not tried")


def quote(said: str) -> str:
    """Return a message as a Markdown quotation, because in a code block its long lines would not
    wrap.
    """
    return "\n>\n".join(f"> {line}" for line in said.splitlines())


def file_system(record: Record) -> str:
    said = [f"### {record['name']}\n", f"{record['how']}. {record['system']}.\n"]
    said += [
        f"{one['place']} (user: {one['user']}, tier: {one['tier']}):\n\n{quote(one['said'])}\n"
        for one in record["tries"]
        if one["said"]
    ]
    said.append(f"Tried on {record['date']} with corral {record['corral']}.\n")
    return "\n".join(said)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def overview(tried: list[Record]) -> str:
    head = ["host", "architecture", "`run`", "`run --strict`", "demo", "attacks"]
    rows = [
        [
            record["name"],
            record["architecture"],
            *(
                "works" if run["code"] == 0 else f"refused ({run['code']})"
                for run in record["runs"]
            ),
            record["demo"]["summary"],
            record["attacks"]["closing"],
        ]
        for record in tried
    ]
    return table(head, rows)


def matrix(tried: list[Record]) -> str:
    """Return a table that shows, for each capability in `doctor --json`, on which hosts it was
    proven.
    """
    names = dict.fromkeys(name for record in tried for name in (*record["held"], *record["absent"]))
    rows = [[f"`{name}`", *(mark(record, name) for record in tried)] for name in names]
    return table(["capability", *(record["name"] for record in tried)], rows)


def mark(record: Record, capability: str) -> str:
    if capability in record["held"]:
        return "yes"
    found = record["absent"].get(capability)
    return found["status"] if found else "not probed"


def details(record: Record) -> str:
    said = [f"### {record['name']}\n", f"{record['how']} {record['system']}, {record['user']}.\n"]
    said.append(f"Verdict of `corral doctor`: {record['verdict']}\n")
    if record["absent"]:
        rows = [
            [f"`{name}`", found["status"], cell(found["evidence"]), cell(found["hint"])]
            for name, found in record["absent"].items()
        ]
        said.append(table(["not proven", "status", "because", "hint"], rows))
    said += [
        f"`{run['command']}` ends with {run['code']}:\n\n{quote(run['said'])}\n"
        for run in record["runs"]
        if run["said"]
    ]
    said += [demo_of(record["demo"]), attacks_of(record["attacks"])]
    said.append(f"Tried on {record['date']} with corral {record['corral']}.\n")
    return "\n".join(said)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


EXCEPTIONS = {"open": "Not stopped on this host", "unpromised": "Stopped, but not by a wall"}


def demo_of(demo: Record) -> str:
    """Return the summary of `corral demo`, and the acts whose verdict is neither "stopped" nor
    "works".
    """
    said = [f"`corral demo`: {demo['summary']}.\n"]
    for verdict in dict.fromkeys([*EXCEPTIONS, *sorted(demo["acts"].values())]):
        acts = [act for act, found in demo["acts"].items() if found == verdict]
        if acts and verdict not in ("stopped", "works"):
            said.append(f"- {EXCEPTIONS.get(verdict, verdict)}: {', '.join(acts)}.")
    if demo["not_tried"]:
        said.append(f"- Not tried: {'; '.join(demo['not_tried'])}.")
    return "\n".join(said).rstrip("\n") + "\n"


OUTCOMES = ("passed", "skipped", "failed", "did not end", "not started")


def attacks_of(attacks: Record) -> str:
    parts = [f"Attacks: {attacks['closing']}. {attacks['rule']}".strip() + "\n"]
    if rows := attacks.get("rows"):
        cells = [
            [row["file"], row["user"], *(str(row.get(outcome, 0)) for outcome in OUTCOMES)]
            for row in rows
        ]
        parts.append(table(["file", "user", *OUTCOMES], cells))
    lines = [f"- did not pass: `{test}`" for test in attacks["failed"]]
    lines += [f"- skipped: {cell(why)} ({count})" for why, count in attacks["skipped"].items()]
    if lines:
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def finished(kind: str, name: str, seen: Record) -> Record:
    """Return the record of a trial: its results, today's date and the version and hash of `src`."""
    dated = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "corral": f"{version()}, src {source()}",
    }
    whole = {"kind": kind, "name": name, **seen, **dated}
    return {field: whole[field] for field in fields_of(whole)}


def version() -> str:
    text = (ROOT / "src/corral/__init__.py").read_text(encoding="utf-8")
    return text.partition('__version__ = "')[2].partition('"')[0]


def source() -> str:
    """Return git's hash of the `src` directory, followed by "-changed" if there are uncommitted
    changes. Unlike the hash of a commit, this hash stays the same if the history is rewritten.
    """
    git = ["git", "-C", str(ROOT)]
    tree = subprocess.check_output([*git, "rev-parse", "--short", "HEAD:src"], text=True).strip()
    changed = subprocess.call([*git, "diff", "--quiet", "HEAD", "--", "src"])
    return f"{tree}-changed" if changed else tree


def look(kind: str, name: str, *parts: str) -> Record:
    """Try one host with the module of its kind. If only some parts are tried, the others keep their
    values from the old record.
    """
    seen = importlib.import_module(KINDS[kind][1]).look(name, *parts)
    before = place({"kind": kind, "name": name})
    known = read(before) if parts and before.exists() else NOT_RUN
    return finished(kind, name, {**known, **seen})


def keep(record: Record) -> None:
    RECORDS.mkdir(exist_ok=True)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    place(record).write_text(text + "\n", encoding="utf-8")


def main(arguments: list[str]) -> str | None:
    match arguments:
        case ["try", kind, name, *parts] if kind in KINDS:
            keep(look(kind, name, *parts))
            PAGE.write_text(page(), encoding="utf-8")
        case ["write"]:
            PAGE.write_text(page(), encoding="utf-8")
        case ["check"]:
            if PAGE.read_text(encoding="utf-8") != page():
                return f"{PAGE} is stale\nhint: python3 tests/hosts.py write"
        case _:
            return __doc__
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
