"""Run real clients through the gateway, against the real servers of tests/world.py. The clients
have no proxy settings.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile

import pytest

import rigs
from world import GUARDED, OTHER, PUBLIC, Inhabitant, make_world

LARGE = 1 << 30
MANY = 500
BLOCK = bytes(1 << 20)
TLS = pathlib.Path(__file__).parent.parent / "tls"

pytestmark = pytest.mark.parametrize("tier", ["walled", "bare", "replaced"], indirect=True)


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    yield from make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(whole_world):
    whole_world.forget()
    whole_world.name("good.test", PUBLIC)
    whole_world.name("other.test", OTHER)
    yield whole_world
    whole_world.stop()


@pytest.fixture
def who(user, world):
    return Inhabitant(user, world)


class Web(http.server.BaseHTTPRequestHandler):
    """A handler for one HTTP/1.1 connection on an accepted socket."""

    protocol_version = "HTTP/1.1"
    folder = ""

    def do_GET(self):
        if self.path.startswith("/size/"):
            self.large(int(self.path.removeprefix("/size/")))
            return
        body = self.content()
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        said = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def content(self):
        if not self.folder:
            return f"{self.headers['Host']} {self.client_address[1]}".encode()
        place = os.path.join(self.folder, self.path.partition("?")[0].lstrip("/"))
        if not os.path.isfile(place):
            return None
        with open(place, "rb") as file:
            return file.read()

    def large(self, size):
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for _ in range(size // len(BLOCK)):
            self.wfile.write(BLOCK)

    def log_message(self, *_):
        pass


def web(end):
    Web(end, end.getpeername(), None)


def run(who, *command, flags=(), **options):
    done = who.run(*command, flags=flags, timeout=110, **options)
    assert done.returncode == 0, (done.returncode, done.stderr.decode(), done.stdout[-1000:])
    return done.stdout.decode()


def allow(*entries):
    return tuple(word for entry in entries for word in ("--allow-net", entry))


def system(tool):
    """Return the path of a program. Prefer the one in /usr/bin, because the user may be unable to
    read other directories.
    """
    place = f"/usr/bin/{tool}"
    return place if os.access(place, os.X_OK) else shutil.which(tool)


def test_curl_reaches_only_the_allowed_host(who, world):
    rigs.need("curl")
    world.serve(web, port=80)
    said = run(who, system("curl"), "-sS", "http://good.test/", flags=allow("good.test"))
    assert said.startswith("good.test ")
    denied = who.run(system("curl"), "-sS", "http://other.test/", flags=allow("good.test"))
    assert denied.returncode == 6  # curl's code for a name that it cannot resolve
    assert (
        who.run(system("curl"), "-sS", "http://other.test/", flags=allow("other.test")).returncode
        == 0
    )


def test_several_requests_share_one_connection(who, world):
    """Send several requests. The server must see the same client port each time."""
    world.serve(web, port=8080)
    code = """
import http.client
link = http.client.HTTPConnection("good.test", 8080)
answer = []
for _ in range(3):
    link.request("GET", "/")
    answer.append(link.getresponse().read().decode())
link.close()
"""
    said = who.inside(code, flags=allow("good.test:8080"))
    assert len(said) == 3
    assert len(set(said)) == 1
    assert world.arrived == [(PUBLIC, 8080)]


def test_http2_works(who, world, tmp_path):
    rigs.need("curl", "node")
    if (
        "HTTP2"
        not in subprocess.run(
            [system("curl"), "-V"], capture_output=True, text=True, check=True
        ).stdout
    ):
        pytest.skip("this curl is built without HTTP/2")
    code = """
