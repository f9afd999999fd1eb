"""Test `why`, `grant` and the home directory that a wrapped server keeps between runs. The tests
change real client files, start real servers, and look at what these were denied.
"""

import json
import os
import pty
import shlex
from subprocess import DEVNULL, PIPE, STDOUT

import pytest
from test_wrap import at, entries

from corral.cli import entry_flags
from corral.errors import PolicyError
from corral.policy.pins import keep_pins
from corral.policy.server_identity import identify_command

SERVER = """\
import os, socket, sys
for name in ("api.x.com", "hunter2.y.com"):
    try:
        socket.getaddrinfo(name, 443)
    except OSError as error:
        print("lookup", error.errno)
home = os.path.expanduser("~")
open(home + "/memory", "a").write("x")
print("memory", len(open(home + "/memory").read()))
"""


@pytest.fixture
def desk(ordinary):
    yield from at(ordinary)


def configure(desk, *clients):
    """Write one server into the settings of each client, and wrap it there. Return the path of the
    first client's settings.
    """
    desk.server = desk.put("server.py", SERVER)
    entry = {"command": str(desk.user.python), "args": [str(desk.server)]}
    listed = {"type": "local", "command": [entry["command"], *entry["args"]]}
    files = {
        "cursor": (".cursor/mcp.json", {"mcpServers": {"notes": entry}, "other": [1, 2]}),
        "opencode": (".config/opencode/opencode.json", {"mcp": {"notes": listed}}),
    }
    paths = [desk.put(files[one][0], json.dumps(files[one][1], indent=2) + "\n") for one in clients]
    for client in clients:
        desk.does("wrap", client, "--allow-net", "example.com", "--corral", str(desk.corral_path))
    return paths[0]


def run(desk, path, name="notes"):
    entry = entries(path)[name]
    command = entry["command"] if isinstance(entry["command"], list) else [entry["command"]]
    argv = [*command, *entry.get("args", [])]
    process = desk.user.popen(
        argv, env=desk.environment(), cwd=desk.home, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    return process.communicate()[0].decode()


def kept_files(desk):
    return sorted((desk.home / ".local/state/corral/denials").glob("*/*.jsonl"))


def test_why_shows_a_denied_host_name_of_an_earlier_run_and_grant_allows_it(desk):
    path = configure(desk, "cursor")
    before = path.read_text()
    assert "does not find, for 2 hours: corral wrap --learn 2h cursor notes\n" in desk.does(
        "why", "notes"
    )
    assert "lookup" in run(desk, path)
    [file] = kept_files(desk)
    assert file.stat().st_mode & 0o777 == 0o600
    shown = desk.does("why", "notes")
    assert "--allow-net api.x.com" in shown
    # `why` suggests `wrap --learn`, because a normal run does not record files that it does not
    # find.
    assert "does not find, for 2 hours: corral wrap --learn 2h cursor notes\n" in shown
    assert "recent denials: 2" in desk.does("status", "cursor")
    [row] = json.loads(desk.does("why", "--json", "notes"))
    assert {one["destination"] for one in row["denials"]} == {"api.x.com", "hunter2.y.com"}
    assert row["names"] == ["cursor:notes"]

    shown = desk.does("grant", "notes", "--allow-net", "api.x.com", "--read", "private.txt")
    added = [line for line in shown.splitlines() if line.startswith("+ ")]
    assert [line.strip("+ ") for line in added][1] == '"api.x.com",'
    words = entries(path)["notes"]["args"]
    assert words[words.index("--allow-net") :][:2] == ["--allow-net", "example.com"]
    assert ["--read", str(desk.private)] == words[words.index("--read") :][:2]
    assert "granted since" in desk.does("why", "notes")
    assert "lookup" in run(desk, path)  # the server now also looks up the other, ungranted name
    [row] = json.loads(desk.does("why", "--json", "notes"))
    assert row["runs"] == 2

    desk.does("grant", "notes", "--remove", "--allow-net", "api.x.com", "--read", "private.txt")
    assert path.read_text() == before


def test_why_and_grant_know_that_a_granted_directory_allows_its_files(desk):
    """Let a run with `--learn` record a file that it does not find, and grant the file's directory,
    as the documentation suggests. `why` and `grant` must know that this grant allows the file.
    """
    path = configure(desk, "cursor")
    note = desk.put("notes/todo.txt", "milk")
    source = f"import sys\ntry: sys.exit(len(open({str(note)!r}).read()))\nexcept OSError: pass\n"
    desk.server.write_text(source)
    desk.does("wrap", "--learn", "1h", "--corral", str(desk.corral_path), "cursor", "notes")
    run(desk, path)
    assert f"--read {note}" in desk.does("why", "notes")
    assert "recent denials: 1" in desk.does("status", "cursor")
    desk.does("grant", "notes", "--read", str(note.parent))
    assert "(granted since)" in desk.does("why", "notes")
    assert "recent denials" not in desk.does("status", "cursor")
    assert b"no denial is recorded for notes" in desk.corral("grant", "notes").stderr
    run(desk, path)
    assert f"--read {note}" not in desk.does("why", "notes")


def test_why_says_that_corral_did_not_start_a_server_and_why(desk):
    entry = {"command": "no-such-server", "args": ["--token=hunter2secret"]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"gone": entry}}))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    shown = desk.does("why", "gone")
    assert "no denial and no failed run is recorded; other runs are not recorded\n" in shown
    assert "'no-such-server' was not found on PATH" in run(desk, path, "gone")
    shown = desk.does("why", "gone")
    assert "; corral did not start it: 'no-such-server' was not found on PATH\n" in shown
    assert "it had no denials" not in shown
    assert not any("hunter2secret" in file.read_text() for file in kept_files(desk))
    found = desk.put("bin/no-such-server", "#!/bin/sh\nexit 0\n")
    found.chmod(0o755)
    path.write_text(path.read_text().replace('"no-such-server"', json.dumps(str(found))))
    assert "not found" not in run(desk, path, "gone")  # sanity check
    assert "did not start" not in desk.does("why", "gone")
    command = (str(desk.put("bin/fails", "#!/bin/sh\nexit 3\n", mode=0o755)),)
    desk.corral("run", "--", *command)
    # Sanity check: a server that starts and then fails is not reported as "did not start".
    shown = desk.does("why", *command)
    assert "; it ended with exit code 3\n" in shown
    assert "it had no denials; the server itself failed, or did not find a file\n" in shown
    assert "earlier denials" not in shown


ONCE = """\
import os, socket
for name in os.environ.get("NAMES", "").split():
    try:
        socket.getaddrinfo(name, 443)
    except OSError:
        pass
"""


def test_why_shows_a_denial_until_a_flag_allows_it(desk):
    server = desk.put("server.py", ONCE)
    command = (str(desk.user.python), str(server))

    def start(names, *flags):
        desk.does("run", f"--env=NAMES={names}", *flags, "--", *command)

    start("a.x.com b.x.com")
    start("")  # a later run without denials
    shown = desk.does("why", *command)
    assert "--allow-net a.x.com" in shown
    assert "--allow-net b.x.com" in shown
    first = kept_files(desk)[0]
    # The name of the file with a run's denials is the time of the run. Rename the file, so that the
    # run seems to be from 2 January 1970.
    first.rename(first.with_name(f"{86_400_000_000:020}-1.jsonl"))
    assert desk.does("why", *command).count("(last on 1970-01-0") == 2
    first.with_name(f"{86_400_000_000:020}-1.jsonl").rename(first)
    start("", "--allow-net", "a.x.com")
    shown = desk.does("why", *command)
    assert "--allow-net a.x.com" not in shown
    assert "--allow-net b.x.com" in shown
    assert not any("NAMES=" in file.read_text() for file in kept_files(desk))


