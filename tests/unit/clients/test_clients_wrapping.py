"""Test how servers in the text of a configuration are wrapped and unwrapped. Values must keep their
meaning, and the rest of the text must not change by a single byte.
"""

import json
import os
import time

import pytest
import yaml as pyyaml
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from corral.cli import wrap as wrap_command
from corral.clients import unwrap as unwrapping
from corral.clients import wrap as wrapping
from corral.clients.configured_servers import read_servers
from corral.clients.server_needs import SET_BY_CORRAL, UNSAFE_NAMES, UNSAFE_PREFIXES
from corral.clients.wrap import WrapRequest, propose
from corral.errors import SandboxError
from corral.formats import jsonc, toml, yaml
from corral.formats.positions import same
from corral.network.host_proxy import EXCEPTIONS, VARIABLES
from corral.policy.variables import is_secret
from corral.programs.package_runners import parse_runner
from corral.programs.scope import MANAGED_BY_VARIABLE
from corral.supervisor.prepare import CERTIFICATES

CORRAL = "/home/me/.local/bin/corral"
REQUEST = WrapRequest(corral=CORRAL)

# The characters of configuration files. NUL is left out, because a command cannot contain it, and
# so are the characters that `json.dumps` writes in a form that TOML does not accept.
LETTERS = st.characters(
    exclude_categories=["Cs"], max_codepoint=0xFFFF, exclude_characters="\x00\x7f"
)
TEXTS = st.text(LETTERS, max_size=8) | st.sampled_from(
    ["-y", "# no", "x: y", "'", '"', "// x", "~", "\\", "[", "true"]
)
# Hypothesis also draws constants that it finds in corral's source code. corral refuses some of them
# in a configuration, so each strategy excludes these.
COMMANDS = (
    TEXTS.filter(lambda text: not set(text) & {" ", "/"})
    .filter(lambda text: text and parse_runner(text, []) is None and "corral" not in text)
    | st.sampled_from(["node", "/opt/a b/server", r"C:\x\server.exe"])
)  # fmt: skip
NAMES = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=8).filter(
    lambda name: (
        name not in SET_BY_CORRAL | UNSAFE_NAMES | {"PATH"} and not name.startswith(UNSAFE_PREFIXES)
    )
)
ENTRIES = st.fixed_dictionaries(
    {"command": COMMANDS},
    optional={
        "args": st.lists(TEXTS, max_size=4),
        "env": st.dictionaries(NAMES, TEXTS, max_size=3),
        "timeout": st.integers(0, 9),
    },
)
SERVERS = st.dictionaries(TEXTS.filter(bool), ENTRIES, max_size=3)
OTHERS = st.recursive(
    st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def wrap(text, form, request, check=lambda proposal: proposal):
    proposals = map(check, propose(read_servers(form, text), request))
    return wrapping.wrap(text, form, list(proposals), request.corral)


def unwrap(text, form, originals, **options):
    return unwrapping.unwrap(text, form, read_servers(form, text), originals, **options)


def meant(entry: dict) -> dict:
    """Return the entry that `wrap` should write, built without the code under test."""
    flags = []
    for name, value in entry.get("env", {}).items():
        flags += ["--secret" if is_secret(name, value) else "--env", name]
    args = ["run", *flags, "--", entry["command"], *entry.get("args", [])]
    return {**entry, "command": CORRAL, "args": args}


class Writer:
    """Write values as text, with whitespace and comments chosen by hypothesis."""

    def __init__(self, draw, newline):
        self.draw = draw
        self.newline = newline
        self.gaps = [
            "",
            "",
            " ",
            newline,
            f"{newline}  ",
            f" /* , ] */{newline}\t",
            f' // " }}{newline}',
        ]

    def gap(self):
        return self.draw(st.sampled_from(self.gaps))

    def jsonc(self, value):
        if isinstance(value, dict):
            parts = [
                f"{json.dumps(k, ensure_ascii=self.draw(st.booleans()))}{self.gap()}:{self.gap()}{self.jsonc(v)}"
                for k, v in value.items()
            ]
            return "{" + self.joined(parts) + "}"
        if isinstance(value, list):
            return "[" + self.joined([self.jsonc(item) for item in value]) + "]"
        return json.dumps(value, ensure_ascii=self.draw(st.booleans()))

    def joined(self, parts):
        text = ",".join(self.gap() + part + self.gap() for part in parts)
        return text + ("," + self.gap() if parts and self.draw(st.booleans()) else self.gap())

    def toml_value(self, value):
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, str):
            plain = value.isprintable() and "'" not in value
            return f"'{value}'" if plain and self.draw(st.booleans()) else json.dumps(value)
        if isinstance(value, list):
            gaps = ["", " ", self.newline, f" # ], {self.newline} "]
            parts = [self.draw(st.sampled_from(gaps)) + self.toml_value(item) for item in value]
            end = self.draw(st.sampled_from(["", ",", f",{self.newline}"])) if parts else ""
            return "[" + ",".join(parts) + end + "]"
        if isinstance(value, dict):
            return (
                "{ "
                + ", ".join(f"{json.dumps(k)} = {self.toml_value(v)}" for k, v in value.items())
                + " }"
            )
        return str(value)

    def toml(self, servers, other):
        lines = [f"other = {self.toml_value(other)} # x", ""]
        for name, entry in servers.items():
            key = json.dumps(name)
            style = self.draw(st.sampled_from(["table", "inline", "dotted"]))
            if style == "inline":
                lines[0:0] = [f"mcp_servers.{key} = {self.toml_value(entry)} # [x]"]
            elif style == "dotted":
                lines[0:0] = [
                    f"mcp_servers.{key}.{k} = {self.toml_value(v)}" for k, v in entry.items()
                ]
            else:
                rest = {k: v for k, v in entry.items() if k != "env"}
                indent = self.draw(st.sampled_from(["", "  ", "\t"]))
                lines += [f'{indent}[ mcp_servers . {key} ] # "c"']
                lines += [f"{indent}{k}  =  {self.toml_value(v)} # 'tail" for k, v in rest.items()]
                if "env" in entry:
                    lines += [f"[mcp_servers.{key}.env]"]
                    lines += [f"{k} = {self.toml_value(v)}" for k, v in entry["env"].items()]
        lines += [self.draw(st.sampled_from(["", "[after]", "# end"]))]
        return self.newline.join(lines)

    def yaml(self, servers, other):
        listed = [{"name": name, **entry} for name, entry in servers.items()]
        key = "mcpServers" if self.draw(st.booleans()) else "extensions"
        value = {"other": other, key: listed if key == "mcpServers" else servers}
        text = pyyaml.safe_dump(
            value,
            default_flow_style=self.draw(st.sampled_from([None, True, False])),
            allow_unicode=self.draw(st.booleans()),
            indent=self.draw(st.integers(2, 6)),
            default_style=self.draw(st.sampled_from([None, None, '"'])),
            sort_keys=False,
            width=10_000,
        )
        commented = "\n".join(
            f"{line} # c - x" if self.draw(st.booleans()) else line for line in text.split("\n")
        )
        for candidate in (
            commented.replace("\n", self.newline),
            text.replace("\n", self.newline),
            text,
        ):
            try:
                if same(pyyaml.safe_load(candidate), value):
                    return candidate
            except pyyaml.YAMLError:
                continue
        return reject()  # PyYAML cannot read back what it writes for this value


