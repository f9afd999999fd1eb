"""Attack the allowlist with names, addresses, ports and packets that it does not allow, and check
the reported denials.

As a sanity check, tests run the same code outside the sandbox. There it gets answers, because in
the network of tests/world.py a server listens at every address that a test tries.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from attempts import PRELUDE, by_tier, has_unix_scope, inside, outside

from flags import entry
from world import GUARDED, NEAR, OTHER, PUBLIC, PUBLIC6, Inhabitant, make_world

TALK = """
import socket
def talked(host, port=80, data=b""):
    # Returns the first bytes that the server sends, or the error.
    try:
        with socket.create_connection((host, int(port)), timeout=20) as end:
            end.sendall(data)
            return end.recv(64).decode()
    except socket.gaierror as error:
        return {socket.EAI_NONAME: "no such name", socket.EAI_AGAIN: "no answer"}[error.errno]
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
def wire(*labels):
    return b"".join(bytes((len(label),)) + label for label in labels) + bytes(1)
def asked(name, kind=1, server="127.0.0.1"):
    # Returns the code and the address of one DNS answer. `name` is already encoded.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.settimeout(20)
        end.connect((server, 53))
        end.send(struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + name + struct.pack("!HH", kind, 1))
        said = end.recv(4096)
    found = said[-4:] if struct.unpack_from("!H", said, 6)[0] else b""
    return [said[3] & 15, ".".join(map(str, found))]