COUNTS = """\
import os, socket, sys
size = len(sys.argv[2])
try:
    socket.getaddrinfo(f"size{size}.x.com", 443)
except OSError:
    pass
open(os.path.expanduser("~/memory"), "w").write("x" * size * 1_000_000)
"""


def test_why_says_how_a_run_without_denials_failed(desk):
    """Make a server fail without a denial. `why` must report how the server ended."""
    server = desk.put("server.py", "import sys; sys.exit(int(sys.argv[1]))")
    python = str(desk.user.python)
    for code in ("0", "143", "3"):
        command = [python, str(server), code]
        desk.user.corral("run", "--", *command, env=desk.environment(), cwd=desk.home)
        if code == "3":
            assert "it ended with exit code 3\n" in desk.does("why", *command)
            [row] = json.loads(desk.does("why", "--json", *command))
            assert (row["failure"], row["denials"]) == ("it ended with exit code 3", [])
        else:
            # Sanity check: corral stores neither a success nor a stop by the client (143 is 128 +
            # SIGTERM).
            assert kept_files(desk) == []
    assert len(kept_files(desk)) == 1


def test_servers_that_differ_only_in_a_secret_share_neither_denials_nor_a_home(desk):
    python, server = str(desk.user.python), str(desk.put("server.py", COUNTS))
    words = {name: [server, "--token", "s" * size] for name, size in (("one", 4), ("two", 8))}
    listed = {name: {"command": python, "args": args} for name, args in words.items()}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": listed}))
    desk.does("wrap", "cursor", "--state", "--corral", str(desk.corral_path))
    for name in listed:
        run(desk, path, name)
    for name, size in (("one", 4), ("two", 8)):
        for asked in ([name], ["--", python, *words[name]]):
            [row] = json.loads(desk.does("why", "--json", *asked))
            assert [one["destination"] for one in row["denials"]] == [f"size{size}.x.com"]
            assert row["names"] == [f"cursor:{name}"]
        shown = desk.does("status", "cursor")
        assert shown.count("recent denials: 1") == 2
        assert f"kept between runs: {size}.0 MB" in shown
    shown = [one["command"][-1] for one in json.loads(desk.does("why", "--json"))]
    assert shown == ["***", "***"]
    desk.does("cache", "rm-home", "one")
    assert [one["bytes"] for one in json.loads(desk.does("cache", "homes", "--json"))] == [
        8_000_000
    ]


LOOKS = """\
import os
print(os.path.exists(os.path.dirname(__file__) + "/private.txt"))
"""


def test_the_proposals_for_a_clients_server_end_in_a_command_that_grants_them(desk):
    path = configure(desk, "cursor")
    desk.put("server.py", LOOKS)
    assert "False" in run(desk, path)
    flags = f"--read {desk.private}"
    assert learn(desk) == f"grant cursor:notes {flags}"
    desk.does("unwrap", "cursor")
    again = learn(desk)
    assert again == f"wrap {flags} cursor notes"
    desk.does(*shlex.split(again), "--corral", str(desk.corral_path))
    assert "True" in run(desk, path)
    desk.does("grant", "notes", "--remove", *flags.split())
    desk.does(*shlex.split(learn(desk)))
    assert "True" in run(desk, path)


@pytest.mark.parametrize("command", ["run", "explain", "inspect", "learn"])
def test_the_error_for_a_servers_short_name_suggests_the_name_with_its_client(desk, command):
    configure(desk, "cursor")
    done = desk.corral(command, "notes")
    assert done.returncode == 127
    assert done.stderr.endswith(b"hint: did you mean cursor:notes?\n"), done.stderr
    # Sanity check: for a word that no client uses as the name of a server, the hint is another one.
    done = desk.corral(command, "no-server")
    assert b"hint: is it installed?" in done.stderr
    done = desk.corral(command, "cursr:notes")
    assert done.returncode == 2
    assert done.stderr.endswith(b"hint: did you mean cursor?\n"), done.stderr
    done = desk.corral(command, "./.cursor/mcp.json:notes")
    own = shlex.join((str(desk.user.python), str(desk.server)))
    assert done.stderr.decode().endswith(f"server's own command: corral {command} -- {own}\n")
    assert desk.corral(command, "--", *shlex.split(own)).returncode in {0, 125}
    done = desk.corral(command, "./.cursor/mcp.json:other")  # Sanity check: no such server
    assert b"own command" not in done.stderr


def test_a_name_in_two_words_or_a_mistyped_client_is_corrected(desk):
    configure(desk, "cursor")
    for words in (("why", "cursor", "notes"), ("grant", "cursor", "notes", "--read", ".")):
        done = desk.corral(*words)
        assert done.stderr.endswith(b"hint: did you mean cursor:notes?\n"), done.stderr
    for command in ("why", "wrap", "unwrap", "status"):
        done = desk.corral(command, "cursr")
        assert done.returncode == 2
        assert done.stderr.endswith(b"hint: did you mean cursor?\n"), done.stderr
    done = desk.corral("why", "cursor", "other")  # Sanity check: no such server
    assert b"did you mean cursor:" not in done.stderr


def test_a_warning_says_that_a_flag_after_the_server_goes_to_the_server(desk):
    configure(desk, "cursor")
    told = b"warning: --read is passed to the command; put corral's flags before the command\n"
    assert told in desk.corral("run", "cursor:notes", "--read", "x").stderr
    assert told in desk.corral("run", "/bin/echo", "--read=x").stderr
    for words in (("--", "/bin/echo", "--read", "x"), ("/bin/echo", "--other", "read")):
        # Sanity check: there is no warning about a flag after `--` or about an unknown flag.
        assert b"is passed to the command" not in desk.corral("run", *words).stderr


def learn(desk):
    """Run `corral learn`, and return the command that it prints for keeping the accepted grants."""
    told = desk.corral("learn", "--accept", "cursor:notes").stderr.decode()
    return told.rpartition("to keep this: corral ")[2].strip()


def test_denials_are_still_listed_after_unwrap(desk):
    path = configure(desk, "cursor")
    run(desk, path)
    desk.does("unwrap", "cursor")
    for word in ("notes", "cursor:notes"):
        done = desk.corral("why", word)
        assert b"notes of cursor is not wrapped" in done.stderr
        assert b"; hint: corral wrap cursor notes\n" in done.stderr
        assert b"--allow-net api.x.com" in done.stdout
    for file in kept_files(desk):
        file.unlink()
    done = desk.corral("why", "notes")
    assert done.returncode == 125
    assert done.stderr.endswith(b"hint: corral wrap cursor notes\n")