@st.composite
def configurations(draw):
    """Draw a configuration as (format, text, servers)."""
    servers, other = draw(SERVERS), draw(OTHERS)
    writer = Writer(draw, draw(st.sampled_from(["\n", "\r\n"])))
    form = draw(st.sampled_from([jsonc, toml, yaml]))
    mark = draw(st.sampled_from(["", "\ufeff"]))
    if form is jsonc:
        keys = draw(
            st.sampled_from(
                [
                    ("mcpServers",),
                    ("servers",),
                    ("mcp", "servers"),
                    ("context_servers",),
                    ("projects", "/p", "mcpServers"),
                ]
            )
        )
        value = servers
        for key in reversed(keys):
            value = {key: value}
        text = writer.gap() + writer.jsonc({"other": other, **value}) + writer.gap()
    elif form is toml:
        text = writer.toml(servers, other)
    else:
        text = writer.yaml(servers, other)
    try:
        form.load(mark + text)
    except (ValueError, SandboxError):
        reject()  # PyYAML wrote text that is not valid YAML
    return form, mark + text, servers


def tables(data, servers):
    """Return the entries of these servers, by name. They may be anywhere in the data except under
    the key `other`.
    """
    found = {}

    def walk(value):
        if isinstance(value, dict):
            for key, below in value.items():
                if key in servers and isinstance(below, dict) and "command" in below:
                    found[key] = below
                else:
                    walk(below)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and item.get("name") in servers:
                    found[item["name"]] = {k: v for k, v in item.items() if k != "name"}

    walk({key: value for key, value in data.items() if key != "other"})
    return found


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(configurations())
def test_any_configuration_is_wrapped_correctly_and_restored_byte_for_byte(configuration):
    form, text, servers = configuration
    done = wrap(text, form, REQUEST)
    assert {one.state for one in done.outcomes} <= {"wrapped"}
    assert len(done.outcomes) == len(servers)
    data = form.load(done.text)
    assert tables(data, servers) == {name: meant(entry) for name, entry in servers.items()}
    assert same(data.get("other"), form.load(text).get("other"))
    again = wrap(done.text, form, REQUEST)
    assert again.text == done.text  # wrapping again changes nothing
    undone = unwrap(done.text, form, {one.key_path: one for one in done.originals})
    assert undone.text == text
    assert not undone.originals


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(configurations())
def test_unwrap_without_a_record_restores_the_same_servers(configuration):
    form, text, servers = configuration
    done = wrap(text, form, REQUEST)
    undone = unwrap(done.text, form, {})
    expected = {name: {**entry, "args": entry.get("args", [])} for name, entry in servers.items()}
    assert tables(form.load(undone.text), servers) == expected
    assert {one.state for one in undone.outcomes} <= {"derived"}


FILES = {
    "json": (jsonc, '{\n  "mcpServers": {\n    "a": {\n      "command": "node", // c\n      "args": [\n        // first\n        "x.js", // second\n        "y"\n      ],\n      "env": {"A": "1"}\n    },\n    "b": {"command": "srv"}\n  }\n}\n'),
    "toml": (toml, '# t\n[mcp_servers.a]\ncommand = "node" # c\nargs = ["x.js", # second\n  "y"]\nenv = { A = "1" }\n\n[mcp_servers.b]\ncommand = "srv"\n'),
    "yaml": (yaml, "mcpServers:\n  - name: a\n    command: node # c\n    args:\n      # first\n      - x.js # second\n      - y\n    env:\n      A: '1'\n  - name: b\n    command: srv\n"),
}  # fmt: skip


@pytest.fixture(params=FILES)
def file(request):
    return FILES[request.param]


def records(done):
    return {one.key_path: one for one in done.originals}


def test_comments_stay_in_a_wrapped_file(file):
    form, text = file
    done = wrap(text, form, REQUEST)
    for comment in ("c\n", "second"):
        assert comment in done.text


def test_unwrap_keeps_edits_that_were_made_after_wrap(file):
    form, text = file
    done = wrap(text, form, REQUEST)
    edited = done.text.replace("'1'", "'2'").replace('"1"', '"2"')
    assert edited != done.text
    undone = unwrap(edited, form, records(done))
    assert undone.text == text.replace("'1'", "'2'").replace('"1"', '"2"')
    assert {one.state for one in undone.outcomes} == {"restored"}


