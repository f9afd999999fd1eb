"""Serve small registries on loopback over real HTTP: npm, a Python index, an MCP registry."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import ssl
import tarfile
import threading
import urllib.parse
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Registries:
    """An HTTP server for everything that a test publishes. `asked` lists the requested paths in
    order.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1") -> None:
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.npm: dict[str, dict[str, dict]] = {}
        self.token = ""
        self.without_length: set[str] = set()
        self.longer: dict[str, int] = {}
        self.held: dict[str, threading.Event] = {}
        self.reached = threading.Event()
        registries = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registries.answer(self)

            def do_HEAD(self) -> None:
                registries.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.server.daemon_threads = True
        # Do not print a stack trace if a client refuses the certificate.
        self.server.handle_error = lambda *_: None
        self.port = self.server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://{address}:{self.port}"
        # Each connection's own thread performs the handshake, because the accepting thread must not
        # wait for a client.
        if tls:
            self.server.socket = tls.wrap_socket(
                self.server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        for event in self.held.values():
            event.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = urllib.parse.unquote(request.path.partition("?")[0])
        self.asked.append(path)
        if path in self.held:
            self.reached.set()
            self.held[path].wait(60)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            self.say(request, 401, b"{}")
        elif path in self.redirects:
            self.say(request, 302, b"", Location=self.redirects[path])
        elif path in self.files:
            self.serve(request, path)
        elif path[1:] in self.npm:
            self.say(request, 200, json.dumps(self.packument(path[1:])).encode())
        else:
            self.say(request, 404, b'{"error": "not found"}')

    def serve(self, request: BaseHTTPRequestHandler, path: str) -> None:
        body = self.files[path]
        if path in self.without_length or path in self.longer:
            # Send the wrong Content-Length that the test has set, or no Content-Length. Without it,
            # the answer ends when the connection is closed.
            request.send_response(200)
            if path in self.longer:
                request.send_header("Content-Length", str(self.longer[path]))
            request.send_header("Connection", "close")
            request.end_headers()
            request.wfile.write(body)
            request.close_connection = True
        else:
            self.say(request, 200, body)

    @staticmethod
    def say(request: BaseHTTPRequestHandler, code: int, body: bytes, **headers: str) -> None:
        request.send_response(code)
        kind = "text/html" if request.path.startswith("/simple/") else "application/octet-stream"
        usual = {"Content-Length": str(len(body)), "Content-Type": kind}
        if request.path.startswith("/files/"):
            # PyPI also sends this header.
            usual["Cache-Control"] = "max-age=31536000, immutable"
        for name, value in {**usual, **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def packument(self, name: str) -> dict:
        versions = self.npm[name]
        return {"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}

    def publish_npm(self, name: str, version: str, files: dict[str, str], **package: object) -> str:
        """Publish a package with these files, and return the path of its archive."""
        data = {"name": name, "version": version, **package}
        archive = tarball({"package.json": json.dumps(data), **files})
        path = f"/-/{name}-{version}.tgz"
        self.files[path] = archive
        digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": self.url + path, "integrity": f"sha512-{digest}"}
        self.npm.setdefault(name, {})[version] = {**data, "dist": dist}
        return path

    def publish_wheel(
        self, name: str, version: str, files: dict[str, str], scripts: dict[str, str]
    ) -> str:
        made = wheel(name, version, files, scripts)
        file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        return self.publish_file(name, file, made)

    def publish_file(self, name: str, file: str, content: bytes) -> str:
        """Publish a file for a Python project, with its hash."""
        path = f"/files/{file}"
        self.files[path] = content
        digest = hashlib.sha256(content).hexdigest()
        link = f'<a href="{self.url}{path}#sha256={digest}">{file}</a>\n'
        index = f"/simple/{name}/"
        self.files[index] = self.files.get(index, b"<!DOCTYPE html>\n") + link.encode()
        return path

    def publish_server(
        self, name: str, version: str, *, api: str = "v0.1", **server: object
    ) -> None:
        """Publish a server.json in the MCP registry under its version, and as the latest version."""
        data = {"server": {"name": name, "version": version, "description": "x", **server}}
        for one in (version, "latest"):
            self.files[f"/{api}/servers/{name}/versions/{one}"] = json.dumps(data).encode()


def tarball(files: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size, info.mode = len(text.encode()), 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


def wheel(name: str, version: str, files: dict[str, str], scripts: dict[str, str]) -> bytes:
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    points = "".join(f"{script} = {target}\n" for script, target in scripts.items())
    content = {
        **files,
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if points:
        content[f"{folder}/entry_points.txt"] = f"[console_scripts]\n{points}"
    rows = "".join(f"{path},,\n" for path in (*content, f"{folder}/RECORD"))
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path, text in {**content, f"{folder}/RECORD": rows}.items():
            archive.writestr(path, text)
    return held.getvalue()