"""
ASK_ALL = TALK + "answer = {item: talked(*item.split('|')) for item in sys.argv[1:]}"
NOERROR, FORMERR, SERVFAIL, NXDOMAIN = 0, 1, 2, 3

pytestmark = pytest.mark.parametrize("tier", ["walled", "bare", "replaced"], indirect=True)


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory):
    yield from make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(whole_world):
    """Answer on ports 80, 443 and 8080 of every address, and on port 80 of this host. Each test
    defines its own DNS names.
    """
    whole_world.forget()
    for port in (80, 443, 8080):
        whole_world.serve(answer, port=port)
    whole_world.serve(answer, port=80, near=True)
    yield whole_world
    whole_world.stop()


def answer(end):
    end.sendall(b"welcome")
    end.recv(4096)


@pytest.fixture
def who(user, world):
    return Inhabitant(user, world)


def allow(*entries):
    return tuple(word for entry in entries for word in ("--allow-net", entry))


def run(who, scratch, code, *arguments, flags=(), **options):
    """Run code inside, and return its answer and the denials in the report. Check that the audit
    file is complete and lists the same denials.
    """
    report, audit = scratch / "report.json", scratch / "audit"
    audit.unlink(missing_ok=True)
    files = ("--report", str(report), "--audit", str(audit))
    said = inside(who, code, *arguments, flags=(*flags, *files), **options)
    denials = json.loads(report.read_text())["denials"]
    assert audited(audit) == {(row["kind"], row["destination"]): row["count"] for row in denials}
    verified = who.corral("audit", "verify", str(audit))
    assert verified.returncode == 0, verified
    return said, denials


def audited(file):
    """Return the last count of each denial in a complete audit file."""
    *rows, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert end["kind"] == "end"
    return {(row["kind"], row["destination"]): row["count"] for row in rows}


def refused(who):
    """Return the error of a refused connection. With namespaces the gateway resets the connection;
    without them connect itself fails.
    """
    return by_tier(who, "ECONNRESET", "ECONNREFUSED")


def by_destination(denials):
    return {row["destination"]: row for row in denials}


def test_an_empty_list_allows_nothing(who, world, scratch):
    names = [world.name("good.test", PUBLIC), PUBLIC, PUBLIC6, "127.0.0.1"]
    policy = scratch / "corral.toml"
    policy.write_text("version = 1\n[network]\nallow = []\n")
    policy.chmod(0o644)
    assert outside(who, ASK_ALL, *names) == dict.fromkeys(names, "welcome")
    world.arrived.clear()
    held = inside(who, ASK_ALL, *names, flags=("--policy", str(policy)))
    assert held.pop("good.test") in by_tier(who, {"no answer", "no such name"}, {"EPERM"})
    assert held.pop("127.0.0.1") == by_tier(who, "ECONNREFUSED", "EPERM")
    assert set(held.values()) == {by_tier(who, "ENETUNREACH", "EPERM")}
    assert not world.arrived


def test_only_allowed_names_are_reached(who, world, scratch):
    good, other = world.name("good.test", PUBLIC), world.name("other.test", OTHER)
    tried = [good, other, PUBLIC, OTHER, PUBLIC6]
    assert outside(who, ASK_ALL, *tried) == dict.fromkeys(tried, "welcome")
    world.arrived.clear()
    held, denials = run(who, scratch, ASK_ALL, *tried, flags=allow(good))
    others = dict.fromkeys((PUBLIC, OTHER, PUBLIC6), refused(who))
    assert held == {good: "welcome", other: "no such name", **others}
    assert world.arrived == [(PUBLIC, 80)]
    # Sanity check: with the rules that the report suggests, the target reaches the denied
    # destinations. Leave out the rules for port 443: corral suggests them for addresses in the
    # target's arguments that have no port.
    rules = [rule for row in denials if not (rule := entry(row["allow"])).endswith(":443")]
    assert rules == [other, f"{PUBLIC}:80", f"{OTHER}:80", f"[{PUBLIC6}]:80"]
    held, denials = run(who, scratch, ASK_ALL, *tried, flags=allow(good, *rules))
    assert held == dict.fromkeys(tried, "welcome")
    assert {row["destination"].rpartition(":")[2] for row in denials} <= {"443"}


def test_an_allowlist_in_a_policy_file_works_like_the_flags(who, world, scratch):
    policy = scratch / "corral.toml"
    policy.write_text('version = 1\n[network]\nallow = ["good.test:80"]\n')
    policy.chmod(0o644)
    good, other = world.name("good.test", PUBLIC), world.name("other.test", OTHER)
    held, denials = run(who, scratch, ASK_ALL, good, other, flags=("--policy", str(policy)))
    assert held == {good: "welcome", other: "no such name"}
    assert [entry(row["allow"]) for row in denials] == [other]


def test_only_spellings_of_an_allowed_name_resolve(who, world):
    """Check that an allowed name also resolves in capitals or with a final dot. Names that only
    look similar must not resolve.
    """
    same = ["good.test", "GOOD.Test", "good.test.", "www.example.com", "a.b.example.com"]
    others = ["evilexample.com", "example.com", "example.com.evil.test", "good.test.evil.test"]
    others += ["xgood.test", "good.tes", "g00d.test", "xn--god-sna.test"]
    for name in {item.lower() for item in same + others}:
        world.name(name, PUBLIC)
    assert outside(who, ASK_ALL, *same, *others) == dict.fromkeys(same + others, "welcome")
    held = inside(who, ASK_ALL, *same, *others, flags=allow("good.test", "*.example.com"))
    welcome = dict.fromkeys(same, "welcome")
    assert held == {**welcome, **dict.fromkeys(others, "no such name")}


def test_hand_made_queries_do_not_pass_for_an_allowed_name(who, world):
    """Send queries that a careless resolver would mistake for queries about good.test."""
    code = """