def test_unwrap_restores_every_byte_after_grants(desk):
    desk.server = desk.put("server.py", SERVER)
    python, server = desk.user.python, desk.server
    entry = f'{{\n\t"command": "{python}", // c\n "args": ["{server}"] }}'
    text = f'{{"mcpServers": {{"notes": {entry} }}}}'
    path = desk.put(".cursor/mcp.json", text)
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    desk.does("grant", "notes", "--max-memory", "2G")
    desk.does("wrap", "--max-memory", "3G", "cursor", "notes", "--corral", str(desk.corral_path))
    words = entries(path)["notes"]["args"]
    assert words.count("--max-memory") == 1
    assert "3G" in words
    desk.does("unwrap", "cursor")
    assert path.read_text() == text


def test_wrap_does_not_change_a_wrapped_servers_grants(desk):
    path = configure(desk, "cursor")
    desk.does("wrap", "--read", "private.txt", "cursor", "notes", "--corral", str(desk.corral_path))
    words = entries(path)["notes"]["args"]
    assert "example.com" in words
    assert str(desk.private) in words
    told = desk.does("wrap", "--allow-net", "a.com", "cursor", "--corral", str(desk.corral_path))
    assert "were not added" in told
    assert entries(path)["notes"]["args"] == words


def test_grant_changes_a_server_in_both_clients(desk):
    path = configure(desk, "cursor", "opencode")
    desk.does("grant", "cursor:notes", "--allow-net", "only.cursor.com")
    done = desk.corral("grant", "notes", "--allow-net", "both.com")
    assert done.returncode == 0
    assert b"the flags differ" in done.stderr
    other = entries(desk.home / ".config/opencode/opencode.json")["notes"]["command"]
    assert "both.com" in other
    assert "only.cursor.com" not in other
    assert {"both.com", "only.cursor.com", "example.com"} <= set(entries(path)["notes"]["args"])