def test_an_edited_server_is_unwrapped_from_its_arguments(file):
    form, text = file
    done = wrap(text, form, REQUEST)
    flag = {jsonc: '"--",', toml: '"--",', yaml: '- "--"'}[form]
    more = {
        jsonc: '"--strict", "--",',
        toml: '"--strict", "--",',
        yaml: '- "--strict"\n      - "--"',
    }[form]
    edited = (
        done.text.replace(flag, more, 1).replace("y", "changed")
        if form is jsonc
        else done.text.replace(flag, more, 1)
    )
    assert edited != done.text
    undone = unwrap(edited, form, records(done))
    first, second = undone.outcomes
    assert (first.state, second.state) == ("derived", "restored")
    assert "--force" in first.hint
    found = tables(form.load(undone.text), {"a": 1, "b": 1})
    assert found["a"]["command"] == "node"
    assert found["a"]["args"] == ["x.js", "changed" if form is jsonc else "y"]
    forced = unwrap(edited, form, records(done), force=True)
    assert [one.state for one in forced.outcomes] == ["forced", "restored"]
    assert forced.text == text


def test_wrap_and_unwrap_change_only_the_server_that_is_named(file):
    form, text = file
    done = wrap(text, form, WrapRequest(corral=CORRAL, names=("b",)))
    assert [one.name for one in done.outcomes] == ["b"]
    both = wrap(done.text, form, REQUEST)
    assert [one.state for one in both.outcomes] == ["wrapped", "already"]
    known = {**records(done), **records(both)}
    one = unwrap(both.text, form, known, names=("a",))
    assert one.text == done.text
    assert [kept.key_path[-1] for kept in one.originals] == ["b"]
    assert unwrap(one.text, form, known).text == text


def test_a_server_without_a_double_dash_is_refused_and_the_others_are_unwrapped(file):
    form, text = file
    done = wrap(text, form, REQUEST)
    cut = done.text.replace('"--"', '"--strict"', 1)
    undone = unwrap(cut, form, {})
    assert [one.state for one in undone.outcomes] == ["refused", "derived"]
    assert tables(form.load(undone.text), {"a": 1})["a"]["command"] == CORRAL


def test_a_long_list_of_servers_is_read_in_linear_time():
    """Read a list of 60,000 servers. In quadratic time this would take half a minute."""
    servers = [{"name": f"s{at}", "command": "x"} for at in range(60_000)]
    start = time.process_time()
    found = read_servers(jsonc, json.dumps({"mcpServers": [*servers, servers[0]]}))
    assert time.process_time() - start < 15
    assert [one.name for one in found if one.why] == ["s0", "s0"]


ENTRIES_LEFT = {
    '{"url": "https://x"}': "remote",
    '{"type": "http", "url": "https://x"}': "remote",
    '{"serverUrl": "https://x"}': "remote",
    '{"httpUrl": "https://x"}': "remote",
    '{"type": "builtin", "name": "x"}': "part of the client",
    '{"settings": {}}': "no command",
    '{"type": "remote", "url": "https://x", "enabled": true}': "remote",
    '{"command": "x", "disabled": true}': "switched off",
    '{"command": "x", "enabled": false}': "switched off",
    '{"command": "docker", "args": ["run", "x"]}': "container",
    '{"command": "/opt/bin/podman", "args": ["run", "x"]}': "container",
    '{"command": "C:\\\\Docker\\\\docker.exe", "args": ["run", "x"]}': "container",
}


@pytest.mark.parametrize("entry", ENTRIES_LEFT)
def test_entries_that_corral_cannot_run_are_left_with_a_reason(entry):
    text = f'{{"mcpServers": {{"a": {entry}, "good": {{"command": "node"}}}}}}'
    done = wrap(text, jsonc, REQUEST)
    left, good = done.outcomes
    assert (left.state, good.state) == ("left", "wrapped")
    assert ENTRIES_LEFT[entry] in left.why
    assert entry in done.text


@pytest.mark.parametrize(
    "entry",
    [
        '{"command": "x", "sandboxEnabled": true}',
        '{"command": "./docker", "args": ["run", "x"]}',
        '{"command": "bin\\\\docker.exe", "args": ["run", "x"]}',
        '{"command": "${CLAUDE_PROJECT_DIR}/docker", "args": ["run", "x"]}',
        '{"command": "/proc/self/cwd/docker", "args": ["run", "x"]}',
        '{"command": "//host/share/docker.exe", "args": ["run", "x"]}',
    ],
)
def test_no_other_sandbox_is_assumed_for_what_a_project_names(entry):
    """Check that corral wraps an entry that only seems to have a sandbox: the project itself may
    contain the program `docker`, and only VS Code obeys `sandboxEnabled`. Sanity check: in VS
    Code's own format, an entry with `sandboxEnabled` is left unwrapped.
    """
    done = wrap(f'{{"mcpServers": {{"a": {entry}}}}}', jsonc, REQUEST)
    assert [one.state for one in done.outcomes] == ["wrapped"]
    boxed = '{"servers": {"a": {"command": "x", "sandboxEnabled": true}}}'
    (left,) = wrap(boxed, jsonc, REQUEST).outcomes
    assert (left.state, "sandboxEnabled" in left.why) == ("left", True)


ENTRIES_NOT_UNDERSTOOD = {
    '{"command": "x", "Command": "y"}': "the case of its key 'Command'",
    '{"command": "x", "args": [], "ARGS": ["y"]}': "the case of its key 'ARGS'",
    '{"command": "x", "arg\u017f": ["y"]}': "the case of its key 'arg\u017f'",
    '{"url": "https://x", "Command": "y"}': "the case of its key 'Command'",
    '{"command": {"path": "x", "Args": ["y"]}}': "the case of its key 'Args'",
    '{"comand": "node", "args": []}': "did you mean command instead of 'comand'?",
    '{"commands": "node"}': "did you mean command instead of 'commands'?",
    '{"command": 1}': "not a string",
    '{"command": ""}': "not a string",
    '{"command": [1, 2]}': "not a string",
    '{"command": ["x", 1]}': "not a list of strings",
    '{"command": "x", "args": "y"}': "not a list of strings",
    '{"command": "x", "args": [1]}': "not a list of strings",
    '{"command": ["x"], "args": ["y"]}': "not a string",
    '{"command": "x", "type": "wormhole"}': "'wormhole'",
    '{"type": "sse", "command": "x"}': "its type is 'sse'",
    '{"type": "http", "url": "https://x", "command": "x"}': "its type is 'http'",
    '{"type": "builtin", "command": "x"}': "its type is 'builtin'",
}