const server = require("http2").createServer((request, reply) => reply.end(request.httpVersion));
server.listen(8080, "::", () => console.log("ready"));
"""
    server = world.far.call(
        lambda: subprocess.Popen([system("node"), "-e", code], stdout=subprocess.PIPE)
    )
    try:
        assert server.stdout.readline() == b"ready\n"
        command = (system("curl"), "-sS", "--http2-prior-knowledge", "http://good.test:8080/")
        assert run(who, *command, flags=allow("good.test:8080")) == "2.0"
    finally:
        server.kill()
        server.communicate()


@pytest.fixture
def authority(who, scratch):
    """Return the files of good.test's certificate and key. Clients do not trust this certificate by
    default.
    """
    file = scratch / "ca.pem"
    shutil.copy(TLS / "certificate.pem", file)
    file.chmod(0o644)
    os.chown(file, who.owner, who.owner)
    return file, TLS / "key.pem"


@pytest.fixture
def secure(world, authority):
    """Serve good.test on port 443, and record the names that clients ask for."""
    file, key = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    asked = []
    context.sni_callback = lambda _link, name, _context: asked.append(name)

    def handle(end):
        try:
            with context.wrap_socket(end, server_side=True) as link:
                web(link)
        except ssl.SSLError:
            pass  # the client does not trust the test's certificate

    world.serve(handle, port=443)
    return asked


def test_python_verifies_tls_end_to_end(who, secure, authority):
    """Let the target verify the server's certificate. This succeeds only if the gateway does not
    decrypt the connection, because the gateway does not have the server's key.
    """
    code = """
import urllib.error, urllib.request
try:
    with urllib.request.urlopen("https://good.test/") as said:
        answer = said.read().decode().split()[0]
except urllib.error.URLError as error:
    answer = type(error.reason).__name__
"""
    file = str(authority[0])
    trust = ("--read", file, "--env", f"SSL_CERT_FILE={file}")
    assert who.inside(code, flags=(*allow("good.test"), *trust)) == "good.test"
    assert who.inside(code, flags=allow("good.test")) == "SSLCertVerificationError"
    # With an allowlist, corral passes on the host's SSL_CERT_FILE and makes the file readable, so
    # the flags in `trust` are not needed.
    host = who.environment(SSL_CERT_FILE=file)
    assert who.inside(code, flags=allow("good.test"), env=host) == "good.test"
    assert set(secure) == {"good.test"}


def test_curl_verifies_tls_end_to_end(who, secure, authority):
    rigs.need("curl")
    file = str(authority[0])
    command = (system("curl"), "-sS", "--cacert", file, "https://good.test/")
    flags = (*allow("good.test"), "--read", file)
    assert run(who, *command, flags=flags).startswith("good.test ")
    # 60 is curl's code for an unknown certificate
    assert who.run(command[0], "-sS", command[-1], flags=allow("good.test")).returncode == 60


def test_node_verifies_tls_end_to_end(who, secure, authority):
    rigs.need("node")
    file = str(authority[0])
    code = """
fetch("https://good.test/").then(said => said.text()).then(text => console.log(text),
    error => console.log(error.cause.code))
"""
    trust = ("--read", file, "--env", f"NODE_EXTRA_CA_CERTS={file}")
    node = system("node")
    assert run(who, node, "-e", code, flags=(*allow("good.test"), *trust)).startswith("good.test ")
    assert run(who, node, "-e", code, flags=allow("good.test")) == "DEPTH_ZERO_SELF_SIGNED_CERT\n"
    assert run(who, node, "-e", code, flags=allow("other.test")) == "ENOTFOUND\n"


def test_nodes_own_resolver_works(who, world):
    """Use c-ares, Node's own DNS resolver. It sends its queries over UDP, and checks the sender and
    the receiver of each answer.
    """
    rigs.need("node")
    code = """
const resolver = new (require("dns").Resolver)();
for (const name of ["good.test", "other.test"])
    resolver.resolve4(name, (error, found) => console.log(name, error ? error.code : found.join()));
"""
    said = run(who, system("node"), "-e", code, flags=allow("good.test")).splitlines()
    assert sorted(said) == ["good.test 192.31.196.1", "other.test ENOTFOUND"]


def test_asyncio_connects_through_the_gateway(who, world):
    """Use asyncio, which connects without blocking, and asks the connected socket for its own and
    its peer's address.
    """
    world.serve(web, port=80)
    code = """