long = wire(*[b"a"] * 256)
answer = {
    "control": asked(wire(b"good", b"test")),
    "upper case": asked(wire(b"GOOD", b"TEST")),
    "under": asked(wire(b"www", b"example", b"com")),
    "NUL": asked(wire(b"good\\0", b"test")),
    "NUL after": asked(wire(b"good", b"test\\0", b"evil", b"test")),
    "NUL in a wildcard": asked(wire(b"evil", b"test\\0", b"example", b"com")),
    "one label": asked(wire(b"good.test")),
    "dot in a wildcard": asked(wire(b"evil.test", b"example", b"com")),
    "space": asked(wire(b"good", b"test ")),
    "slash": asked(wire(b"a/b", b"example", b"com")),
    "unicode": asked(wire("go\\u00f6d".encode(), b"test")),
    "wide": asked(wire("\\uff47ood".encode(), b"test")),
    "wide dot": asked(wire("good\\u3002test".encode())),
    "decimal": asked(wire(b"184549378")),
    "octal": asked(wire(b"013", b"0", b"0", b"2")),
    "octal in a wildcard": asked(wire(b"0x7f")),
    "255 bytes": asked(wire(*[b"a"] * 121, b"example", b"com")),
    "256 labels": asked(long),
    "long label": asked(bytes((64,)) + b"a" * 64 + wire(b"example", b"com")),
    "pointer": asked(b"\\xc0\\x0c"),
    "AAAA": asked(wire(b"good", b"test"), 28),
    "TXT": asked(wire(b"exfiltrated", b"example", b"com"), 16),
}
"""
    world.name("good.test", PUBLIC)
    held = inside(who, TALK + code, flags=allow("good.test", "*.example.com"))
    named = {name: held.pop(name) for name in ("control", "upper case", "under", "255 bytes")}
    assert {code for code, _ in named.values()} == {NOERROR}
    assert named["control"] == named["upper case"]
    assert len({address for _, address in named.values()}) == 3
    assert all(address.startswith("192.31.196.") for _, address in named.values())
    empty = {name: held.pop(name) for name in ("AAAA", "TXT")}
    assert empty == {name: [NOERROR, ""] for name in empty}
    broken = {name: held.pop(name) for name in ("256 labels", "long label", "pointer")}
    assert broken == {name: [FORMERR, ""] for name in broken}
    assert held == {name: [NXDOMAIN, ""] for name in held}


@pytest.mark.parametrize(
    "entry",
    ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "good.test.", "good..test", "*", "*.com",
     "*example.com", "a.*.com", "g\u00f6od.test", "good.test:0", "good.test:65536", "http://good.test",
     "user@good.test", "good test", "[::1", "10.0.0.1/8", "a" * 64 + ".test", "a." * 127 + "test"],
)  # fmt: skip
def test_ambiguous_entries_are_refused(ordinary, entry):
    refused = ordinary.run("/bin/true", flags=allow(entry))
    assert refused.returncode == 2
    assert refused.stderr.startswith(b"corral: command line: --allow-net: ")
    assert b"Traceback" not in refused.stderr


def test_an_allowed_name_does_not_open_guarded_addresses(who, world, scratch):
    """Let allowed names resolve to addresses of this host and of private networks. An attacker who
    controls the names' DNS zone could do this. These addresses must be denied.
    """
    targets = {
        **GUARDED,
        "loopback": "127.0.0.1",
        "other loopback": "127.9.9.9",
        "loopback6": "::1",
    }
    targets |= {"own": NEAR[0], "own6": NEAR[1], "mapped": f"::ffff:{GUARDED['private']}"}
    names = {
        world.name(f"{kind.replace(' ', '-')}.example.com", address): address
        for kind, address in targets.items()
    }
    assert outside(who, ASK_ALL, *names) == dict.fromkeys(names, "welcome")
    world.arrived.clear()
    flags = allow("*.example.com", "good.test")
    world.name("good.test", PUBLIC)
    held, denials = run(who, scratch, ASK_ALL, *names, "good.test", flags=flags)
    assert held == {**dict.fromkeys(names, "ECONNRESET"), "good.test": "welcome"}
    assert world.arrived == [(PUBLIC, 80)]
    assert {row["kind"] for row in denials} == {"guard"}
    assert len(denials) == len(names)
    assert all(row["why"] for row in denials)
    # Sanity check: with the rules that the denials suggest, the target reaches the names. An
    # address that contains another address, as with NAT64, needs a rule for each of the two.
    rules = [entry(row["allow"]) for row in denials]
    held, denials = run(who, scratch, ASK_ALL, *names, flags=(*flags, *allow(*rules)))
    assert held == dict.fromkeys(names, "welcome")
    assert not denials


@pytest.fixture
def configured(who):
    """Return a function that writes the user's config.toml, which is removed after the test."""
    folder = who.home / ".config" / "corral"
    made = [place for place in (folder.parent, folder) if not place.exists()]

    def write(text):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(text)
        for place in (folder.parent, folder, folder / "config.toml"):
            os.chown(place, who.uid, who.uid)
            place.chmod(0o700 if place.is_dir() else 0o600)

    yield write
    (folder / "config.toml").unlink(missing_ok=True)
    for place in reversed(made):
        if place.exists():
            place.rmdir()