def test_why_says_how_files_that_are_not_found_are_recorded(desk):
    """Check that `why` suggests `wrap --learn`, and not `corral learn CLIENT:SERVER`, which would
    start the server on the terminal. There it would wait for messages that only a client sends.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    [hint] = [line for line in desk.does("why", "notes").splitlines() if "2h" in line]
    desk.does(*shlex.split(hint.partition(": ")[2])[1:], "--corral", str(desk.corral_path))
    args = entries(path)["notes"]["args"]
    until = args[args.index("--learn-until") + 1]
    shown = desk.does("why", "notes")
    assert f"files that the server does not find are recorded until {until}\n" in shown
    assert "2h" not in shown
    for other in ("2020-01-31T12:00:00Z", "never"):
        path.write_text(path.read_text().replace(until, other))
        assert hint in desk.does("why", "notes").splitlines()
        until = other


@pytest.mark.parametrize("words", [("why",), ("grant", "--read", "server.py")])
def test_the_hint_for_a_server_that_is_not_wrapped_wraps_it(desk, words):
    """Name a server of a project's file that is not wrapped. The command in the hint must name this
    file, because `wrap CLIENT` would not wrap the server.
    """
    entry = {"command": str(desk.user.python), "args": ["server.py"]}
    servers = {"shop": entry, "docs": {"url": "https://example.com/mcp"}}
    desk.put("project/server.py", SERVER)
    path = desk.put("project/.mcp.json", json.dumps({"mcpServers": servers}))

    def corral(*typed):
        return desk.user.corral(*typed, env=desk.environment(), cwd=path.parent)

    refused = corral(*words, "docs").stderr.decode()
    assert "docs of claude-code is not wrapped: it is remote" in refused
    assert "hint:" not in refused
    refused = corral(*words, "shop").stderr.decode()
    hint = shlex.split(refused.partition("hint: ")[2])
    assert hint == ["corral", "wrap", str(path), "shop"]
    done = corral(*hint[1:], "--corral", str(desk.corral_path))
    assert b"shop  wrapped" in done.stdout
    assert corral(*words, "shop").returncode == 0


def test_why_names_the_server_of_the_client_that_was_asked_for(desk):
    path = configure(desk, "cursor", "opencode")
    assert desk.does("why", "opencode:notes").endswith("corral wrap --learn 2h opencode notes\n")
    run(desk, path)
    assert desk.does("why", "notes").endswith("to allow some of these: corral grant cursor:notes\n")
    assert desk.does("why", "opencode:notes").endswith("corral grant opencode:notes\n")
    names = ("--allow-net", "api.x.com", "--allow-net", "hunter2.y.com")
    desk.does("grant", "opencode:notes", *names)
    assert desk.does("why", "opencode:notes").count("(granted since)") == 2
    assert desk.does("why", "cursor:notes").endswith("corral grant cursor:notes\n")
    assert desk.does("why", "notes").endswith("to allow some of these: corral grant cursor:notes\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nots", "--read", "x"), "did you mean notes?"),
        (("notes", "--remove", "--read", "nowhere"), "has no --read"),
        (("notes",), "no denial is recorded for notes"),
        (("notes", "--read", "/"), "hint"),
        (("notes", "--listen", "x"), "hint"),
        (("bare", "--read", "private.txt"), "is not wrapped"),
    ],
)
def test_a_mistaken_grant_changes_nothing(desk, words, told):
    path = configure(desk, "cursor")
    bare = {"mcpServers": {"bare": {"command": "x"}}}
    desk.put(".kiro/settings/mcp.json", json.dumps(bare))
    before = path.read_bytes()
    done = desk.corral("grant", *words)
    assert done.returncode not in {0, 1}
    assert told in done.stderr.decode()
    assert path.read_bytes() == before


def test_the_home_directory_of_a_wrapped_server_survives(desk):
    path = configure(desk, "cursor")
    assert "memory 1" in run(desk, path)
    assert "memory 2" in run(desk, path)
    # A start by the server's name uses the same home directory as the client's starts.
    assert "memory 3" in desk.does("run", "cursor:notes")
    assert not (desk.home / "memory").exists()
    assert "home directory, kept between runs" in desk.does("status", "cursor")
    desk.does("cache", "rm-home", "notes")
    assert json.loads(desk.does("cache", "homes", "--json")) == []
    assert "memory 1" in run(desk, path)
    desk.does("grant", "notes", "--no-state")
    assert "--state" not in entries(path)["notes"]["args"]
    assert "memory 1" in run(desk, path)
    assert "memory 1" in run(desk, path)


def test_removing_a_kept_home_by_a_program_that_several_servers_share_is_refused(desk):
    python = str(desk.user.python)
    scripts = [str(desk.put(f"{name}/server.py", "print(1)\n")) for name in "abc"]
    for script in scripts:
        desk.does("run", "--state", "--", python, script)

    def list_homes():
        return [one["server"][-1] for one in json.loads(desk.does("cache", "homes", "--json"))]

    assert sorted(list_homes()) == scripts
    for words in ((python,), (python, scripts[0] + "x"), (f"{python} {scripts[0]}", "no-server")):
        done = desk.corral("cache", "rm-home", *words)
        assert done.returncode == 125
        assert b"name one by its command or its path" in done.stderr
        assert sorted(list_homes()) == scripts
    desk.does("cache", "rm-home", python, scripts[0])  # sanity check
    desk.does("cache", "rm-home", f"{python} {scripts[1]}")
    assert list_homes() == scripts[2:]
    desk.does("cache", "rm-home", python)
    assert list_homes() == []


def test_why_names_the_entry_that_was_asked_for_and_not_another_with_the_same_command(desk):
    path = configure(desk, "cursor")
    entry = {"command": str(desk.user.python), "args": [str(desk.server)]}
    servers = {"mine": entry, "notes": entry}
    variable = {**entry, "args": ["${userHome}/server.py"]}
    desk.put(
        ".config/Code/User/mcp.json", json.dumps({"servers": {"mine": entry, "notes": variable}})
    )
    file = desk.put("my project/mcp.json", json.dumps({"mcpServers": servers}))
    corral = ("--corral", str(desk.corral_path))
    for target in (str(file), "vscode"):
        desk.does("wrap", "--read", str(desk.server), *corral, target)
    run(desk, path)

    def last_words(name):
        shown = desk.does("why", name)
        # "api.x.com" occurs twice, once in the denial and once in its flag. It does not occur again
        # for each client that has the server.
        assert shown.count("api.x.com") == 2
        learn, grant = shown.splitlines()[-2:]
        return shlex.split(learn.partition("hours: ")[2]), shlex.split(grant.partition(": ")[2])

    learn = ["corral", "wrap", "--learn", "2h"]
    notes = ["corral", "grant", "cursor:notes"]  # vscode has a server of this name, too
    assert last_words("notes") == ([*learn, "cursor", "notes"], notes)
    assert last_words("mine") == ([*learn, "vscode", "mine"], ["corral", "grant", "mine"])
    for one in ("mine", "notes"):
        named = f"{file}:{one}"
        assert last_words(named) == ([*learn, str(file), one], ["corral", "grant", named])
        desk.does("grant", named, "--allow-net", "api.x.com")
        assert "api.x.com" in entries(file)[one]["args"]
    assert "api.x.com" not in entries(path)["notes"]["args"]  # sanity check


LOOKUP = "import socket\ntry: socket.getaddrinfo('{host}', 443)\nexcept OSError: print('denied')\n"


def wrap_projects(desk, args, *flags):
    """Wrap the same command in the settings of two projects. Return {name: the project's file}."""
    files = {}
    for name in ("honest", "evil"):
        desk.put(f"{name}/server.py", LOOKUP.format(host=f"{name}.x.com"))
        entry = {"command": str(desk.user.python), "args": args}
        file = desk.put(f"{name}/.mcp.json", json.dumps({"mcpServers": {name: entry}}))
        desk.does("wrap", str(file), *flags, "--corral", str(desk.corral_path))
        files[name] = file
    return files


def run_in(desk, place, words):
    process = desk.user.popen(
        words, env=desk.environment(), cwd=place, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    return process.communicate()[0].decode()


def start_project(desk, file, name):
    entry = entries(file)[name]
    return run_in(desk, file.parent, [entry["command"], *entry["args"]])


@pytest.mark.parametrize("args", [["-m", "server"], ["server.py"]], ids=["module", "script"])
def test_a_projects_server_has_no_denials_of_another_projects_server(desk, args):
    files = wrap_projects(desk, args)
    assert "denied" in start_project(desk, files["evil"], "evil")
    assert "evil.x.com" not in desk.does("why", "honest")
    assert b"no denial is recorded for honest" in desk.corral("grant", "honest").stderr
    assert "recent denials" not in desk.does("status", str(files["honest"]))
    desk.does("cache", "rm-home", "evil")
    # Sanity checks: each server's own denials and home are found.
    assert "denied" in start_project(desk, files["evil"], "evil")
    assert "denied" in start_project(desk, files["honest"], "honest")
    for name, other in (("honest", "evil"), ("evil", "honest")):
        shown = desk.does("why", name)
        assert f"{name}.x.com" in shown
        assert f"{other}.x.com" not in shown
        assert f"corral grant {name} --allow-net {name}.x.com" in (
            desk.corral("grant", name).stderr.decode()
        )
        assert "recent denials: 1" in desk.does("status", str(files[name]))
    [row] = [one for one in json.loads(desk.does("why", "--json")) if one["names"] == [
        f"{files['evil']}:evil"
    ]]  # fmt: skip
    assert row["directory"] == str(files["evil"].parent)
    command = [str(desk.user.python), *args]
    shown = desk.does("why", "--", *command)
    assert all(f"{name}/.mcp.json:{name}\n" in shown for name in files)
    assert all(f"{name}.x.com" in shown for name in files)
    done = desk.corral("cache", "rm-home", "--", *command)
    assert (done.returncode, b"starts 2 servers that keep a home" in done.stderr) == (125, True)
    desk.does("cache", "rm-home", "honest")
    [home] = json.loads(desk.does("cache", "homes", "--json"))
    assert home["directory"] == str(files["evil"].parent)
    assert f" (in {files['evil'].parent})" in desk.does("cache", "homes")


def test_why_says_that_the_file_does_not_name_the_directory_of_a_run(desk):
    """Wrap a command in a client's own file, which does not say where the client starts it."""
    desk.put("evil/server.py", LOOKUP.format(host="evil.x.com"))
    entry = {"command": str(desk.user.python), "args": ["-m", "server"]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"mine": entry}}))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    words = [entries(path)["mine"]["command"], *entries(path)["mine"]["args"]]
    assert "denied" in run_in(desk, desk.home / "evil", words)
    shown = desk.does("why", "mine")
    assert "evil.x.com" not in shown
    assert f"its command was run in {desk.home / 'evil'}, but" in shown
    command = shown.partition("to see these runs: ")[2].splitlines()[0]
    assert "evil.x.com" in desk.does(*shlex.split(command)[1:])
    # `why` shows a refused run, because corral did not find out whether the run depends on the
    # directory in which it was started.
    bad = [*words[: words.index("--")], "--read", "/absent", *words[words.index("--") :]]
    assert "/absent" in run_in(desk, desk.home / "evil", bad)
    assert "corral did not start it" in desk.does("why", "mine")
    # Sanity check: `why` shows a run that cannot see the directory in which it was started.
    run_in(desk, desk.put("empty/file", "").parent, words)
    assert "it ended with exit code 1" in desk.does("why", "mine")


def test_status_counts_homes_of_a_package_that_no_configured_server_uses(desk):
    """Change the arguments of a package's server. With other arguments it has another home."""
    base = desk.home / ".local/state/corral/servers"
    for number, words in enumerate((("npm:notes",), ("npm:notes", "a"), ("npm:other", "a"))):
        digest = identify_command(words).digest
        desk.put(f".local/state/corral/servers/{number:032}.server", "\0".join((digest, *words)))
        (base / f"{number:032}").mkdir(mode=0o700)
        os.chown(base / f"{number:032}", desk.user.uid, desk.user.uid)
    base.chmod(0o700)

    def configure(*servers):
        entries = {
            str(number): {
                "command": str(desk.corral_path),
                "args": ["run", "--state", "--", *words],
            }
            for number, words in enumerate(servers)
        }
        desk.put(".cursor/mcp.json", json.dumps({"mcpServers": entries}))
        return desk.does("status", "cursor")

    text = "homes of this package that no configured server uses"
    assert f"{text}: 1; to see them: corral cache homes" in configure(("npm:notes", "a"))
    assert text not in configure(("npm:notes", "a"), ("npm:notes",))  # the control
    assert f"{text}: 2" in configure(("npm:notes", "b"))