import asyncio
async def got(name):
    try:
        reader, writer = await asyncio.open_connection(name, 80)
        peer = writer.get_extra_info("peername")[0]
        writer.write(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        said = await reader.read()
        writer.close()
        return [peer, said.split()[1].decode()]
    except OSError as error:
        return type(error).__name__
async def main():
    return await asyncio.gather(*[got(name) for name in ("good.test", "other.test", "11.0.0.3")])
answer = asyncio.run(main())
"""
    good, *others = who.inside(code, flags=allow("good.test"))
    assert good == ["192.31.196.1", "200"]
    assert others[0] == "gaierror"
    refused = "ConnectionResetError" if who.tier == "walled" else "ConnectionRefusedError"
    assert others[1] == refused


MUSL = r"""
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a server at NAME:80 says to a plain request, for each NAME, with each of the usual hints. */
static void ask(const char *name, int family, int flags) {
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    struct addrinfo *found;
    char said[512];
    int code = getaddrinfo(name, "80", &hints, &found);
    if (code) { printf("%s\n", gai_strerror(code)); return; }
    int end = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(end, found->ai_addr, found->ai_addrlen)) { perror("connect"); return; }
    dprintf(end, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name);
    size_t size = 0;
    for (ssize_t got; (got = read(end, said + size, sizeof said - 1 - size)) > 0; size += got);
    said[size] = 0;
    char *body = strstr(said, "\r\n\r\n");
    printf("%.9s\n", body ? body + 4 : said);
    close(end);
    freeaddrinfo(found);
}

int main(int count, char **names) {
    for (int at = 1; at < count; at++) {
        ask(names[at], AF_UNSPEC, 0);
        ask(names[at], AF_UNSPEC, AI_ADDRCONFIG);
        ask(names[at], AF_INET, 0);
        ask(names[at], AF_INET6, AI_V4MAPPED);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def musl():
    """Build a client with musl's resolver, in a directory that all users can read."""
    rigs.need("gcc")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="corral-musl-"))
    folder.chmod(0o755)
    (folder / "client.c").write_text(MUSL)
    argv = ["musl-gcc", "-static", "-O1", "-o", folder / "client", folder / "client.c"]
    subprocess.run(argv, check=True, capture_output=True)
    yield str(folder / "client")
    shutil.rmtree(folder)


def test_musls_resolver_works(who, world, scratch, musl):
    """Use musl's resolver, which looks up both address families at once. If one family has no
    address, the answer must not hide the address of the other family.

    The answer for a denied name must end the lookup. If it were REFUSED, for example, musl would
    repeat the question for five seconds.
    """
    world.serve(web, port=80)
    report = scratch / "report.json"
    flags = (*allow("good.test"), "--report", str(report))
    said = run(who, musl, "good.test", "other.test", flags=flags).splitlines()
    assert said == ["good.test"] * 4 + ["Name does not resolve"] * 4
    [denial] = json.loads(report.read_text())["denials"]
    # musl looks up both families three times, and then one family: seven questions.
    assert (denial["kind"], denial["destination"], denial["count"]) == ("name", "other.test", 7)
    assert world.arrived == [(PUBLIC, 80)] * 4
    assert run(who, musl, "other.test", flags=allow("other.test")).splitlines() == ["other.tes"] * 4


def test_gos_resolver_works(who, world):
    """Use Go's resolver, which does not use a C library, but reads the system's files itself."""
    rigs.need("hey")
    world.serve(web, port=80)
    own = ("--env", "GODEBUG=netdns=go+1")
    command = (system("hey"), "-n", "4", "-c", "2", "-disable-keepalive", "http://good.test/")
    done = who.run(*command, flags=(*allow("good.test"), *own), timeout=110)
    assert b"Go's resolver" in done.stderr
    assert b"[200]\t4 responses" in done.stdout, done
    assert world.arrived == [(PUBLIC, 80)] * 4
    done = who.run(*command, flags=(*allow("other.test"), *own), timeout=110)
    assert b"no such host" in done.stdout, done
    assert b"responses" not in done.stdout