@pytest.mark.parametrize("entry", ENTRIES_NOT_UNDERSTOOD)
def test_entries_that_are_not_understood_are_refused(entry):
    text = f'{{"mcpServers": {{"a": {entry}, "good": {{"command": "node"}}}}}}'
    refused, good = wrap(text, jsonc, REQUEST).outcomes
    assert (refused.state, good.state) == ("refused", "wrapped")
    assert ENTRIES_NOT_UNDERSTOOD[entry] in refused.why


ELSEWHERE = (
    '{"experimental": {"mcp": {"a": {"command": "x"}}}}',
    '{"mcp": {"local": {"a": {"command": ["x", "y"]}}}}',
    '{"experimental": {"modelContextProtocolServers": [{"transport": {"command": "x"}}]}}',
    '{"mcpServers": {"group": {"a": {"command": "x"}}}}',
)


@pytest.mark.parametrize("text", ELSEWHERE)
def test_a_server_at_an_unknown_place_is_refused(text):
    states = [(one.state, one.why) for one in wrap(text, jsonc, REQUEST).outcomes]
    assert [why for state, why in states if state == "refused" and "does not support" in why]


def test_a_list_of_servers_without_names_is_refused():
    text = '{"mcpServers": [{"command": "x"}, {"name": "good", "command": "node"}]}'
    good, refused = wrap(text, jsonc, REQUEST).outcomes
    assert (good.name, good.state) == ("good", "wrapped")
    assert (refused.name, refused.state) == ("0", "refused")
    assert refused.why == "its entry in the list mcpServers has no name"


NO_SERVERS = (
    '{"lsp": {"go": {"command": "gopls", "args": []}}}',
    '{"mcp": {"allowed": ["a"], "serverCommand": "x"}}',
    '{"agent_servers": {"amp": {"command": "x"}}}',
    '{"hooks": [{"type": "command", "command": "x"}]}',
)


@pytest.mark.parametrize("text", NO_SERVERS)
def test_other_commands_in_settings_do_not_count_as_servers(text):
    assert wrap(text, jsonc, REQUEST).outcomes == ()


JOINED = (
    '{"mcp": {"a": {"type": "local", "command": ["npx", "-y", "pkg", "x"], "enabled": true}}}',
    '{"mcp": {"a": {"type": "local", "command": [\n  "node" // c\n  , "s.js"\n]}}}',
    '{"mcp": {"a": {"type": "local", "command": ["node"], "environment": {"A_TOKEN": "t"}}}}',
)


@pytest.mark.parametrize("text", JOINED)
def test_a_command_in_one_list_is_wrapped_and_restored(text):
    done = wrap(text, jsonc, REQUEST)
    assert [one.state for one in done.outcomes] == ["wrapped"]
    command = jsonc.load(done.text)["mcp"]["a"]["command"]
    assert command[:2] == [CORRAL, "run"]
    assert "args" not in jsonc.load(done.text)["mcp"]["a"]
    known = {one.key_path: one for one in done.originals}
    assert unwrap(done.text, jsonc, known).text == text
    derived = jsonc.load(unwrap(done.text, jsonc, {}).text)["mcp"]["a"]["command"]
    assert derived == jsonc.load(text)["mcp"]["a"]["command"]


def test_the_environment_of_opencode_is_passed_on():
    done = wrap(JOINED[2], jsonc, REQUEST)
    assert jsonc.load(done.text)["mcp"]["a"]["command"][1:4] == ["run", "--secret", "A_TOKEN"]


def test_a_disabled_server_is_wrapped_if_it_is_named():
    text = '{"mcpServers": {"a": {"command": "x", "disabled": true}}}'
    assert (
        wrap(text, jsonc, WrapRequest(corral=CORRAL, names=("a",))).outcomes[0].state == "wrapped"
    )


ENTRIES_REFUSED = {
    '{"command": "bash", "args": ["-c", "x"]}': "another process",
    '{"command": "npx", "args": ["-y", "github:a/b"]}': "does not name a package",
    '{"command": "node", "env": {"A B": "1"}}': "not the name",
    '{"command": "node", "envFile": "/x/.env"}': "/x/.env",
    '{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/"]}': "never granted",
    '{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]}': "not granted yet",
    '{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/no/such"]}': "none of them exists",
}


@pytest.mark.parametrize("entry", ENTRIES_REFUSED)
def test_servers_that_would_not_work_are_refused_and_the_others_are_wrapped(entry):
    text = f'{{"mcpServers": {{"a": {entry}, "good": {{"command": "node"}}}}}}'
    done = wrap(text, jsonc, REQUEST)
    refused, good = done.outcomes
    assert (refused.state, good.state) == ("refused", "wrapped")
    assert ENTRIES_REFUSED[entry] in refused.why
    assert entry in done.text


def words_of(entry, **request):
    text = json.dumps({"mcpServers": {"a": entry}})
    done = wrap(text, jsonc, WrapRequest(corral=CORRAL, **request))
    assert done.outcomes[0].state == "wrapped", done.outcomes
    return done.outcomes[0], json.loads(done.text)["mcpServers"]["a"]["args"]


@pytest.mark.parametrize("word", ["\0", "a\0b", "\ud800"])
@pytest.mark.parametrize("key", ["command", "args", "cwd"])
def test_a_command_with_text_that_no_process_can_receive_is_refused(key, word):
    entry = {"command": "node", key: [word] if key == "args" else word}
    done = wrap(json.dumps({"mcpServers": {"a": entry}}), jsonc, REQUEST)
    assert [one.state for one in done.outcomes] == ["refused"]


