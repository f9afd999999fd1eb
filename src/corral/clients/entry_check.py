"""Refuse each part of a server's entry, and of a file for servers, that corral does not know.

The files of a project are written by other people. A client may run a program that a key names,
such as `headersHelper` in Claude Code, and corral cannot know all such keys. So `wrap --check`
accepts only the keys and the forms of values that are listed here, because they do not make a
client start anything. The sources are the pages in `docs/clients`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from corral.clients import catalogue
from corral.clients.configured_servers import IS_SANDBOXED, SHAPES, ConfiguredServer, is_entry
from corral.clients.server_needs import (
    UnfitError,
    is_container,
    refuse_elsewhere,
    refuse_project_program,
    refuse_project_variables,
    refuse_shared_home,
    refuse_unencodable,
    refuse_unsafe_variables,
)
from corral.clients.wrap import find_granted
from corral.formats.jsonc import STRING_OR_COMMENT
from corral.safe_text import shown

# A Form says which values are accepted:
# - SCALAR: every text, number and truth value
# - a set: the values in the set
# - a list with one Form: every list whose items have this Form
# - a dict: every table whose keys are in the dict, with values of the Form beside the key. ANY_KEY
#   stands for all other keys.
# - a tuple: every value that has one of the Forms in the tuple
Form: TypeAlias = "str | frozenset[str | bool] | list[Form] | dict[str, Form] | tuple[Form, ...]"
SCALAR, ANY_KEY = "a scalar", "*"
UNKNOWN: Form = ()
WORDS: Form = [SCALAR]
TABLE: Form = {ANY_KEY: SCALAR}
SANDBOX: Form = {ANY_KEY: ({ANY_KEY: (SCALAR, WORDS)}, SCALAR), "enabled": frozenset((True,))}
COMMENTS = ("_comment", "$comment", "//")
SCALARS = (
    "name", "serverName", "display_name", "description", "version", "source", "gallery",
    "faviconUrl", "type", "transport", "transportType", "url", "serverUrl", "httpUrl", "uri", "cmd",
    "cwd", "working_directory", "envFile", "disabled", "enabled", "required", "bundled", "remote",
    "trust", "alwaysLoad", "start_on_launch", "sandboxEnabled", "timeout", "connectionTimeout",
    "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "discoveryTimeoutMs",
    "supports_parallel_tool_calls", "default_tools_approval_mode", "bearer_token_env_var",
    "oauth_resource", "authProviderType", "targetAudience", "targetServiceAccount", "apiKey",
    *COMMENTS,
)  # fmt: skip
LISTS = (
    "args", "env_keys", "autoApprove", "alwaysAllow", "disabledTools", "disabled_tools",
    "enabledTools", "enabled_tools", "includeTools", "excludeTools", "available_tools", "scopes",
    "oauthScopes", "watchPaths",
)  # fmt: skip
TABLES = ("env", "envs", "environment", "headers", "http_headers", "env_http_headers")
OAUTH = (
    "enabled", "clientId", "client_id", "clientSecret", "client_secret", "callbackPort", "scope",
    "redirectUri", "authServerMetadataUrl", "authorizationUrl", "tokenUrl", "issuer",
    "registrationUrl", "tokenParamName",
)  # fmt: skip
ENTRY: dict[str, Form] = {
    **dict.fromkeys(SCALARS, SCALAR), **dict.fromkeys(LISTS, WORDS), **dict.fromkeys(TABLES, TABLE),
    "command": (SCALAR, WORDS, {"path": SCALAR, "args": WORDS, "env": TABLE}),
    "env_vars": (WORDS, [(SCALAR, {"name": SCALAR, "source": SCALAR})]),
    "tools": (WORDS, {ANY_KEY: {"approval_mode": SCALAR}}),
    "oauth": (SCALAR, {
        **dict.fromkeys(OAUTH, SCALAR), "scopes": (SCALAR, WORDS), "audiences": WORDS,
    }),
    "auth": {ANY_KEY: (SCALAR, WORDS)},
    "dev": {"watch": (SCALAR, WORDS)},
    "requestInit": {"headers": TABLE},
    "requestOptions": {"headers": TABLE, "timeout": SCALAR, "verifySsl": SCALAR},
    "settings": {},
    "sandbox": SANDBOX,
}  # fmt: skip
INPUT: Form = {
    "type": frozenset(("promptString", "pickString")),
    "options": [(SCALAR, {"label": SCALAR, "value": SCALAR})],
    **dict.fromkeys(("id", "description", "default", "password"), SCALAR),
}  # fmt: skip
FILE: dict[str, Form] = {
    **dict.fromkeys(("$schema", "name", "version", "schema", *COMMENTS), SCALAR),
    **dict.fromkeys(("mcp_oauth_callback_port", "mcp_oauth_callback_url"), SCALAR),
    "mcp_oauth_credentials_store": SCALAR, "inputs": [INPUT], "sandbox": SANDBOX,
}  # fmt: skip
"""The keys beside the table of servers, in a file that is only for servers."""
SETTINGS: dict[str, Form] = {"allowed": WORDS, "excluded": WORDS, "inputs": [INPUT]}
"""The settings beside the servers in the table `mcp`."""
# Crush runs `$(...)`, and VS Code runs its own command for `${command:...}`.
RUN_BY_CLIENT = re.compile(r"\$\(|`|\$\{command:")
UNUSED = ("description", *COMMENTS)
"""Keys in which the client does not run anything."""
# opencode replaces `{env:NAME}` and `{file:PATH}` in the text of a file before it parses the file.
REPLACED = re.compile(r"\{(?:env|file):([^{}\"\\\n]+\})?")


def refuse_doubtful(server: ConfiguredServer, path: str, *, own: bool, strict: bool) -> None:
    """Refuse a server that is wrapped or left alone, but might start something outside of its
    sandbox. Raise UnfitError or UnchosenReadsError.

    `own` is false if another program named corral starts the server. Accept this program, because
    the file may have been wrapped on another machine. But refuse it if the project itself may
    contain it. `strict` also refuses entries with unknown keys.
    """
    project = catalogue.find_project(path)
    if server.command is not None:
        is_found = not os.path.dirname(server.argv[0])
        if is_container(server) or (server.is_wrapped and (is_found or not own)):
            refuse_project_program(server, project)
        if not own:
            refuse_project_variables(server, project)
        refuse_unencodable(server)
        refuse_unsafe_variables(server)
    if server.is_wrapped:
        refuse_elsewhere(server, project, find_granted(server.run_flags))
        refuse_shared_home(server, server.run_flags, project)
    if strict:
        _refuse_unknown_keys(server)
        place = os.path.join(".vscode", "mcp.json")
        if server.why == IS_SANDBOXED and not os.path.abspath(path).endswith(os.sep + place):
            raise UnfitError(
                "only VS Code has a sandbox for it (sandboxEnabled), and this is another file",
                hint=f"move it to {place}, or remove sandboxEnabled and wrap it",
            )


def _refuse_unknown_keys(server: ConfiguredServer) -> None:
    for key, value in server.entry.items():
        name, is_known, run = shown(key), key in ENTRY, RUN_BY_CLIENT.search(str(value))
        if is_known and _fits(value, ENTRY[key]) and (key in UNUSED or not run):
            continue
        why = f"corral does not know {'this form of ' if is_known else ''}its key {name}"
        why = f"its key {name} contains {run[0]}" if is_known and run else why
        raise UnfitError(
            f"{why}, and a client might start a program because of it",
            hint=f"remove {run[0] if is_known and run else f'the key {name}'} from the entry",
        )


def find_unknown_parts(path: str, data: object, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, reason, hint) for each part of a file, outside of its servers, with which a
    client might start a program.
    """
    inside = os.path.basename(os.path.dirname(os.path.abspath(path)))
    is_for_servers = "mcp" in os.path.basename(path).lower() or inside == "mcpServers"
    tables = {shape[0] for shape in SHAPES}
    top = {str(key): value for key, value in data.items()} if isinstance(data, Mapping) else {}
    judged = {
        key: _fits(value, FILE.get(key, UNKNOWN))
        for key, value in top.items()
        if key not in tables and (is_for_servers or key.lower().startswith("mcp"))
    }
    mcp = top.get("mcp")
    for key, value in mcp.items() if isinstance(mcp, Mapping) else ():
        is_server = key == "servers" or (isinstance(value, Mapping) and is_entry(value))
        judged[f"mcp.{key}"] = is_server or _fits(value, SETTINGS.get(str(key), ENTRY))
    for key in [key for key, is_known in judged.items() if not is_known]:
        why = "corral does not know this key, and a client might start a program because of it"
        is_server = key in top and isinstance(top[key], Mapping) and is_entry(top[key])
        hint = (
            "move it into the table 'mcpServers'" if is_server else f"remove the key {shown(key)}"
        )
        yield key, why, hint
    for part in STRING_OR_COMMENT.finditer(text):
        for found in REPLACED.finditer(part[0]):
            if not part[1] or not found[1]:
                why = "opencode replaces this text, and could then read other servers in the file"
                yield shown(found[0]), why, "remove it, or write it as a whole into one string"


def _fits(value: object, form: Form) -> bool:
    """Return whether a value has this form. A value of null fits every form."""
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(value, dict):
        names = {str(key): below for key, below in value.items()}
        return isinstance(form, dict) and all(
            "{" not in key and _fits(below, form.get(key, form.get(ANY_KEY, UNKNOWN)))
            for key, below in names.items()
        )
    if isinstance(value, list):
        return isinstance(form, list) and all(_fits(item, form[0]) for item in value)
    return value is None or form == SCALAR or (isinstance(form, frozenset) and value in form)