def test_git_clones_over_https(who, world, authority, tmp_path):
    """Clone a repository with git, which starts another program to speak https."""
    rigs.need("git")
    git = system("git")
    name = ["-c", "user.name=a", "-c", "user.email=a@good.test", "-c", "init.defaultBranch=main"]
    tree, bare = tmp_path / "tree", tmp_path / "www" / "repo.git"
    subprocess.run([git, *name, "init", "-q", tree], check=True)
    (tree / "file").write_text("content\n")
    for words in (["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([git, "-C", tree, *name, *words], check=True)
    subprocess.run([git, "clone", "-q", "--bare", tree, bare], check=True)
    subprocess.run([git, "-C", bare, "update-server-info"], check=True)
    handler = type("Repository", (Web,), {"folder": str(tmp_path / "www")})
    file, key = authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)

    def serve(end):
        with context.wrap_socket(end, server_side=True) as link:
            handler(link, link.getpeername(), None)

    world.serve(serve, port=443)
    trust = ("--read", str(file), "--env", f"GIT_SSL_CAINFO={file}")
    flags = (*allow("good.test"), *trust, "--env", "GIT_CONFIG_NOSYSTEM=1", "--allow-subprocess")
    said = run(who, git, "ls-remote", "https://good.test/repo.git", flags=flags)
    assert said.endswith("\trefs/heads/main\n")
    url, folder = "https://good.test/repo.git", "$TMPDIR/repo"
    clone = f'{git} clone -q {url} "{folder}" && cat "{folder}/file"'
    assert run(who, "/bin/sh", "-c", clone, flags=flags) == "content\n"


def test_a_large_download_arrives_through_the_gateway(who, world, scratch):
    world.serve(web, port=80)
    report = scratch / "report.json"
    code = f"""
import hashlib, urllib.request
digest, size = hashlib.sha256(), 0
with urllib.request.urlopen("http://good.test/size/{LARGE}") as said:
    while block := said.read(1 << 20):
        digest.update(block)
        size += len(block)
answer = [size, digest.hexdigest()]
"""
    expected = hashlib.sha256()
    for _ in range(LARGE // len(BLOCK)):
        expected.update(BLOCK)
    flags = (*allow("good.test"), "--report", str(report))
    assert who.inside(code, flags=flags, timeout=110) == [LARGE, expected.hexdigest()]
    [[name, traffic]] = json.loads(report.read_text())["traffic"]
    assert (name, traffic["connections"], traffic["failed"]) == ("good.test", 1, 0)
    assert traffic["down"] > LARGE


def test_an_upload_arrives(who, world):
    world.serve(web, port=80)
    code = """
import hashlib, urllib.request
body = os.urandom(1 << 20) * 16
said = urllib.request.urlopen("http://good.test/", data=body).read().decode()
answer = said == hashlib.sha256(body).hexdigest()
"""
    assert who.inside(code, flags=allow("good.test")) is True


def test_many_connections_work_at_once(who, world):
    """Open all connections before sending data on the first. Each must get its own bytes back."""
    world.serve(echo, port=7000)
    code = f"""
import socket
ends = [socket.create_connection(("good.test", 7000)) for _ in range({MANY})]
for number, end in enumerate(ends):
    end.sendall(b"%d." % number)
    end.shutdown(socket.SHUT_WR)
answer = []
for end in ends:
    with end, end.makefile("rb") as file:
        answer.append(file.read().decode())
"""
    said = who.inside(code, flags=allow("good.test:7000"))
    assert said == [f"{number}." for number in range(MANY)]
    assert len(world.arrived) == MANY


def echo(end):
    """Wait until the client has finished sending, and then send everything back."""
    with end.makefile("rb") as file:
        end.sendall(file.read())


def test_one_direction_stays_open_after_the_other_has_ended(who, world):
    world.serve(echo, port=7000)
    code = """
import socket
with socket.create_connection(("good.test", 7000)) as end:
    end.sendall(b"a" * 100000)
    end.shutdown(socket.SHUT_WR)
    with end.makefile("rb") as file:
        answer = len(file.read())
"""
    assert who.inside(code, flags=allow("good.test:7000")) == 100000


def test_a_server_that_ends_first_still_gets_data(who, world):
    """Let the server shut down its sending direction first. The client must see end of file. Data
    that the client sends after that must still reach the server.
    """
    heard = []

    def handle(end):
        end.sendall(b"bye")
        end.shutdown(socket.SHUT_WR)
        with end.makefile("rb") as file:
            heard.append(file.read())

    world.serve(handle, port=7000)
    code = """
import socket
with socket.create_connection(("good.test", 7000)) as end:
    with end.makefile("rb") as file:
        answer = file.read().decode()
    end.sendall(b"after")
"""
    assert who.inside(code, flags=allow("good.test:7000")) == "bye"
    world.stop()
    assert heard == [b"after"]


def test_a_slow_reader_does_not_delay_others(who, world):
    """Do not read the data of one connection while other connections work. When the client reads
    the slow one at last, it must get every byte.
    """
    world.serve(web, port=80)
    size = 64 << 20
    code = f"""
import socket, urllib.request
slow = socket.create_connection(("good.test", 80))
slow.sendall(b"GET /size/{size} HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n")
slow.recv(1, socket.MSG_PEEK)
others = [len(urllib.request.urlopen("http://good.test/size/{1 << 20}").read()) for _ in range(20)]
with slow, slow.makefile("rb") as file:
    head, _, body = file.read().partition(b"\\r\\n\\r\\n")
answer = [set(others) == {{{1 << 20}}}, len(body)]
"""
    assert who.inside(code, flags=allow("good.test")) == [True, size]


def test_an_unreachable_allowed_server_is_reported(who, world, scratch):
    """Connect to an allowed host on which no server listens. corral must report that it cannot be
    reached, and count one failed connection.
    """
    report = scratch / "report.json"
    code = """
import socket
try:
    with socket.create_connection(("good.test", 80)) as end:
        answer = end.recv(1).decode()
except ConnectionResetError:
    answer = "reset"
"""
    flags = (*allow("good.test"), "--report", str(report))
    assert who.inside(code, flags=flags) == "reset"
    said = json.loads(report.read_text())
    assert [row["kind"] for row in said["denials"]] == ["unreachable"]
    assert said["traffic"][0][1]["failed"] == 1


def test_connections_use_the_hosts_proxy(who, world):
    """Set a proxy in the host's environment. The gateway must use it, and pass on the name that the
    target asked for. The target must not learn the proxy's address or password.
    """
    heads = []

    def proxy(end):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += end.recv(1)
        heads.append(head.decode().split("\r\n"))
        end.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        web(end)

    world.name("proxy.test", OTHER)
    world.serve(proxy, port=3128)
    world.serve(web, port=8080)
    code = """
import urllib.error, urllib.request
def got(url):
    try:
        return urllib.request.urlopen(url).read().decode().split()[0]
    except urllib.error.URLError as error:
        return str(error.reason)
answer = [got("http://good.test:8080/"), "refused" in got("http://11.0.0.2:8081/"),
          "not known" in got("http://proxy.test:3128/"), [name for name in os.environ if "proxy" in name.lower()]]
"""
    expected = ["good.test:8080", True, True, []]
    flags = allow("good.test:8080")
    assert who.inside(code, flags=flags) == expected
    assert (world.arrived, heads) == ([(PUBLIC, 8080)], [])
    world.arrived.clear()
    host = who.environment(HTTPS_PROXY="http://me:secret@proxy.test:3128")
    assert who.inside(code, flags=flags, env=host) == expected
    assert world.arrived == [(OTHER, 3128)]
    [head] = heads
    assert head[0] == "CONNECT good.test:8080 HTTP/1.1"
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in head


@pytest.mark.parametrize(
    "proxy", ["https://proxy.test:1", "socks5://proxy.test", "http://proxy.test:x"]
)
def test_an_unusable_proxy_is_refused_before_the_start(user, proxy):
    """Set a proxy that the gateway cannot use. corral must refuse the run before the target starts.
    Sanity check: without an allowlist the run starts, because it needs no proxy.
    """
    host = user.environment(HTTPS_PROXY=proxy)
    refused = user.run("/bin/echo", "ran", flags=allow("good.test"), env=host)
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"proxy" in refused.stderr
    assert b"Traceback" not in refused.stderr
    assert user.run("/bin/echo", "ran", env=host).stdout == b"ran\n"


def test_dns_queries_over_tcp_are_answered(who):
    """Send DNS queries over TCP. The answer to an allowed name must be its address, and to any
    other name NXDOMAIN (3).
    """
    code = """
import socket, struct
def asked(*labels):
    name = b"".join(bytes((len(label),)) + label for label in labels) + bytes(1)
    query = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + name + struct.pack("!HH", 1, 1)
    with socket.create_connection(("127.0.0.1", 53)) as end, end.makefile("rb") as file:
        end.sendall(struct.pack("!H", len(query)) + query)
        said = file.read(struct.unpack("!H", file.read(2))[0])
    return [said[3] & 15, said[-4:-2].hex()]
answer = [asked(b"good", b"test"), asked(b"bad", b"test")[0]]
"""
    assert who.inside(code, flags=allow("good.test")) == [[0, "c01f"], 3]


def test_connections_beyond_the_gateways_limit_wait(who, world, scratch):
    """Open more connections than the gateway allows at once. The surplus connections must wait
    until others have ended, and the report must say that connections had to wait.
    """
    world.serve(echo, port=7000)
    report = scratch / "report.json"
    code = """
import socket
ends = [socket.create_connection(("good.test", 7000)) for _ in range(600)]
for end in ends:
    end.sendall(b"x")
    end.shutdown(socket.SHUT_WR)
answer = 0
for end in ends:
    answer += len(end.recv(1))
    end.close()
"""
    flags = (*allow("good.test:7000"), "--report", str(report))
    assert who.inside(code, flags=flags) == 600
    assert len(world.arrived) == 600
    denials = json.loads(report.read_text())["denials"]
    assert [row["kind"] for row in denials] == ["limit"]


def test_an_allowed_loopback_address_is_reached_on_its_port_only(who, world):
    for port in (7000, 7001):
        world.serve(echo, port=port, near=True)
    code = """
import socket
def talked(port):
    try:
        with socket.create_connection(("127.0.0.1", port)) as end:
            end.sendall(b"hello")
            end.shutdown(socket.SHUT_WR)
            return end.recv(5).decode()
    except OSError as error:
        return type(error).__name__
answer = [talked(7000), talked(7001)]
"""
    assert who.outside(code) == ["hello", "hello"]
    refused = "ConnectionRefusedError"
    assert who.inside(code, flags=allow("127.0.0.1:7000")) == ["hello", refused]
    assert who.inside(code, flags=allow("127.0.0.1:7001")) == [refused, "hello"]


def test_the_python_api_reads_the_users_config(world, ordinary):
    """Start a target by the Python API. Its supervisor is a fork of the zygote, and must read the
    user's config at each run: a private network is reachable only if the config admits it.
    """
    world.serve(web, port=8080)
    world.name("inner.test", GUARDED["private"])
    code = """
import corral
target = '''
import urllib.request
print(urllib.request.urlopen("http://inner.test:8080/").read().decode().split()[0], flush=True)
'''
os.makedirs(os.environ["XDG_CONFIG_HOME"] + "/corral", 0o700)
policy = {"version": 1, "network": {"allow": ["inner.test:8080"]}}
answer = []
for text in ("", '[network]\\nadmit = ["10.99.0.0/16"]'):
    with open(os.environ["XDG_CONFIG_HOME"] + "/corral/config.toml", "w") as file:
        file.write(text)
    os.chmod(file.name, 0o600)
    box = corral.launch([sys.executable, "-c", target], policy, stdin=-3, stdout=-1, stderr=-3)
    answer.append([box.stdout.read().decode().strip(), box.wait() and len(box.report.denials)])
"""
    who = Inhabitant(ordinary, world)
    with tempfile.TemporaryDirectory(dir=who.home) as folder:
        os.chown(folder, who.uid, who.uid)
        env = who.environment(XDG_CONFIG_HOME=folder)
        code = f"sys.path.insert(0, {str(who.package)!r})\n{code}"
        said = who.outside(code, env=env, host=who.host)
    assert said == [["", 1], ["inner.test:8080", 0]]


def test_the_python_api_has_the_same_gateway(world, ordinary):
    """Launch a sandbox from Python. It must use the gateway as `corral run` does, and report the
    same denials.
    """
    world.serve(web, port=8080)
    code = """
import corral
target = '''
import socket, urllib.request
print(urllib.request.urlopen("http://good.test:8080/").read().decode().split()[0], flush=True)
try:
    socket.getaddrinfo("other.test", 80, type=socket.SOCK_STREAM)
except socket.gaierror:
    pass
'''
policy = {"version": 1, "network": {"allow": ["good.test:8080"]}}
answer = []
for _ in range(2):
    box = corral.launch([sys.executable, "-c", target], policy, stdin=-3, stdout=-1)
    said = box.stdout.read().decode().strip()
    box.wait()
    report = box.report
    answer.append([said, report.denials[0].allow, dict(report.traffic)["good.test"].connections])
"""
    who = Inhabitant(ordinary, world)
    said = who.outside(f"sys.path.insert(0, {str(who.package)!r})\n{code}", host=who.host)
    assert said == [["good.test:8080", "--allow-net other.test", 1]] * 2