def test_the_users_flags_apply_to_every_server_and_override_others():
    entry = {
        "command": "node",
        "args": ["x"],
        "env": {"API_KEY": "1", "LOG": "2", "HOME": "${HOME}"},
    }
    flags = ("--env", "API_KEY", "--read", "/n")
    assert words_of(entry, flags=flags)[1] == ["run", "--env", "LOG", *flags, "--", "node", "x"]


def test_variables_that_a_client_forwards_by_name_are_passed_and_null_values_are_not():
    text = '[mcp_servers.a]\ncommand = "x"\nenv_vars = ["GH_TOKEN", { name = "LANG", source = "local" }]\n'
    args = toml.load(wrap(text, toml, REQUEST).text)["mcp_servers"]["a"]["args"]
    assert args == ["run", "--secret", "GH_TOKEN", "--env", "LANG", "--", "x"]
    text = "extensions:\n  a:\n    type: stdio\n    cmd: x\n    envs: {A: b}\n    env_keys: [K_TOKEN]\n    enabled: true\n"
    entry = yaml.load(wrap(text, yaml, REQUEST).text)["extensions"]["a"]
    assert entry["cmd"] == CORRAL
    assert entry["args"] == ["run", "--env", "A", "--secret", "K_TOKEN", "--", "x"]
    assert words_of({"command": "x", "env": {"A": None}})[1] == ["run", "--", "x"]


def test_zeds_older_form_of_a_command_is_wrapped():
    text = '{"context_servers": {"a": {"command": {"path": "node", "args": ["x"], "env": {"T_KEY": ""}}, "settings": {}}}}'
    done = wrap(text, jsonc, REQUEST)
    command = json.loads(done.text)["context_servers"]["a"]["command"]
    assert command == {
        "path": CORRAL,
        "args": ["run", "--secret", "T_KEY", "--", "node", "x"],
        "env": {"T_KEY": ""},
    }
    assert unwrap(done.text, jsonc, records(done)).text == text


def test_paths_in_arguments_are_suggested_and_granted_only_on_request(tmp_path):
    (tmp_path / "data").mkdir()
    script = tmp_path / "x.js"
    script.touch()
    args = [
        str(script),
        str(tmp_path / "data"),
        f"--db={script}",
        "--x",
        str(tmp_path / "absent"),
        "/",
    ]
    entry = {"command": "node", "args": args, "cwd": str(tmp_path)}
    outcome, words = words_of(entry)
    assert outcome.suggested == (str(tmp_path / "data"), str(script), str(tmp_path))
    assert words == ["run", "--", "node", *args]
    outcome, _ = words_of(entry, flags=("--write", str(tmp_path / "data")))
    assert outcome.suggested == (str(script), str(tmp_path))
    outcome, _ = words_of(entry, flags=("--read", str(tmp_path)))
    assert outcome.suggested == ()
    outcome, words = words_of(entry, grant_arguments=True)
    assert outcome.suggested == ()
    assert words[:7] == [
        "run",
        "--read",
        str(tmp_path / "data"),
        "--read",
        str(script),
        "--read",
        str(tmp_path),
    ]
    assert (
        "${workspaceFolder}"
        in words_of({"command": "srv", "args": ["${workspaceFolder}"]})[0].suggested
    )


def test_paths_in_variables_are_suggested_and_granted_like_those_in_arguments(tmp_path):
    file, folder = tmp_path / "memory.json", tmp_path / "data"
    file.touch()
    folder.mkdir()
    (tmp_path / ".env").touch()
    env = {
        "MEMORY_FILE_PATH": str(file),
        "DATA": str(folder),
        "LOG_FILE": str(folder / "absent.log"),  # the server may create it in the directory
        "PROJECT": "${workspaceFolder:app}/x",
        "TOKEN_PATH": str(tmp_path / ".env"),
    }
    entry = {"command": "srv", "env": env}
    found = (str(file), str(folder), "${workspaceFolder:app}/x", str(tmp_path / ".env"))
    outcome, words = words_of(entry)
    assert outcome.suggested == found
    assert "--read" not in words
    outcome, words = words_of(entry, grant_arguments=True)
    assert outcome.suggested == found[3:]  # it may contain secrets
    assert [words[at + 1] for at, word in enumerate(words) if word == "--read"] == [*found[:3]]
    package = {"command": "npx", "args": ["@modelcontextprotocol/server-filesystem", str(folder)]}
    outcome, words = words_of({**package, "env": {"LOGS": str(file)}}, grant_arguments=True)
    assert words[:5] == ["run", "--profile", "filesystem", "--env", "LOGS"]
    assert words[5:7] == ["--read", str(file)]