def test_why_names_one_client_if_several_share_the_denials(desk):
    path = configure(desk, "cursor", "opencode")
    run(desk, path)
    shown = desk.does("why", "notes")
    assert "these servers share the denials above" in shown
    grant = shlex.split(shown.splitlines()[-1].partition(": ")[2])
    assert grant == ["corral", "grant", "cursor:notes"]
    desk.does(*grant[1:], "--allow-net", "api.x.com")
    assert "api.x.com" in entries(path)["notes"]["args"]
    other = (desk.home / ".config/opencode/opencode.json").read_text()
    assert "api.x.com" not in other
    # Sanity check: without a client, the grant changes both.
    desk.does("grant", "notes", "--allow-net", "hunter2.y.com")
    assert "hunter2.y.com" in (desk.home / ".config/opencode/opencode.json").read_text()


def test_a_server_with_a_variable_is_not_confused_with_other_servers_of_its_program(desk):
    """Use `${userHome}` and `${input:script}` in the commands of servers. VS Code replaces these
    variables before it starts a server, and corral knows the value of only the first. `why`,
    `grant` and `cache rm-home` must not take another server of the same program for this server.
    """
    python = str(desk.user.python)
    notes, other = (desk.put(f"{name}/server.py", SERVER) for name in ("notes", "other"))
    files = {"notes": "${userHome}/notes/server.py", "any": "${input:script}"}
    servers = {name: {"command": python, "args": [file]} for name, file in files.items()}
    path = desk.put(".config/Code/User/mcp.json", json.dumps({"servers": servers}))
    desk.does("wrap", "vscode", "--corral", str(desk.corral_path))
    desk.does("run", "--state", "--", python, str(other))
    assert "no denial" in desk.does("why", "notes")
    assert b"no denial is recorded for notes" in desk.corral("grant", "notes").stderr
    assert desk.corral("cache", "rm-home", "notes").returncode == 125
    desk.does("run", "--state", "--", python, str(notes))
    assert "api.x.com" in desk.does("why", "notes")

    def list_homes():
        return [one["server"][-1] for one in json.loads(desk.does("cache", "homes", "--json"))]

    done = desk.corral("cache", "rm-home", "any")
    assert done.returncode == 125
    assert b"any starts 2 servers that keep a home directory" in done.stderr
    assert sorted(list_homes()) == sorted([str(notes), str(other)])
    desk.does("cache", "rm-home", "notes")
    assert list_homes() == [str(other)]
    desk.does("cache", "rm-home", "any")  # Sanity check: with only one home left, `any` is clear
    assert list_homes() == []
    desk.does("unwrap", "vscode")
    assert json.loads(path.read_text()) == {"servers": servers}


@pytest.mark.parametrize("mode", [0o700, 0o777, 0o500, 0])
def test_a_server_cannot_hide_or_keep_its_home(desk, mode):
    """Let the server make a directory without permissions in the home that it keeps between runs,
    and change the mode of this home. `corral cache` must still list the home and remove it.
    """
    path = configure(desk, "cursor")
    desk.server.write_text(f"{SERVER}os.mkdir(home + '/d', 0)\nos.chmod(home, {mode})\n")
    assert "memory 1" in run(desk, path)
    (kept,) = json.loads(desk.does("cache", "homes", "--json"))
    assert os.stat(kept["path"]).st_mode & 0o777 == mode
    desk.does("cache", "rm-home", "notes")
    assert not os.path.lexists(kept["path"])
    assert "memory 1" in run(desk, path)
    # Clean up with corral, because the test cannot remove a directory without permissions.
    desk.does("cache", "rm-home", "notes")


