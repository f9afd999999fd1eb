"""Find other versions of installed servers, and replace one version with another.

A reference without a version keeps the version that was installed first. A different version is
installed beside it, and replaces it only if the user agrees. The previous version stays in the
store under its own version number, so the user can go back to it without a network.
"""

import os
import shlex
from collections.abc import Callable, Sequence

from corral.errors import SandboxError
from corral.policy.approvals import Request
from corral.record import record, replace
from corral.safe_text import shown
from corral.servers.open_reference import Choices
from corral.servers.packages.package import (
    SOURCES,
    current_key,
    fetch_newest,
    fetch_package,
    list_checksums,
    list_versions,
    parse_key,
)
from corral.servers.reference import Reference, parse_reference
from corral.servers.registry import lookup
from corral.servers.registry.server_json import choose_package
from corral.servers.store import store
from corral.servers.store.store import Entry

Notify = Callable[[str], None]


@record
class Candidate:
    """A version that may replace `current`.

    `changes` describes all differences except the version. `request` contains the permissions that
    the new version requests, and is None for a package. `accept` makes the new version the current
    one. `installed` is the entry of a package's new version.
    """

    current: Entry
    version: str
    changes: tuple[str, ...]
    accept: Callable[[], None]
    request: Request | None = None
    installed: Entry | None = None


def list_unpinned() -> list[Entry]:
    """Return the installed servers whose reference has no version."""
    found = [(entry, _reference(entry)) for entry in store.entries()]
    return [entry for entry, reference in found if reference and not reference.version]


def _reference(entry: Entry) -> Reference | None:
    if entry.kind not in {*SOURCES, "registry"}:
        return None
    return parse_reference(entry.key.partition(" ")[0])


def find_candidate(entry: Entry, version: str, notify: Notify) -> Candidate | None:
    """Find the version of a server that could replace an installed entry. If `version` is "", this
    is the newest one. Return None if nothing would change.
    """
    reference = _reference(entry)
    if reference is None:
        raise SandboxError(f"{entry.key} is neither a package nor a server of a registry")
    if entry.kind == "registry":
        return _find_server(entry, replace(reference, version=version), notify)
    return _find_package(entry, version, notify)


def _find_package(entry: Entry, version: str, notify: Notify) -> Candidate | None:
    parsed = parse_key(entry.key)
    if parsed is None:
        raise SandboxError(
            f"your settings have changed since {entry.key} was installed",
            hint="change the settings back, or remove the package: corral cache rm",
        )
    reference, how = parsed
    if version:
        exact = replace(reference, version=version)
        if store.find(current_key(exact, how)) is None:
            notify(f"{exact.requirement()} gets today's versions of its dependencies")
        new = fetch_package(exact, how, notify)
    else:
        new = fetch_newest(reference, how, notify)
    changes = _compare(entry, new)
    if new.version == entry.version and not changes:
        return None

    def accept() -> None:
        store.add_key(entry, current_key(replace(reference, version=entry.version), how))
        store.add_key(new, entry.key, replace=True)

    return Candidate(
        current=entry, version=new.version, changes=changes, accept=accept, installed=new
    )


def _compare(old: Entry, new: Entry) -> tuple[str, ...]:
    """Describe how two installed versions of a package differ in their command and in the other
    packages that were installed with them.
    """
    before, after = list_versions(old), list_versions(new)
    other = sorted({*before, *after} - {old.name})
    both = [name for name in other if name in before and name in after]
    changed = [name for name in both if before[name] != after[name]]
    # Compare checksums as well, because the new version may take a dependency with the same name
    # and version from a different archive.
    was, now = list_checksums(old), list_checksums(new)
    replaced = [name for name in both if name not in changed and was.get(name) != now.get(name)]
    lines = [f"it starts: {shlex.join(new.command)}"] if new.command != old.command else []
    lines += [f"{name} {after[name]} has different files than before" for name in replaced]
    lines += [f"adds {name} {after[name]}" for name in other if name not in before]
    lines += [f"drops {name} {before[name]}" for name in other if name not in after]
    return (*lines, *(f"{name} {before[name]} -> {after[name]}" for name in changed))


def _find_server(entry: Entry, reference: Reference, notify: Notify) -> Candidate | None:
    content = lookup.ask_registry(reference)
    version = str(lookup.parse_answer(content, reference).get("version"))
    if version == entry.version:
        return None
    plain = replace(reference, version="")
    found = lookup.open_answer(content, plain, (), Choices(complete=False, notify=notify))

    def accept() -> None:
        with store.lock_key(entry.key):
            # The stored answer is replaced in one step, so that a crash cannot destroy it.
            lookup.store_answer(entry.key, plain, content)
            store.discard_unneeded(entry.digest)

    with open(os.path.join(entry.path(), lookup.FILE), "rb") as file:
        changes = _compare_packages(file.read(), content, plain)
    return Candidate(
        current=entry, version=version, changes=changes, accept=accept, request=found.request
    )


def _compare_packages(old: bytes, new: bytes, reference: Reference) -> tuple[str, ...]:
    """Describe how the package and the arguments differ between two registry answers."""
    before, after = (
        choose_package(lookup.parse_answer(content, reference), reference.name)
        for content in (old, new)
    )
    lines: list[str] = []
    if (before.kind, before.identifier) != (after.kind, after.identifier):
        was, now = (f"{one.kind} {shown(one.identifier, 200)}" for one in (before, after))
        lines.append(f"its package was {was} and is now {now}")
    if before.arguments != after.arguments:
        lines.append("its arguments have changed")
    return tuple(lines)


def match_entries(entries: Sequence[Entry], words: Sequence[str]) -> list[Entry]:
    """Return the entries that the user named. Each of the `words` is either a reference, as the
    user types it for `run`, or the name of a package or server.
    """
    return [
        entry
        for entry in entries
        if {entry.name, entry.key, entry.key.partition(" ")[0]} & set(words)
    ]