def test_variables_that_are_not_the_servers_data_are_not_suggested(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    inside = str(tmp_path / "bin")
    env = {
        "LIST": f"{inside}:{inside}",
        "PATHS": "${workspaceFolder}:${workspaceFolder}/x",
        "HOME_DIRECTORY": str(tmp_path),
        "NEW_IN_HOME": str(tmp_path / "absent"),
        "UV_CACHE": inside,
        "npm_config_cache": inside,
        "NODE_PATH": inside,
        "VIRTUAL_ENV": inside,
        "URL": f"file://{inside}",
        "ENDPOINT": "/api/v1",
        "ROUTE": "/mcp",
        "SCRATCH": "/tmp",
        "NEW_SCRATCH": "/tmp/absent/absent",
        "LOG": "/dev/null",
        "BROWSER_PROGRAM": "/usr/bin/env",
        "MODE": "bin",
        "EMPTY": "",
    }
    env["DATA"] = inside  # a control
    assert words_of({"command": "srv", "env": env})[0].suggested == (inside,)


def test_a_clients_variable_counts_as_a_path_of_a_profile_that_grants_arguments():
    package = ["@modelcontextprotocol/server-filesystem", "${workspaceFolder}"]
    entry = {"command": "npx", "args": package}
    text = json.dumps({"mcpServers": {"a": entry}})
    (outcome,) = wrap(text, jsonc, REQUEST).outcomes
    assert "(${workspaceFolder})" in outcome.why
    assert "--grant-arguments" in outcome.hint
    words_of(entry, grant_arguments=True)


def test_a_package_gets_its_profile_unless_turned_off():
    entry = {"command": "uvx", "args": ["mcp-server-time", "--x"]}
    assert words_of(entry)[1] == ["run", "--profile", "time", "--", "pypi:mcp-server-time", "--x"]
    assert words_of(entry, use_profiles=False)[1] == ["run", "--", "pypi:mcp-server-time", "--x"]
    mine = words_of(entry, flags=("--profile", "fetch"))[1]
    assert mine == ["run", "--profile", "fetch", "--", "pypi:mcp-server-time", "--x"]


def test_a_variable_that_the_profile_sets_is_not_taken_from_the_client():
    env = {"PATH": "/usr/bin", "LANG": "C"}
    entry = {"command": "uvx", "args": ["mcp-server-fetch"], "env": env}
    name = "pypi:mcp-server-fetch"
    assert words_of(entry)[1] == ["run", "--profile", "fetch", "--env", "LANG", "--", name]
    mine = words_of(entry, flags=("--env", "PATH=/bin"))[1]
    assert mine == ["run", "--profile", "fetch", "--env", "LANG", "--env", "PATH=/bin", "--", name]
    plain = words_of(entry, use_profiles=False)[1]
    assert plain == ["run", "--env", "PATH", "--env", "LANG", "--", name]


def test_a_profile_that_grants_arguments_needs_the_users_consent(tmp_path):
    entry = {
        "command": "npx",
        "args": ["-y", "@modelcontextprotocol/server-filesystem", str(tmp_path)],
    }
    words = words_of(entry, grant_arguments=True)[1]
    name = "npm:@modelcontextprotocol/server-filesystem"
    assert words == ["run", "--profile", "filesystem", "--", name, str(tmp_path)]
    outcome, words = words_of(entry, use_profiles=False)
    assert words == ["run", "--", name, str(tmp_path)]
    assert outcome.suggested == (str(tmp_path),)


def test_a_package_is_pinned_on_request(monkeypatch):
    from corral.record import replace

    entry = {"command": "uvx", "args": ["--with", "x", "some-server"]}
    text = json.dumps({"mcpServers": {"a": entry}})
    seen = []

    def pin(package, flags):
        seen.append(flags)
        return replace(package, version="9.1"), ["/store/python"]

    def wrapped(request, *, pin=True):
        return wrap(
            text, jsonc, request, lambda one: wrap_command.check(one, REQUEST, install=pin, pin=pin)
        )

    monkeypatch.setattr(wrap_command, "check_run", lambda flags, command: None)
    monkeypatch.setattr(wrap_command, "pin_package", pin)
    rehearsed = []
    monkeypatch.setattr(wrap_command, "rehearse", lambda _, command: rehearsed.append(command))
    request = WrapRequest(corral=CORRAL, flags=("--with", "y"))
    words = json.loads(wrapped(request).text)["mcpServers"]["a"]["args"]
    assert words == ["run", "--with", "x", "--with", "y", "--", "pypi:some-server==9.1"]
    assert seen == [("--with", "x", "--with", "y")]
    assert rehearsed == [("/store/python",)]
    # Sanity check: without `--pin`, `wrap` writes no version.
    assert "9.1" not in wrapped(request, pin=False).text

    def fails(package, flags):
        raise SandboxError("no network", hint="plug it in")

    monkeypatch.setattr(wrap_command, "pin_package", fails)
    done = wrapped(REQUEST)
    assert (done.text, done.outcomes[0].state, done.outcomes[0].why) == (
        text,
        "refused",
        "no network",
    )


def test_a_server_that_this_host_would_not_run_is_refused(monkeypatch):
    def trial(flags, command):
        if "--read" in flags or command == ("x", "bad"):
            raise SandboxError("this host cannot", hint="another one can")

    monkeypatch.setattr(wrap_command, "check_run", trial)
    check = lambda one: wrap_command.check(one, REQUEST, install=False, pin=False)
    servers = {"a": {"command": "x", "args": ["bad"]}, "b": {"command": "y", "args": ["good"]}}
    text = json.dumps({"mcpServers": servers})
    done = wrap(text, jsonc, REQUEST, check)
    assert [(one.state, one.why, one.hint) for one in done.outcomes] == [
        ("refused", "this host cannot", "another one can"),
        ("wrapped", "", ""),
    ]
    done = wrap(text, jsonc, WrapRequest(corral=CORRAL, flags=("--read", "/x")), check)
    assert (done.text, {one.state for one in done.outcomes}) == (text, {"refused"})


def test_an_allowed_shell_is_wrapped():
    entry = {"command": "bash", "args": ["-c", "exec srv"]}
    words = words_of(entry, flags=("--allow-subprocess",))[1]
    assert words == ["run", "--allow-subprocess", "--", "bash", "-c", "exec srv"]


def test_a_server_whose_command_is_a_yaml_alias_is_refused():
    text = "x: &c node\nmcpServers:\n- name: a\n  command: *c\n- name: b\n  command: srv\n"
    done = wrap(text, yaml, REQUEST)
    assert [one.state for one in done.outcomes] == ["refused", "wrapped"]
    assert done.text.startswith(text.partition("- name: b")[0])


def test_two_servers_with_one_name_in_a_list_are_not_wrapped():
    text = (
        "mcpServers:\n- {name: a, command: x}\n- {name: a, command: y}\n- {name: b, command: z}\n"
    )
    done = wrap(text, yaml, REQUEST)
    assert {one.name: one.state for one in done.outcomes} == {"a": "refused", "b": "wrapped"}
    assert done.text.startswith(text.partition("- {name: b")[0])


@pytest.mark.parametrize(
    "text",
    [
        "mcpServers:\n- name: a\n  ? command\n  : x\n",
        "mcpServers:\n- name: a\n  command: x\n  args:\n  - # a - dash\n    y\n",
        "mcpServers:\n- name: a\n  command: x\n  args: !!seq []\n",
    ],
)
def test_lines_that_cannot_be_changed_safely_are_not_changed(text):
    """Check that corral leaves a server unchanged if the inserted text would break the YAML file.
    corral notices this when it loads the changed text.
    """
    text += "- name: b\n  command: y\n"
    done = wrap(text, yaml, REQUEST)
    first, second = done.outcomes
    assert (first.state, second.state) == ("refused", "wrapped")
    assert "changed safely" in first.why
    assert done.text.startswith(text.partition("- name: b")[0])


def test_a_changed_text_that_does_not_have_the_intended_values_is_refused(monkeypatch):
    """Make corral insert the wrong text, and check that corral notices the mistake."""
    monkeypatch.setattr(jsonc, "quote", lambda text: '"elsewhere"')
    text = '{"mcpServers": {"a": {"command": "node"}}}'
    done = wrap(text, jsonc, REQUEST)
    assert (done.text, done.outcomes[0].state) == (text, "refused")


def test_a_server_that_cannot_be_unwrapped_does_not_stop_the_others():
    """Add a key between the command and the arguments of `a`, so that the record of `a` no longer
    matches. corral must still restore `b`.
    """
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}'
    done = wrap(text, jsonc, REQUEST)
    edited = done.text.replace('"args"', '"timeout": 5, "args"', 1)
    forced = unwrap(edited, jsonc, records(done), force=True)
    assert [one.state for one in forced.outcomes] == ["refused", "restored"]
    assert json.loads(forced.text)["mcpServers"]["a"]["timeout"] == 5
    assert [kept.key_path[-1] for kept in forced.originals] == ["a"]
    derived = unwrap(edited, jsonc, records(done))
    assert json.loads(derived.text)["mcpServers"]["a"] == {"command": "x", "timeout": 5, "args": []}