def test_ranges_that_the_users_config_admits_are_reached(who, world, scratch, configured):
    """Check that allowed names may resolve to addresses of the private networks that the user's
    config admits (`network.admit`). Connections to an address instead of a name, and to this host,
    must stay denied.
    """
    targets = {**GUARDED, "loopback": "127.0.0.1", "own": NEAR[0], "own6": NEAR[1]}
    names = {
        world.name(f"{kind.replace(' ', '-')}.example.com", address): kind
        for kind, address in targets.items()
    }
    literal = GUARDED["private"]
    tried = [*names, literal, "other.test"]
    world.name("other.test", literal)
    assert outside(who, ASK_ALL, *tried) == dict.fromkeys(tried, "welcome")
    flags = allow("*.example.com")
    held, _ = run(who, scratch, ASK_ALL, *tried, flags=flags)
    assert "welcome" not in held.values()
    configured('[network]\nadmit = ["10.99.0.0/16", "100.64.0.0/10", "fd00:99::/32"]\n')
    held, denials = run(who, scratch, ASK_ALL, *tried, flags=flags)
    reached = {names[name] for name, said in held.items() if said == "welcome"}
    # The NAT64 and 6to4 addresses contain the address `private`, so they are admitted with it.
    assert reached == {"private", "shared", "private6", "nat64", "6to4"}
    assert (held[literal], held["other.test"]) == (refused(who), "no such name")
    kinds = {row["destination"]: row["kind"] for row in denials}
    assert (kinds[f"{literal}:80"], kinds["other.test"]) == ("address", "name")
    [network] = [
        row for row in json.loads((scratch / "report.json").read_text())["controls"]
        if row["control"] == "network"
    ]  # fmt: skip
    assert network["asked"].endswith(
        "*.example.com, admit 10.99.0.0/16, admit 100.64.0.0/10, admit fd00:99::/32"
    )
    explained = who.corral("explain", *flags, "--", "/bin/true").stdout.decode()
    assert "admit 10.99.0.0/16" in explained
    assert "admit" not in who.corral("explain", "--", "/bin/true").stdout.decode()


def test_this_host_is_admitted_only_by_its_exact_address_and_with_a_warning(
    who, world, scratch, configured
):
    names = [world.name("first.test", "127.0.0.1"), world.name("second.test", "127.9.9.9")]
    names.append(world.name("own.test", NEAR[0]))
    assert outside(who, ASK_ALL, *names) == dict.fromkeys(names, "welcome")
    configured('[network]\nadmit = ["127.0.0.0/8"]\n')
    refused = who.run("/bin/echo", "ran", flags=allow(*names))
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"network.admit[0]" in refused.stderr
    configured(f'[network]\nadmit = ["127.0.0.1", "{NEAR[0]}"]\n')
    held, _ = run(who, scratch, ASK_ALL, *names, flags=allow(*names))
    assert held == dict(zip(names, ("welcome", "ECONNRESET", "welcome"), strict=True))
    warned = who.run("/bin/true", flags=allow(*names)).stderr
    assert b"config.toml admits 127.0.0.1 (loopback)" in warned
    assert b"admits" not in who.run("/bin/true").stderr


def test_a_policy_cannot_admit_ranges(who, scratch):
    """Check that a policy with the key `network.admit` is refused, because only the user's config
    may have this key.
    """
    text = 'version = 1\n[network]\nallow = ["good.test"]\nadmit = ["10.0.0.0/8"]\n'
    policy = scratch / "corral.toml"
    policy.write_text(text)
    policy.chmod(0o644)
    os.chown(policy, who.owner, who.owner)
    for words in (("--policy", str(policy), "--", "/bin/true"), (str(scratch),)):
        refused = who.corral("run", *words)
        assert refused.returncode == 125
        assert b"network.admit" in refused.stderr


def test_the_unspecified_address_is_never_dialled(who, world, scratch):
    """Check that no rule can allow 0.0.0.0, because the kernel treats this address as loopback."""
    names = [world.name("zero.test", "0.0.0.0"), world.name("zero6.test", "::")]
    assert outside(who, ASK_ALL, *names) == dict.fromkeys(names, "welcome")
    flags = allow(*names, "0.0.0.0:80", "[::]:80")
    held, denials = run(who, scratch, ASK_ALL, *names, "0.0.0.0", "::", flags=flags)
    assert set(held.values()) == {"ECONNRESET"}
    assert {entry(row["allow"]) for row in denials if row["why"] == "unspecified"} == {""}