def answer_questions(desk, answers, act=lambda: None, words=("grant", "notes")):
    """Run a corral command on a terminal, and answer its questions. Call `act` before the last
    answer. Return the exit code and what the terminal showed.
    """
    master, slave = pty.openpty()
    process = desk.user.popen(
        [str(desk.user.python), str(desk.corral_path), *words],
        env=desk.environment(),
        cwd=desk.home,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(slave)
    shown, left = b"", list(answers)
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
            if shown.rstrip().endswith(b"[y/N]"):
                if len(left) == 1:
                    act()
                os.write(master, left.pop(0))
    except OSError:
        pass  # the other end of the terminal is closed
    os.close(master)
    return process.wait(60), shown.decode()


def test_status_of_a_file_prints_a_why_command_that_finds_the_servers_denials(desk):
    """Wrap a file that does not belong to a client. The `why` command that `status` prints must name
    the file and the server.
    """
    desk.server = desk.put("server.py", SERVER)
    entry = {"command": str(desk.user.python), "args": [str(desk.server), "two words"]}
    path = desk.put("other.json", json.dumps({"mcpServers": {"notes": entry}}))
    corral = ("--corral", str(desk.corral_path))
    desk.does("wrap", str(path), "--allow-net", "example.com", *corral)
    run(desk, path)
    shown = desk.does("status", str(path))
    [hint] = [line for line in shown.splitlines() if "recent denials: 2" in line]
    why = shlex.split(hint.partition("; to see them: corral ")[2])
    assert why == ["why", f"{path}:notes"]
    assert "denied: name api.x.com" in desk.does(*why)


def test_why_takes_the_command_that_it_prints_with_its_options(desk):
    """Run a command with an option, and type the name that `why` prints for it."""
    command = (desk.user.python, str(desk.put("server.py", SERVER)), "--own-option")
    done = desk.corral("run", "--allow-net", "example.com", "--", *command)
    assert b"denied" in done.stderr
    [title] = [
        line for line in desk.does("why").splitlines() if "--own-option" in line and line[0] != " "
    ]
    assert tuple(shlex.split(title)) == command
    assert "denied: name api.x.com" in desk.does("why", *command)
    assert json.loads(desk.does("why", *command, "--json"))[0]["command"] == list(command)
    refused = desk.corral("why", "--own-option", *command)
    assert (refused.returncode, b"unknown option --own-option" in refused.stderr) == (2, True)


def test_a_name_of_several_servers_that_are_not_wrapped_lists_all_of_them(desk):
    entry = {"command": str(desk.user.python), "args": ["server.py"]}
    for name in (".cursor/mcp.json", ".gemini/settings.json"):
        desk.put(name, json.dumps({"mcpServers": {"notes": entry}}))
    for words in (("why", "notes"), ("grant", "notes", "--read", "/usr/share")):
        refused = desk.corral(*words).stderr.decode()
        assert "notes of cursor is not wrapped: " in refused
        assert "notes of gemini is not wrapped: " in refused
        hint = "hint: corral wrap cursor notes; corral wrap gemini notes\n"
        assert refused.endswith(hint)


def test_learn_on_a_terminal_says_how_to_watch_a_clients_server(desk):
    """Run `learn` for a client's server on a terminal. The server waits for messages that the user
    cannot type, so the hint must say how to watch the server while its client uses it.
    """
    path = configure(desk, "cursor")
    code, shown = answer_questions(desk, [b"n\n"] * 9, words=("learn", "cursor:notes"))
    assert code == 0, shown
    hint = "to watch it while its client uses it: corral wrap --learn 2h cursor notes"
    assert hint in shown
    assert (
        "so it may ask for more later; to watch that: corral wrap --learn 2h cursor notes" in shown
    )
    desk.does(*shlex.split(hint.partition(": corral ")[2]), "--corral", str(desk.corral_path))
    assert "--learn-until" in entries(path)["notes"]["args"]
    # Sanity check: there is no such hint for a command that is not a client's server.
    command = [str(desk.user.python), "-c", "pass"]
    policy = json.dumps({"version": 1, "server": {"command": command}})
    for words in (("learn", "--", *command), ("learn", "--policy", policy)):
        code, shown = answer_questions(desk, [], words=words)
        assert code == 0, shown
        assert "the server waits for a client's messages" in shown
        assert "wrap --learn" not in shown


def test_grant_without_flags_asks_about_each_denial(desk):
    path = configure(desk, "cursor")
    run(desk, path)
    code, shown = answer_questions(desk, [b"y\n", b"n\n"])
    assert code == 0, shown
    words = entries(path)["notes"]["args"]
    assert "api.x.com" in words
    assert "hunter2.y.com" not in words


WRITES_BESIDE = """\
import socket
try:
    open(__file__ + ".log", "w")
except OSError as error:
    print("log", error.errno)
try:
    socket.getaddrinfo("api.x.com", 443)
except OSError as error:
    print("lookup", error.errno)
"""


def test_grant_skips_a_denied_file_that_does_not_exist_yet(desk):
    server = desk.put("srv/server.py", WRITES_BESIDE)
    entry = {"command": str(desk.user.python), "args": [str(server)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    run(desk, path)
    code, shown = answer_questions(desk, [b"y\n"])
    assert code == 0, shown
    assert f"{server}.log does not exist, so this cannot be granted yet" in shown
    words = entries(path)["notes"]["args"]
    assert "api.x.com" in words
    assert "--write" not in words
    desk.put("srv/server.py.log", "")  # Sanity check: once the file exists, `grant` asks about it
    code, shown = answer_questions(desk, [b"y\n"])
    assert code == 0, shown
    assert f"{server}.log" in entries(path)["notes"]["args"]


SAVES = """\
import os, sys
if os.path.exists(sys.argv[1]):
    print("had", open(sys.argv[1]).read())
try:
    with open(sys.argv[1] + ".tmp", "w") as file:
        file.write("new")
    os.replace(sys.argv[1] + ".tmp", sys.argv[1])
    print("saved")
except OSError as error:
    print("error", error.errno)
"""


def configure_saving(desk, *flags):
    """Wrap a server that reads a file in a directory of the home, and replaces it."""
    server, file = desk.put("srv/server.py", SAVES), desk.put("notes/memory.json", "old")
    os.chown(file.parent, desk.user.owner, desk.user.owner)
    entry = {"command": str(desk.user.python), "args": [str(server), str(file)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    desk.does("wrap", *flags, "cursor", "notes", "--corral", str(desk.corral_path))
    return path, file


def test_all_that_grant_asks_about_can_be_granted_together(desk):
    path, file = configure_saving(desk, "--learn", "2h")
    assert "error" in run(desk, path)
    shown = desk.does("why", "notes")
    assert f"access to {file}\n" in shown  # no flag, because the directory's flag allows it
    code, shown = answer_questions(desk, [b"y\n"])  # a second question would wait for an answer
    assert code == 0, shown
    assert shown.count("[y/N]") == 1
    words = entries(path)["notes"]["args"]
    assert words[words.index("--write") + 1] == str(file.parent)
    assert "--read" not in words
    assert "saved" in run(desk, path)
    assert file.read_text() == "new"


def test_a_write_grant_of_the_directory_replaces_the_read_grant_of_a_file(desk):
    path, file = configure_saving(desk, "--read", str(desk.put("notes/memory.json", "old")))
    assert "had old" in run(desk, path)
    hint = f"; in place of `--read {file}`); --write {file.parent}\n"
    assert hint in desk.does("why", "notes")
    shown = desk.does("grant", "notes", "--write", str(file.parent))
    assert str(file) in shown  # the difference shows the flag that was removed
    assert "--read" not in entries(path)["notes"]["args"]
    assert "saved" in run(desk, path)


def test_why_shows_all_servers_of_a_client(desk):
    path = configure(desk, "cursor")
    other = {"command": str(desk.user.python), "args": [str(desk.server), "--other"]}
    servers = {"mcpServers": {**json.loads(path.read_text())["mcpServers"], "other": other}}
    path.write_text(json.dumps(servers))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    run(desk, path)
    shown = desk.does("why", "cursor")
    assert "cursor:notes\n" in shown
    assert "cursor:other\n" in shown
    assert "to allow some of these: corral grant cursor:notes\n" in shown
    desk.does("unwrap", "cursor")
    done = desk.corral("why", "cursor")
    assert done.returncode == 125
    assert b"no server of cursor is wrapped\nhint: corral wrap cursor\n" in done.stderr


def test_grant_suggests_the_flag_for_a_path_without_one(desk):
    configure(desk, "cursor")
    notes = desk.put("my notes/a", "").parent
    done = desk.corral("grant", "notes", str(notes))
    assert done.returncode == 2
    hint = f"did you mean --read '{notes}'? (or --write)\n"
    assert done.stderr.decode() == f"corral: name one server\nhint: {hint}"
    # Sanity check: "other" is not a path, so no flag is suggested.
    done = desk.corral("grant", "notes", "other")
    assert b"hint: usage: corral grant" in done.stderr


def test_why_names_a_command_that_learns_for_the_server_of_a_project(desk):
    entry = {"command": str(desk.user.python), "args": [str(desk.server)]}
    path = desk.put(".mcp.json", json.dumps({"mcpServers": {"app": entry}}))
    desk.does("wrap", ".mcp.json", "--corral", str(desk.corral_path))
    shown = desk.does("why", "app")
    command = shown.rpartition("does not find, for 2 hours: corral ")[2].strip()
    assert command == f"wrap --learn 2h {path} app"
    desk.does(*shlex.split(command), "--corral", str(desk.corral_path))
    assert "--learn-until" in entries(path)["app"]["args"]


@pytest.mark.parametrize("name", ["--allow-subprocess", "--write=/srv", "app"])
def test_suggested_commands_do_not_take_the_name_of_a_server_for_a_flag(desk, name):
    """Give a project's server a name that looks like a flag of `wrap`. `wrap` must not take the
    name in a suggested command for a flag, because the flag would apply to all servers in the file.
    The name `app` is a sanity check.
    """
    entry = {"command": str(desk.user.python), "args": [str(desk.server)]}
    path = desk.put(".mcp.json", json.dumps({"mcpServers": {name: entry, "other": entry}}))
    refusal = desk.corral("why", "--", name).stderr.decode()
    _, *words = shlex.split(refusal.rpartition("hint: corral ")[2])
    desk.does("wrap", "--corral", str(desk.corral_path), *words)
    assert entries(path)["other"] == entry  # the command must wrap only the named server
    shown = desk.does("why", "--", name)
    _, *words = shlex.split(shown.rpartition("does not find, for 2 hours: corral ")[2])
    desk.does("wrap", "--corral", str(desk.corral_path), ".mcp.json")
    desk.does("wrap", "--corral", str(desk.corral_path), *words)
    found = entries(path)
    assert "--learn-until" in found[name]["args"]
    assert "--learn-until" not in found["other"]["args"]
    given = [word for one in found.values() for word in one["args"]]
    assert not {"--allow-subprocess", "--write"} & set(given)


def wrap_by_path(desk, *names):
    """Write a settings file with one server at each of these paths, and wrap each file by its path.
    The files belong neither to a client nor to the current project.
    """
    paths = []
    for name in names:
        server = desk.put(os.path.join(os.path.dirname(name), "server.py"), SERVER)
        entry = {"command": str(desk.user.python), "args": [str(server)]}
        path = desk.put(name, json.dumps({"mcpServers": {"app": entry}}))
        paths.append(path)
        desk.does("wrap", str(path), "--corral", str(desk.corral_path))
    return paths


@pytest.mark.parametrize("name", ["settings.json", "work/project/.mcp.json"])
def test_a_server_in_a_file_that_was_wrapped_by_path_is_found(desk, name):
    [path] = wrap_by_path(desk, name)
    run(desk, path, "app")
    for word in ("app", f"{path}:app", f"{name}:app"):
        [row] = json.loads(desk.does("why", "--json", word))
        assert row["names"] == [f"{path}:app"]
        assert "api.x.com" in {one["destination"] for one in row["denials"]}
    assert f"to allow some of these: corral grant {path}:app" in desk.does("why", "app")
    assert f"{path}\n  app  wrapped" in desk.does("status")
    for word, flags in (
        ("app", ["--allow-net", "a.x"]),
        (f"{name}:app", ["--read", "private.txt"]),
    ):
        desk.does("grant", word, *flags)
    words = entries(path)["app"]["args"]
    assert words[words.index("--allow-net") :][:2] == ["--allow-net", "a.x"]
    assert str(desk.private) in words
    desk.does("unwrap", str(path))
    assert desk.corral("grant", "app", "--read", "private.txt").returncode == 125
    assert f"{path}" not in desk.does("status")


def test_status_shows_a_server_that_its_project_has_unwrapped(desk):
    """Change a wrapped file of a project, so that its server no longer starts through corral. Then
    run `status` outside the project, where corral knows the file only from its record of wrapped
    files. It must report the change.
    """
    [path] = wrap_by_path(desk, "work/.mcp.json")
    assert "app  wrapped" in desk.does("status")
    entry = {"command": str(desk.user.python), "args": ["other.py"]}
    path.write_text(json.dumps({"mcpServers": {"app": entry, "new": entry}}))
    shown = desk.does("status")
    why = "corral had wrapped it, but its entry no longer starts corral"
    assert f"{path}\n  app  not wrapped: {why}\n  new  not wrapped\n" in shown
    assert f"  hint: corral wrap {path}\n" in shown
    path.unlink()
    assert str(path) not in desk.does("status")


def test_a_name_that_two_projects_use_is_refused_by_grant(desk):
    one, two = wrap_by_path(desk, "one/.mcp.json", "two/.mcp.json")
    before = two.read_text()
    done = desk.corral("grant", "app", "--allow-net", "a.x")
    assert done.returncode == 125
    assert done.stderr.endswith(f"hint: name {one}:app or {two}:app\n".encode())
    desk.does("grant", f"{one}:app", "--allow-net", "a.x")
    assert "a.x" in entries(one)["app"]["args"]
    assert two.read_text() == before
    # If a client's settings also have a server with this name, `grant` changes that server.
    own = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"app": bare_entry(desk)}}))
    desk.does("wrap", "cursor", "--corral", str(desk.corral_path))
    desk.does("grant", "app", "--allow-net", "b.x")
    assert "b.x" in entries(own)["app"]["args"]
    assert two.read_text() == before


def test_an_entry_that_a_project_wrote_itself_is_not_found_by_its_name(desk):
    [path] = wrap_by_path(desk, "work/.mcp.json")
    servers = entries(path)
    path.write_text(json.dumps({"mcpServers": {**servers, "notes": servers["app"]}}))
    assert desk.corral("grant", "notes", "--allow-net", "a.x").returncode == 125
    # Sanity check: `grant` works for the entry that corral itself has wrapped.
    desk.does("grant", "app", "--allow-net", "a.x")


@pytest.mark.parametrize("place", ["client", "file"])
def test_a_project_cannot_name_its_server_like_another_server(desk, place):
    """Give a project's server the name CLIENT:SERVER or FILE:SERVER of another server. `grant` with
    this name must change the other server, even when it runs inside the project.
    """
    if place == "client":
        path, word = configure(desk, "cursor"), "cursor:notes"
    else:
        [path] = wrap_by_path(desk, "work/.mcp.json")
        word = f"{path}:app"
    server = word.rpartition(":")[2]
    command = {"command": str(desk.corral_path), "args": ["run", "--", "python3", "evil.py"]}
    text = json.dumps({"mcpServers": {word: command}})
    project = desk.put("project/.mcp.json", text)

    def grant(name, host):
        words = ("grant", name, "--allow-net", host)
        return desk.user.corral(*words, env=desk.environment(), cwd=project.parent)

    assert grant(word, "a.x").returncode == 0
    assert "a.x" in entries(path)[server]["args"]
    assert project.read_text() == text
    # Sanity check: CLIENT:SERVER with the full name of the project's server changes this server.
    assert grant(f"claude-code:{word}", "b.x").returncode == 0
    assert "b.x" in entries(project)[word]["args"]
    path.unlink()
    if place == "client":
        assert grant(word, "c.x").returncode == 125
        assert "c.x" not in project.read_text()


def test_a_project_cannot_choose_which_home_is_removed(desk):
    """Give a project's server the same name as a server of the user. Each of the two keeps a home
    directory between runs. corral must refuse `cache rm-home NAME`, because the name is ambiguous.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    other = desk.put("other/server.py", "print(1)\n")
    desk.does("run", "--state", "--", str(desk.user.python), str(other))
    args = ["run", "--state", "--", str(desk.user.python), str(other)]
    servers = {"notes": {"command": str(desk.corral_path), "args": args}}
    project = desk.put("project/.mcp.json", json.dumps({"mcpServers": servers}))

    def remove(word):
        words = ("cache", "rm-home", word)
        return desk.user.corral(*words, env=desk.environment(), cwd=project.parent)

    refused = remove("notes")
    assert refused.returncode == 125
    assert b"notes is the name of different servers" in refused.stderr
    assert len(json.loads(desk.does("cache", "homes", "--json"))) == 2
    assert remove("cursor:notes").returncode == 0  # sanity check
    [left] = json.loads(desk.does("cache", "homes", "--json"))
    assert left["server"][-1] == str(other)


def bare_entry(desk):
    return {"command": str(desk.user.python), "args": [str(desk.server)]}


def test_explain_suggests_no_grant_of_the_home_directory(desk):
    configure(desk, "cursor")
    shown = desk.does("explain", "cursor:notes")
    assert (
        f"the server cannot start in {desk.home}: a home directory is never granted as a whole"
        in shown
    )
    assert desk.corral("grant", "notes", "--read", str(desk.home)).returncode == 125


def test_a_grant_is_refused_if_the_client_unwrapped_the_server_meanwhile(desk):
    """Replace the wrapped server in the client's settings while `grant` waits for an answer.
    `grant` must then write nothing.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    document = json.loads(path.read_text())
    document["mcpServers"]["notes"] = {"command": "server", "args": ["--new"]}
    changed = json.dumps(document)
    code, shown = answer_questions(desk, [b"y\n", b"n\n"], lambda: path.write_text(changed))
    assert code == 125, shown
    assert "notes was changed while this command ran, and is no longer wrapped" in shown
    assert "nothing was written" in shown
    assert path.read_text() == changed


def test_a_grant_keeps_what_the_client_changed_meanwhile(desk):
    """Sanity check: change another part of the client's settings while `grant` waits for an answer.
    The settings must then contain both this change and the grant.
    """
    path = configure(desk, "cursor")
    run(desk, path)
    changed = path.read_text().replace('"other"', '"another"')
    code, shown = answer_questions(desk, [b"y\n", b"n\n"], lambda: path.write_text(changed))
    assert code == 0, shown
    assert "api.x.com" in entries(path)["notes"]["args"]
    assert '"another"' in path.read_text()


READER = """\
import os
for path in (os.path.expanduser("~/diary"), os.path.expanduser("~/.ssh/id_rsa")):
    try:
        print(open(path).read())
    except OSError as error:
        print("read", error.errno)
"""


def test_wrap_learns_while_the_client_uses_the_server(desk):
    """Check that a server under `wrap --learn` gets no new grants, and that corral stops watching
    it after the date in `--learn-until`.
    """
    diary = desk.put("diary", "dear diary")
    (desk.home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    desk.put(".ssh/id_rsa", "a key")
    server = desk.put("server.py", READER)
    entry = {"command": str(desk.user.python), "args": [str(server)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    corral = ("--corral", str(desk.corral_path))
    desk.does("wrap", "cursor", *corral)
    assert "run was watched" not in run(desk, path)
    desk.does("wrap", "--learn", "1h", "cursor", *corral)
    words = entries(path)["notes"]["args"]
    assert words[words.index("--learn-until") + 1].endswith("Z")
    out = run(desk, path)
    assert out.count("read 2") == 2, out
    assert "run was watched" in out
    shown = desk.does("why", "notes")
    assert f"access to {diary} (learned); --read {diary}" in shown
    [line] = [line for line in shown.splitlines() if "id_rsa" in line]
    assert "; --" not in line
    desk.does("grant", "notes", "--read", str(diary))
    assert "dear diary" in run(desk, path)

    words = entries(path)["notes"]["args"]
    words[words.index("--learn-until") + 1] = "2020-01-01T00:00:00Z"
    path.write_text(json.dumps({"mcpServers": {"notes": {**entry, "args": words}}}))
    entry["command"] = entries(path)["notes"]["command"]
    done = desk.user.popen(
        [str(desk.user.python), str(desk.corral_path), *words],
        env=desk.environment(), cwd=desk.home, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip
    assert "run was watched" not in done.communicate()[0].decode()


def test_learn_starts_a_clients_server_with_the_grants_that_it_already_has(desk):
    configure(desk, "cursor")
    done = desk.corral("learn", "cursor:notes")
    assert done.returncode == 0, done.stderr
    assert b"--allow-net api.x.com" in done.stderr
    assert b"example.com" not in done.stderr  # already granted


def test_wrap_refuses_to_learn_for_an_invalid_or_endless_duration(desk):
    configure(desk, "cursor")
    for text in ("soon", "5", "none"):
        done = desk.corral("wrap", "--learn", text, "cursor", "--corral", str(desk.corral_path))
        assert done.returncode == 2, done.stderr
        told = f"corral: --learn: '{text}' is not a duration: write "
        assert done.stderr.decode().startswith(told) or text == "none"


@pytest.mark.parametrize("words", [("wrap", "cursor"), ("grant", "notes")], ids=" ".join)
def test_a_mistake_in_a_flag_points_to_the_help_of_the_typed_command(desk, words):
    configure(desk, "cursor")
    own = ("--corral", str(desk.corral_path)) if words[0] == "wrap" else ()
    done = desk.corral(*words, *own, "--max-memory", "5X")
    assert done.returncode == 2, done.stderr
    told = f"hint: `corral {words[0]} --help` shows how each flag is written\n"
    assert done.stderr.decode().endswith(told)
    assert "--max-memory SIZE" in desk.does(words[0], "--help")


def test_stored_denials_are_ignored_in_a_link_or_in_a_file_that_others_can_read(desk):
    path = configure(desk, "cursor")
    for _ in range(3):
        run(desk, path)
    files = kept_files(desk)
    assert len(files) == 3
    files[0].chmod(0o644)
    files[1].unlink()
    files[1].symlink_to(files[2])
    [row] = json.loads(desk.does("why", "--json", "notes"))
    assert row["runs"] == 1


@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_a_home_is_kept_without_namespaces(desk):
    entry = {"command": str(desk.user.python), "args": [str(desk.server)]}
    path = desk.put(".cursor/mcp.json", json.dumps({"mcpServers": {"notes": entry}}))
    done = desk.corral("wrap", "cursor", "--corral", str(desk.corral_path))
    assert done.returncode == 0, done.stderr
    assert "--state" in entries(path)["notes"]["args"]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_hint_names_only_a_few_flags(desk, number):
    """Cause many denials. The hint must name only a few flags, because users may paste a long line
    without reading it.
    """
    path = configure(desk, "cursor")
    names = " ".join(f'"n{one}.x.com",' for one in range(number))
    desk.server.write_text(SERVER.replace('"api.x.com", "hunter2.y.com"', names))
    run(desk, path)
    done = desk.corral("grant", "notes")
    things = "1 thing" if number == 1 else f"{number} things"
    assert f"was denied {things}, but there is no".encode() in done.stderr
    hint = done.stderr.decode().rpartition("hint: ")[2]
    named = " ".join(f"--allow-net n{one}.x.com" for one in range(number))
    flags = named if number < 5 else "FLAG..."
    assert hint.endswith(f"corral grant notes {flags}\n")
    assert ("`corral why notes` lists them" in hint) is (number == 5)


def test_a_flag_that_only_one_of_two_clients_has_can_be_removed_from_both(desk):
    path = configure(desk, "cursor", "opencode")
    desk.does("grant", "cursor:notes", "--read", "private.txt")
    desk.does("grant", "notes", "--remove", "--read", "private.txt")
    assert str(desk.private) not in path.read_text()
    before = path.read_bytes()
    done = desk.corral("grant", "notes", "--remove", "--read", "private.txt")
    assert done.returncode == 125
    assert f"notes has no --read {desk.private}".encode() in done.stderr
    assert path.read_bytes() == before


def test_the_pins_of_a_wrapped_package_are_found(tmp_path, monkeypatch):
    """Check the flags of a package's server. `status` and `grant` do so with Python in place of the
    server's program, because the package might not be installed yet. They must still find the
    server's pins, which are kept under the name of the package.
    """
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    flags, command = ("--pins", "refuse"), ("npm:example@1.2.3", "stdio")
    with pytest.raises(PolicyError, match="nothing is pinned for npm:example stdio"):
        entry_flags.check_run(flags, command)
    keep_pins(("npm:example", "stdio"), [("tool", "add", "{}")])
    entry_flags.check_run(flags, command)
    for unknown in (("npm:example", "${HOME}"), ("/opt/server", "stdio")):
        entry_flags.check_run(flags, unknown)