def test_a_program_with_another_name_is_not_corral():
    entry = {"command": os.path.abspath(__file__), "args": ["run", "--", "x"]}
    assert words_of(entry)[1] == ["run", "--", entry["command"], *entry["args"]]


def state_of(entry, **request):
    text = json.dumps({"mcpServers": {"a": entry}})
    return wrap(text, jsonc, WrapRequest(corral=CORRAL, **request)).outcomes[0].state


STEERING = (
    *CERTIFICATES, *VARIABLES, *EXCEPTIONS, *MANAGED_BY_VARIABLE, "XDG_RUNTIME_DIR", "HOSTALIASES",
    "LOCALDOMAIN", "RES_OPTIONS", "SSLKEYLOGFILE",
)  # fmt: skip


@pytest.mark.parametrize("name", STEERING)
def test_a_file_cannot_choose_corrals_proxy_or_certificates(name, monkeypatch):
    """Check that an entry is refused if it sets one of these environment variables. They choose
    proxies, certificates, name lookups or version managers.

    A proxy could read everything that is sent to allowed hosts. A DNS search list could resolve
    allowed names to other hosts. A certificate variable could name a secret file, which the target
    could then read. A version manager's directory could contain symlinks to any file.
    """
    entry = {"command": "srv", "env": {name: "/home/me/.ssh"}}
    monkeypatch.delenv(name, raising=False)
    assert state_of(entry) == "refused"
    monkeypatch.setenv(name, "/home/me/.ssh")  # the user's own environment has the same value
    assert state_of(entry) == "wrapped"
    for value in (f"${{{name}}}", f"${{env:{name}}}", None):
        assert state_of({"command": "srv", "env": {name: value}}) == "wrapped"
    assert state_of({"command": "srv", "env": {name: f"${{{name}:-/root}}"}}) == "refused"


@pytest.mark.skipif(os.name != "posix", reason="PATH has colons only on POSIX")
@pytest.mark.parametrize(
    ("value", "state"),
    [
        ("${workspaceFolder}/bin:${PATH}", "refused"),
        ("${CLAUDE_PROJECT_DIR}/bin:/usr/bin", "refused"),
        ("/home/me/project/bin:/usr/bin", "refused"),
        ("/usr/../home/me/project/bin", "refused"),
        ("${HOME}/project/bin:${PATH}", "refused"),
        ("${HOME}/.nvm/bin:${env:PATH}", "wrapped"),
        ("/opt/node/bin:/usr/bin:relative", "wrapped"),
    ],
)
def test_a_project_cannot_choose_the_installer(value, state, monkeypatch):
    """Check that an entry is refused if it adds a directory to PATH that is not on the user's own
    PATH. Otherwise corral might find the installer in this directory.
    """
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PATH", "/opt/node/bin:/home/me/.nvm/bin:/usr/bin")
    env = {"PATH": value}
    assert state_of({"command": "npx", "args": ["-y", "pkg"], "env": env}) == state
    wrapped = {"command": CORRAL, "args": ["run", "--", "npm:pkg"], "env": env}
    assert state_of(wrapped) == {"wrapped": "already"}.get(state, state)
    assert state_of({"command": "node", "args": ["x.js"], "env": env}) == state