def test_a_name_is_checked_again_for_each_connection(who, world, scratch):
    """Check that the gateway looks up the name again for each connection. It must connect only to
    allowed addresses.
    """
    code = """
answer = [talked("good.test"), talked("good.test")]
print("turn", flush=True)
sys.stdin.readline()
answer += [talked("good.test")]
print("turn", flush=True)
sys.stdin.readline()
answer += [talked("good.test")]
"""
    world.name("good.test", PUBLIC)
    report = scratch / "report.json"
    source = f"import json, os, sys\n{PRELUDE}{TALK}{code}\nprint(json.dumps(answer))"
    flags = (*allow("good.test"), "--report", str(report))
    process = who.popen(
        who.corral_argv("run", *flags, "--", who.python, "-c", source),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"turn\n"
        world.name("good.test", "127.0.0.1")
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"turn\n"
        world.name("good.test", "127.0.0.1", OTHER, GUARDED["metadata"])
        out, err = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out) == ["welcome", "welcome", "ECONNRESET", "welcome"]
    assert world.arrived == [(PUBLIC, 80), (PUBLIC, 80), (OTHER, 80)]
    denials = json.loads(report.read_text())["denials"]
    assert {row["destination"] for row in denials} == {
        "good.test (127.0.0.1:80)",
        f"good.test ({GUARDED['metadata']}:80)",
    }


def test_other_spellings_of_an_address_are_denied_as_addresses(who, world, scratch):
    """Connect to numbers that the C library reads as an address, such as 0xb000002. They must be
    denied and reported as that address.
    """
    spellings = ["184549378", "013.0.0.2", "0xb000002", "11.2", "0xb.0.2", f"::ffff:{PUBLIC}"]
    assert outside(who, ASK_ALL, *spellings) == dict.fromkeys(spellings, "welcome")
    world.arrived.clear()
    flags = allow(world.name("good.test", PUBLIC))
    held, denials = run(who, scratch, ASK_ALL, *spellings, flags=flags)
    assert held == dict.fromkeys(spellings, refused(who))
    assert [(row["destination"], row["count"]) for row in denials] == [
        (f"{PUBLIC}:80", len(spellings))
    ]
    assert not world.arrived
    held, _ = run(who, scratch, ASK_ALL, *spellings, flags=allow(f"{PUBLIC}:80"))
    assert held == dict.fromkeys(spellings, "welcome")


def test_an_allowed_name_is_denied_on_another_port(who, world, scratch):
    good, other = world.name("good.test", PUBLIC), world.name("other.test", OTHER)
    tried = [f"{good}|80", f"{good}|8080", f"{other}|8080", f"{other}|80"]
    assert outside(who, ASK_ALL, *tried) == dict.fromkeys(tried, "welcome")
    world.arrived.clear()
    flags = allow(f"{good}:80", f"{other}:8080")
    held, denials = run(who, scratch, ASK_ALL, *tried, f"{good}|81", flags=flags)
    welcome = dict.fromkeys((tried[0], tried[2]), "welcome")
    reset = dict.fromkeys((tried[1], tried[3]), refused(who))
    assert held == {**welcome, **reset, f"{good}|81": "ECONNREFUSED"}  # no server listens on 81
    assert {row["kind"] for row in denials} == {"port"}
    assert {entry(row["allow"]) for row in denials} == {f"{good}:8080", f"{other}:80", f"{good}:81"}
    assert world.arrived == [(PUBLIC, 80), (OTHER, 8080)]


def test_addresses_that_no_lookup_returned_are_denied(who, world, scratch):
    code = """
first = asked(wire(b"good", b"test"))[1]
answer = [talked(first), talked("192.31.196.77"), talked("192.175.48.1"), talked("198.18.0.0")]
answer += [talked("192.31.196.77", 81), talked(first, 81)]
"""
    world.name("good.test", PUBLIC)
    flags = allow("good.test", "192.31.196.0/24", "192.175.48.0/24", "198.18.0.0/15")
    held, denials = run(who, scratch, TALK + code, flags=flags)
    assert held == ["welcome", *[refused(who)] * 3, *["ECONNREFUSED"] * 2]
    # The gateway answers a lookup with a synthetic address, which stands for the name. The report
    # suggests only a rule for the name, because no rule can allow a synthetic address.
    rules = sorted((row["kind"], entry(row["allow"])) for row in denials)
    never = [("address", "")] * 3 + [by_tier(who, ("port", ""), ("address", ""))]
    assert rules == [*never, ("port", "good.test:81")]
    assert len(world.arrived) == 1


