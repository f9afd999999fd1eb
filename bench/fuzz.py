"""Fuzz every parser of untrusted text with atheris, which is not a dependency of corral.

    python bench/fuzz.py --minutes 5            all parsers one after another, 5 minutes in total
    python bench/fuzz.py --minutes 5 --only dns

The first inputs (seeds) of a parser are in tests/corpus/NAME. The test suite also passes them to
the functions in this file, without atheris. A parser may reject its input with its own error. Any
other exception is a bug.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "corpus"
MAX_INPUT_BYTES = 4096


def read_dns(data: bytes) -> None:
    from corral.network.gateway import dns_messages

    try:
        query = dns_messages.parse_query(data)
    except dns_messages.MalformedError:
        dns_messages.build_error(data, 1)
        return
    assert query.question in data
    assert query.name == query.name.lower()
    answer = dns_messages.build_answer(query, 0)
    assert answer[:2] == data[:2]


def read_tls(data: bytes) -> None:
    from corral.network.tls_hello import HelloReader

    whole = HelloReader().feed(data)
    slowly = HelloReader()
    verdict = slowly.feed(b"")
    for at in range(len(data)):
        verdict = slowly.feed(data[at : at + 1])
        if verdict.state != "incomplete":
            break
    if verdict.state in {"name", "no name"}:
        assert whole == verdict, "the verdict depends on how the bytes arrive"
    assert (whole.state == "incomplete") == (verdict.state == "incomplete")


def read_http(data: bytes) -> None:
    from corral.network.http_proxy import request

    try:
        found = request.parse_request(data)
    except request.RefusedError:
        return
    if found is not None and not found.tunnel:
        assert found.head.count(b"\r\n\r\n") == 1
        assert found.head.endswith(b"\r\n\r\n")


def read_manifest(data: bytes) -> None:
    from corral.errors import SandboxError
    from corral.policy import manifest

    for path in ("corral.toml", "corral.json"):
        try:
            manifest.parse_bytes(data, path)
        except SandboxError as problem:
            printed = problem.message.replace("\n", "")
        else:
            printed = ""
        assert printed.isprintable(), printed


def read_client_file(data: bytes) -> None:
    from corral.clients.configured_servers import read_servers
    from corral.errors import SandboxError
    from corral.formats import jsonc, toml, yaml

    text = data.decode(errors="replace")
    for form in (jsonc, toml, yaml):
        try:
            read_servers(form, text)
        except SandboxError:
            continue


def read_archive(data: bytes) -> None:
    from corral.servers.bundles import archive

    limits = archive.Limits(max_packed_bytes=1 << 20, max_bytes=1 << 20, max_entries=100)
    with tempfile.TemporaryDirectory() as directory:
        inside = pathlib.Path(directory, "inside")
        inside.mkdir()
        try:
            archive.extract_archive(io.BytesIO(data), str(inside), limits=limits)
        except archive.ArchiveError:
            pass
        assert [path.name for path in pathlib.Path(directory).iterdir()] == ["inside"]
        assert not [path for path in inside.rglob("*") if path.is_symlink()]


def read_bundle_manifest(data: bytes) -> None:
    from corral.errors import SandboxError
    from corral.servers.bundles.manifest import parse_manifest

    try:
        parse_manifest(data, "linux")
    except SandboxError:
        pass


def read_server_json(data: bytes) -> None:
    from corral.errors import SandboxError
    from corral.servers.registry import server_json

    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(found, dict):
        return
    try:
        package = server_json.choose_package(found, "a.example/server")
        server_json.build_arguments(package, {"folder": "/tmp/x"}, complete=True)
        server_json.collect_variables(package, {}, (), complete=True)
    except SandboxError:
        pass


def read_messages(data: bytes) -> None:
    """Check that the guard passes only JSON-RPC messages, and that lists of tools contain only the
    tool in `pins`, however the server's bytes are split into reads.
    """
    from corral.messages.frames import FrameReader
    from corral.messages.guard import Guard
    from corral.messages.rules import Rules

    class Silent:
        def deny(self, refusal: object) -> None:
            pass

        def log(self, call: object) -> None:
            pass

        def change(self, kind: str, name: str, text: str) -> None:
            pass

    def passed(chunks: list[bytes]) -> bytes:
        rules = Rules(allow={}, deny={"tools": ["d*"]}, pins=[("tool", "a", '{"name":"a"}')])
        guard, frames = Guard(rules, Silent(), max_pending=4), FrameReader(1024)
        guard.from_client(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        found = [frame for chunk in chunks for frame in frames.feed(chunk)]
        last = frames.end()
        routed = [guard.from_server(one) for one in (*found, *([last] if last else []))]
        for one in found:
            guard.from_client(one)
        return b"".join(one.onward for one in routed)

    onward = passed([data])
    assert onward == passed([data[at : at + 1] for at in range(len(data))])
    for line in onward.splitlines():
        value = json.loads(line)
        for message in value if isinstance(value, list) else [value]:
            assert message["jsonrpc"] == "2.0"
            if message.get("id") == 1 and "result" in message:
                assert all(tool == {"name": "a"} for tool in message["result"]["tools"])


TARGETS = {
    "messages": read_messages,
    "dns": read_dns,
    "tls": read_tls,
    "http": read_http,
    "manifest": read_manifest,
    "client": read_client_file,
    "archive": read_archive,
    "bundle": read_bundle_manifest,
    "server_json": read_server_json,
}


def fuzz(name: str, seconds: int, found: pathlib.Path) -> None:
    """Fuzz one parser. This function does not return, because atheris ends the process."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["corral"]):
        sys.path.insert(0, str(ROOT / "src"))
        target = TARGETS[name]
        for seed in sorted((CORPUS / name).iterdir()):
            target(seed.read_bytes())
    grown = found / name
    grown.mkdir(parents=True, exist_ok=True)
    flags = [f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-print_final_stats=1"]
    where = [f"-artifact_prefix={found}/{name}-", str(grown), str(CORPUS / name)]
    atheris.Setup([sys.argv[0], *flags, *where], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--inside", action="store_true", help="fuzz in this process")
    parser.add_argument("--found", type=pathlib.Path, help="where new inputs are written")
    options = parser.parse_args()
    found = options.found or pathlib.Path(tempfile.mkdtemp(prefix="corral-fuzz-"))
    if options.inside:
        fuzz(options.only, int(options.minutes * 60), found)
        return 0
    names = [options.only] if options.only else list(TARGETS)
    each = options.minutes / len(names)
    failed = 0
    for name in names:
        words = ["--inside", "--only", name, "--minutes", str(each), "--found", str(found)]
        done = subprocess.run(
            [sys.executable, __file__, *words], capture_output=True, text=True, check=False
        )
        lines = done.stderr.splitlines()
        kept = [line for line in lines if line.startswith(("Done ", "stat::number_of_exec", "=="))]
        failed += bool(done.returncode)
        print(f"{name}: exit {done.returncode}; " + "; ".join(kept[:3]), flush=True)
        if done.returncode:
            print("\n".join(lines[-25:]), flush=True)
    print(f"{len(names) - failed} of {len(names)} parsers had no finding; new inputs: {found}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