@pytest.mark.skipif(os.name != "posix", reason="PATH has colons only on POSIX")
def test_a_version_manager_may_be_on_the_path_of_a_command(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PATH", "/usr/bin")
    env = {"PATH": "${HOME}/.nvm/versions/node/v22/bin:/opt/homebrew/bin:/usr/bin"}
    assert state_of({"command": "node", "args": ["x.js"], "env": env}) == "wrapped"
    assert state_of({"command": "npx", "args": ["-y", "pkg"], "env": env}) == "refused"


@pytest.mark.parametrize(
    "name",
    [
        "npm_config_registry",
        "NPM_CONFIG_USERCONFIG",
        "PIP_INDEX_URL",
        "UV_FIND_LINKS",
        "VOLTA_FEATURE_PNPM",
        "MISE_NODE_VERSION",
    ],
)
def test_a_project_cannot_choose_the_registry(name):
    """Check that an entry is refused if its `env` chooses a registry. The URL could contain
    ${TOKEN} or any other variable of the user, and the installer would send its value to the
    registry.
    """
    env = {name: "https://registry.example/${AWS_SECRET_ACCESS_KEY}"}
    assert state_of({"command": "npx", "args": ["-y", "pkg"], "env": env}) == "refused"
    assert state_of({"command": "uvx", "args": ["pkg"], "env": env}) == "refused"
    assert state_of({"command": "node", "args": ["x.js"], "env": env}) == "wrapped"
    assert state_of({"command": "npx", "args": ["-y", "pkg"], "env": {name: None}}) == "wrapped"


@pytest.mark.parametrize(
    "more",
    [
        {"env": {"NODE_OPTIONS": "--import data:text/javascript,0"}},
        {"args": ["--with", "evil", "mcp-server-sqlite"]},
    ],
)
def test_a_profile_applies_only_to_an_unmodified_package(more):
    """Check that corral refuses to apply a profile if the entry also starts code from outside the
    package. A profile's grants are meant for one well-known server, and the other code would get
    them too.
    """
    entry = {"command": "uvx", "args": ["mcp-server-sqlite"]}
    assert state_of(entry) == "wrapped"
    assert state_of({**entry, **more}) == "refused"
    assert state_of({**entry, **more}, use_profiles=False) == "wrapped"
    assert state_of({**entry, **more}, flags=("--profile", "sqlite")) == "wrapped"
    # The profile `time` grants nothing beyond the defaults, so here the entry may start other code.
    words = [word.replace("sqlite", "time") for word in {**entry, **more}["args"]]
    assert state_of({**entry, **more, "args": words}) == "wrapped"


def test_a_wrapped_entry_is_shown_with_its_flags(tmp_path):
    entry = {"command": CORRAL, "args": ["run", "--write", "/", "--", "x"]}
    text = json.dumps({"mcpServers": {"a": entry}})
    [outcome] = wrap(text, jsonc, REQUEST).outcomes
    assert (outcome.state, outcome.command) == ("already", tuple(entry["args"]))
    named = {"command": "corral", "args": ["run", "--", "x"], "env": {"PATH": "/usr/bin"}}
    done = wrap(json.dumps({"mcpServers": {"a": named}}), jsonc, WrapRequest(corral="corral"))
    assert done.outcomes[0].why.startswith("PATH in the server's env would change corral")
    for other in (str(tmp_path / "corral"), "./corral", "corral"):
        [outcome] = wrap(text.replace(CORRAL, other), jsonc, REQUEST).outcomes
        assert (outcome.state, outcome.why) == (
            "refused",
            f"it is started by {other}, which is not this corral",
        )


@pytest.mark.skipif(os.name != "posix", reason="uses POSIX program names")
def test_paths_in_a_servers_files_need_a_grant(monkeypatch, tmp_path):
    from corral.cli import approve

    home = tmp_path / "home"
    for name in ("server", "private"):
        (home / name).mkdir(parents=True)
        (home / name / "package.json").write_text("{}")
    (home / "server" / "node_modules").mkdir()
    (home / "server" / "node_modules" / "x").symlink_to(home / "private")
    (home / "server" / "main.js").touch()
    node = tmp_path / "bin" / "node"
    node.parent.mkdir()
    node.write_bytes(b"\x7fELF")
    node.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(wrap_command, "check_run", lambda flags, command: None)
    monkeypatch.setattr(wrap_command, "prepare", resolved)
    entry = {"command": str(node), "args": [str(home / "server" / "main.js")]}
    text = json.dumps({"mcpServers": {"a": entry}})

    def words(*, dry_run=False):
        check = lambda one: wrap_command.check(
            one, REQUEST, install=False, pin=False, dry_run=dry_run
        )
        return wrap(text, jsonc, REQUEST, check)

    added = ["run", "--read", str(home / "private"), "--", str(node)]
    monkeypatch.setattr(approve, "is_on_terminal", lambda: False)
    assert (words().text, words().outcomes[0].state) == (text, "refused")
    assert f"--read {home}/private" in words().outcomes[0].hint
    assert json.loads(words(dry_run=True).text)["mcpServers"]["a"]["args"][:5] == added
    monkeypatch.setattr(approve, "is_on_terminal", lambda: True)
    for answer in (False, True):
        monkeypatch.setattr(approve, "ask", lambda question, answer=answer: answer)
        done = words()
        assert done.outcomes[0].state == ("wrapped" if answer else "refused")
    assert json.loads(done.text)["mcpServers"]["a"]["args"][:5] == added


def resolved(command, sources, *, server=(), environment, cwd, notify):
    """Take the place of `prepare` in a test. This function only finds the server's files, so it
    works on any host.
    """
    from corral.programs.resolve import resolve

    home = os.environ["HOME"]
    resolve(command, environment=environment, cwd=cwd, home=home, subprocess=False)


def test_on_windows_an_entry_is_not_wrapped_if_no_such_package_was_ever_started(monkeypatch):
    """Check that corral leaves an entry unchanged on Windows if no npm package was ever started on
    this machine, because corral might not be able to start one. The hint names a command to try.
    """
    entry = '{"command": "cmd", "args": ["/c", "npx", "-y", "some-server@1.2.3"]}'
    text = f'{{"mcpServers": {{"a": {entry}, "good": {{"command": "node"}}}}}}'
    # Sanity check: the entry is wrapped if npm packages are known to work on this machine.
    assert wrap(text, jsonc, REQUEST).outcomes[0].state == "wrapped"
    monkeypatch.setattr("corral.clients.wrap.why_unproven", lambda kind: f"no {kind} here yet")
    left, good = wrap(text, jsonc, REQUEST).outcomes
    assert (left.state, left.why, good.state) == ("left", "no npm here yet", "wrapped")
    assert "try it with `corral run npm:some-server@1.2.3`" in left.hint