def test_a_flood_of_lookups_does_not_stop_allowed_names(who, world, scratch):
    """Look up more names than the gateway has synthetic addresses. The gateway answers each lookup
    with such an address, which stands for the name. Only the last names may get no address, and the
    number of recorded denials must be limited.
    """
    code = """
first = asked(wire(b"good", b"test"))
codes = [asked(wire(b"n%d" % number, b"example", b"com"))[0] for number in range(4200)]
denied = {asked(wire(b"n%d" % number, b"evil", b"test"))[0] for number in range(600)}
answer = [codes.index(2), set(codes[:4095]) == {0}, set(codes[4095:]) == {2}, sorted(denied),
          asked(wire(b"good", b"test")) == first, talked("good.test")]
"""
    world.name("good.test", PUBLIC)
    flags = allow("good.test", "*.example.com")
    held, denials = run(who, scratch, TALK + code, flags=flags, timeout=110)
    assert held == [4095, True, True, [NXDOMAIN], True, "welcome"]
    assert {row["kind"] for row in denials} == {"limit", "name"}
    assert len(denials) == 256
    end = json.loads((scratch / "audit").read_text().splitlines()[-1])
    assert end["lost"] == 600 - 255


def test_no_datagram_reaches_a_host_even_if_its_name_and_port_are_allowed(who, world, scratch):
    """Send datagrams, such as QUIC packets and DNS queries, to allowed and to other hosts. None may
    arrive. Only the gateway answers DNS queries.
    """
    ends = [world.far.listen(port, kind=2) for port in (53, 443, 9999)]
    code = """
def sent(host, port):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((host, port))
        end.send(b"\\xc0\\0\\0\\0\\1" + bytes(1195))  # a long header of QUIC
        end.settimeout(60)
        if "wait" in sys.argv:
            end.recv(1)
answer = [tried(sent, host, port) for host in sys.argv[1:3] for port in (53, 443, 9999)]
if "wait" in sys.argv:
    answer += [tried(sent, "good.test", 443), tried(sent, "8.8.8.8", 53), tried(sent, "127.0.0.1", 443)]
    answer += [asked(wire(b"good", b"test"))[0], tried(asked, wire(b"good", b"test"), 1, "8.8.8.8")]
"""
    world.name("good.test", PUBLIC)
    assert outside(who, TALK + code, PUBLIC, PUBLIC6) == ["done"] * 6
    assert {len(end.recv(2048)) for end in ends for _ in range(2)} == {1200}
    flags = allow("good.test", f"{PUBLIC}:443", f"[{PUBLIC6}]:443")
    held, denials = run(who, scratch, TALK + code, PUBLIC, PUBLIC6, "wait", flags=flags)
    error = by_tier(who, "ECONNREFUSED", "ECONNRESET")
    assert held == [error] * 9 + [NOERROR, error]
    places = {f"{host}:{port}" for host in (PUBLIC, f"[{PUBLIC6}]") for port in (53, 443, 9999)}
    assert {row["destination"] for row in denials} == {*places, "good.test:443", "8.8.8.8:53"}
    assert {(row["kind"], entry(row["allow"])) for row in denials} == {("udp", "")}
    for end in ends:
        end.setblocking(False)
        with pytest.raises(BlockingIOError):
            end.recv(1)
        end.close()


def test_ipv6_addresses_are_matched_like_others(who, world, scratch):
    tried = [PUBLIC6, GUARDED["private6"], "2a00:99::3"]
    held, denials = run(who, scratch, ASK_ALL, *tried, flags=allow(f"[{PUBLIC6}]:80"))
    assert held == {PUBLIC6: "welcome", **dict.fromkeys(tried[1:], refused(who))}
    assert [entry(row["allow"]) for row in denials] == [f"[{tried[1]}]:80", "[2a00:99::3]:80"]
    assert world.arrived == [(PUBLIC6, 80)]


def test_an_allowed_network_does_not_open_guarded_addresses(who, world, scratch):
    """Check that a rule for a private network allows its addresses. A rule for the whole internet
    must not allow guarded addresses.
    """
    tried = [PUBLIC, OTHER, GUARDED["private"], GUARDED["metadata"], "127.0.0.1"]
    held, denials = run(who, scratch, ASK_ALL, *tried, flags=allow("0.0.0.0/0", "10.99.0.0/24"))
    welcome = dict.fromkeys(tried[:3], "welcome")
    assert held == {**welcome, **dict.fromkeys(tried[3:], "ECONNRESET")}
    assert {row["kind"] for row in denials} == {"guard"}


def test_an_allowlist_enables_no_other_socket_family(who):
    """Check that the target cannot open packet, raw or ICMP sockets, take the loopback interface
    down, or remove a route.
    """
    code = """
import fcntl, socket
def opened(*what):
    socket.socket(*what).close()
def down():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        fcntl.ioctl(end, 0x8914, struct.pack("16sH22x", b"lo", 0))
def routed():
    link = socket.socket(16, 3, 0)
    route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 3, 254, 2, 0) + struct.pack("=HHI", 8, 4, 1)
    link.send(struct.pack("=IHHII", 16 + len(route), 25, 0x5, 1, 0) + route)
    code = struct.unpack_from("=i", link.recv(4096), 16)[0]
    if code:
        raise OSError(-code, "")
families = [tried(opened, *what) for what in ((17, 3, 0), (2, 3, 1), (2, 3, 6), (10, 3, 58), (2, 2, 1), (2, 1, 0))]
answer = families + ([] if "outside" in sys.argv else [tried(down), tried(routed)])
"""
    held = inside(who, code, flags=allow("good.test"))
    assert held[:6] == ["EAFNOSUPPORT", *["EPROTONOSUPPORT"] * 4, "done"]
    assert held[6:] == ["EPERM", "EPERM"]
    if who.tier == "walled":
        assert inside(who, code) == held
    if who.uid == 0:
        assert outside(who, code, "outside")[:3] == ["done"] * 3


def test_the_target_cannot_bind_the_gateways_ports(who, world):
    """Try to bind the gateway's ports. Sanity check: with namespaces, the target can bind another
    port.
    """
    code = """
def bound(address, port, *options):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as end:
        for option in options:
            end.setsockopt(socket.SOL_SOCKET, option, 1)
        end.bind((address, port))
        end.listen()
every = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
answer = [tried(bound, address, 8080, *options) for address in ("0.0.0.0", "127.0.0.1", "192.31.196.1", "::")
          for options in ((), every)]
answer += [tried(bound, "127.0.0.1", 53), tried(bound, "127.0.0.1", 8081), talked("good.test", 8080)]
"""
    world.name("good.test", PUBLIC)
    held = inside(who, TALK + code, flags=allow("good.test:8080"))
    if who.tier == "walled":
        assert held == ["EADDRINUSE"] * 8 + ["EACCES", "done", "welcome"]
        return
    # Without namespaces the target shares the host's ports, and cannot bind any of them.
    assert held[1:8:2] == ["ENOPROTOOPT"] * 4
    assert held[:8:2] == ["EACCES", "EACCES", "EADDRNOTAVAIL", "EACCES"]
    assert held[8:] == ["EACCES", "EACCES", "welcome"]


def test_the_target_cannot_reach_the_supervisor(who, world, scratch):
    """Check that the target inherits none of the supervisor's descriptors, and cannot connect to
    the host's loopback.
    """
    code = """
answer = {
    "fds": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in (0, 1, 2)),
    "more": [fd for fd in range(3, 1024) if tried(os.fstat, fd) == "done"],
    "gateway": [talked("127.0.0.1"), talked("::1"), talked("127.0.0.1", 53, b"GET / HTTP/1.1\\r\\n\\r\\n")],
    "unix": tried(socket.socket, socket.AF_UNIX),
}
if "walled" in sys.argv:
    answer["processes"] = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
"""
    assert outside(who, TALK + "answer = [talked('127.0.0.1'), talked('::1')]") == ["welcome"] * 2
    world.arrived.clear()
    held, denials = run(who, scratch, TALK + code, who.tier, flags=allow("good.test"))
    assert held.pop("fds") == ["pipe"] * 3
    assert held.pop("processes", []) == []
    # With Landlock's unix socket scope the target can make a socket, but cannot connect it to the
    # host's sockets.
    unix = "done" if has_unix_scope(who) else "EPERM"
    assert held == {"more": [], "gateway": [refused(who), refused(who), ""], "unix": unix}
    assert [entry(row["allow"]) for row in denials] == ["127.0.0.1:80", "[::1]:80"]
    assert not world.arrived


HELLO = """
import ssl
def hello(name):
    context = ssl._create_unverified_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
"""


def test_tls_to_another_name_is_ended(who, world, scratch):
    """Check that the gateway ends a connection to port 443 if its TLS hello names a host that is
    not allowed.
    """
    code = """
spoken = hello("evil.test")
answer = {
    "good": talked("good.test", 443, hello("good.test")),
    "upper case": talked("good.test", 443, hello("GOOD.test")),
    "another allowed": talked("good.test", 443, hello("other.test")),
    "none": talked("good.test", 443, hello(None)),
    "evil": talked("good.test", 443, spoken),
    "under evil": talked("good.test", 443, hello("good.test.evil.test")),
    "split": talked("good.test", 443, b"".join(b"\\x16\\3\\1\\0\\1" + bytes((byte,)) for byte in spoken[5:])),
}
"""
    names = [world.name("good.test", PUBLIC), world.name("other.test", OTHER)]
    assert set(outside(who, TALK + HELLO + code).values()) == {"welcome"}
    world.arrived.clear()
    held, denials = run(who, scratch, TALK + HELLO + code, flags=allow(*names))
    refused = {name: held.pop(name) for name in ("evil", "under evil", "split")}
    assert refused == dict.fromkeys(refused, "ECONNRESET")
    assert held == dict.fromkeys(held, "welcome")
    assert len(world.arrived) == 4
    assert {(row["kind"], entry(row["allow"]), row["count"]) for row in denials} == {
        ("sni", "evil.test:443", 2),
        ("sni", "good.test.evil.test:443", 1),
    }


def test_child_processes_have_the_same_allowlist(who, world, scratch):
    good, other = world.name("good.test", PUBLIC), world.name("other.test", OTHER)
    code = """
import subprocess
source = sys.argv[1]
done = subprocess.run([sys.executable, "-c", source, *sys.argv[2:]], capture_output=True, check=True)
answer = json.loads(done.stdout)
"""
    source = f"import json, os, sys\n{PRELUDE}{ASK_ALL}\nprint(json.dumps(answer))"
    flags = (*allow(good), "--allow-subprocess")
    held, denials = run(who, scratch, code, source, good, other, flags=flags)
    assert held == {good: "welcome", other: "no such name"}
    assert [entry(row["allow"]) for row in denials] == [other]


def test_denials_are_shown_with_the_rule_that_would_allow_them(who, world, scratch):
    good, inner = world.name("good.test", PUBLIC), world.name("inner.test", GUARDED["private"])
    code = TALK + HELLO + """
answer = [talked("bad.test"), talked("good.test", 8080), talked("11.0.0.3"), talked("inner.test"),
          talked("198.18.3.3"), talked("good.test", 443, hello("evil.test")), talked("good.test")]
"""  # fmt: skip
    flags = allow(good, inner, "unused.test:8080")
    held, denials = run(who, scratch, code, flags=flags)
    expected = [refused(who), refused(who), "ECONNRESET", refused(who), "ECONNRESET"]
    assert held == ["no such name", *expected, "welcome"]
    assert {row["kind"]: entry(row["allow"]) for row in denials if row["allow"]} == {
        "name": "bad.test",
        "port": "good.test:8080",
        "address": "11.0.0.3:80",
        "guard": f"{GUARDED['private']}:80",
        "sni": "evil.test:443",
    }
    assert [row["destination"] for row in denials if not row["allow"]] == ["198.18.3.3:80"]


def test_explain_names_the_limits_of_an_allowlist(ordinary):
    shown = ordinary.corral("explain", *allow("*.example.com"), "--", "/bin/true")
    assert shown.returncode == 0
    assert b"domain fronting" in shown.stdout
    assert b"share an allowed address" in shown.stdout
    none = ordinary.corral("explain", "--", "/bin/true")
    assert b"domain fronting" not in none.stdout
