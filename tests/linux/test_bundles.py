"""Test `corral run server.mcpb` and `corral run org.example/name`: unpack, ask, run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import stat
import zipfile

import pytest
from test_approve import on_terminal

REFUSED = 125
SERVER = """
import json, os, sys
def look(path):
    try:
        return sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()
    except OSError as error:
        return error.strerror
def change(path):
    try:
        open(path, "a").close()
        return "written"
    except OSError as error:
        return error.strerror
print(json.dumps({
    "args": sys.argv[1:], "seen": [look(path) for path in sys.argv[1:] if path.startswith("/")],
    "changed": [change(path + "/new") for path in sys.argv[1:] if os.path.isdir(path)],
    "env": {key: value for key, value in os.environ.items() if key.startswith(("T_", "PYTHON"))},
    "own": change(__file__),
}))
"""
ONE_USER = pytest.mark.parametrize("user", ["ordinary"], indirect=True)


def manifest(**more: object) -> dict:
    server = {
        "type": "python",
        "entry_point": "server/main.py",
        "mcp_config": {"command": "python3", "args": ["${__dirname}/server/main.py"], "env": {}},
    }
    return {
        "manifest_version": "0.3",
        "name": "hello",
        "version": "1.0.0",
        "server": server,
        **more,
    }


def start(arguments: list[str], **variables: str) -> dict:
    words = ["${__dirname}/server/main.py", *arguments]
    config = {"command": "python3", "args": words, "env": variables}
    return {"type": "python", "entry_point": "server/main.py", "mcp_config": config}


def packed(data: object, files: dict[str, str | bytes] | None = None) -> bytes:
    held = io.BytesIO()
    content = {"manifest.json": json.dumps(data), "server/main.py": SERVER, **(files or {})}
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in content.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (
                stat.S_IFREG | (0o755 if name.startswith("bin/") else 0o644)
            ) << 16
            archive.writestr(info, text)
    return held.getvalue()


def put(user, scratch, data: object, files=None, name: str = "hello.mcpb") -> str:
    path = scratch / name
    path.write_bytes(packed(data, files))
    os.chown(path, user.uid, user.uid)
    return str(path)


def folder(user, scratch, name: str) -> pathlib.Path:
    path = scratch / name
    path.mkdir()
    (path / "note").touch()
    for one in (path, path / "note"):
        os.chown(one, user.uid, user.uid)
    return path


def said(done) -> dict:
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def entries(user, env) -> list[dict]:
    return json.loads(user.corral("cache", "ls", "--json", env=env).stdout)


def test_a_bundle_runs_from_the_store_by_its_digest(user, env, scratch):
    path = put(
        user, scratch, manifest(server=start(["a"], T_ONE="1", PYTHONPATH="${__dirname}/lib"))
    )
    answer = said(user.corral("run", path, "b", env=env))
    (row,) = entries(user, env)
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    assert (row["key"], row["integrity"]) == (f"bundle:{digest}", f"sha256-{digest}")
    assert answer["args"] == ["a", "b"]
    assert answer["env"]["T_ONE"] == "1"
    assert answer["env"]["PYTHONPATH"] == f"{row['path']}/lib"
    assert answer["own"] != "written"
    before = os.stat(row["path"]).st_ino
    assert said(user.corral("run", path, env=env))["args"] == ["a"]
    assert os.stat(entries(user, env)[0]["path"]).st_ino == before
    path = put(user, scratch, manifest(version="1.0.1", server=start(["new"])))
    assert said(user.corral("run", path, env=env))["args"] == ["new"]
    assert len(entries(user, env)) == 2


@ONE_USER
@pytest.mark.parametrize("tier", ["bare"], indirect=True)
def test_a_bundle_runs_without_namespaces(user, env, scratch):
    path = put(user, scratch, manifest(server=start(["a"])))
    answer = said(user.corral("run", path, env=env))
    assert answer["args"] == ["a"]
    assert answer["own"] != "written"


SETTINGS = {
    "dirs": {"type": "directory", "title": "d", "multiple": True, "required": True},
    "key": {"type": "string", "title": "k", "sensitive": True, "required": True},
    "count": {"type": "number", "title": "n", "default": 3, "min": 1, "max": 5},
    "loud": {"type": "boolean", "title": "l", "default": False},
}
CONFIGURED = start(
    ["${user_config.dirs}", "--count=${user_config.count}"],
    T_KEY="${user_config.key}", T_LOUD="${user_config.loud}", T_SEP="a${/}b",
)  # fmt: skip


def test_settings_that_the_user_enters_become_grants_and_secrets_of_the_bundle(user, env, scratch):
    """Check that the target can read the directories in the bundle's settings, but not another
    directory that is only an argument.
    """
    path = put(user, scratch, manifest(server=CONFIGURED, user_config=SETTINGS))
    one, two, other = (folder(user, scratch, name) for name in ("one", "two", "other"))
    flags = ["--config", f"dirs={one}", "--config", f"dirs={two}", "--config", "key=s3cret"]
    done = user.corral("run", *flags, path, str(other), env=env)
    answer = said(done)
    assert answer["args"] == [str(one), str(two), "--count=3", str(other)]
    assert answer["seen"] == [["note"], ["note"], "No such file or directory"]
    assert all(text != "written" for text in answer["changed"])
    assert answer["env"] == {"T_KEY": "s3cret", "T_LOUD": "false", "T_SEP": "a/b"}
    shown = user.corral("explain", "--json", *flags, path, env=env)
    assert b"s3cret" not in shown.stdout + shown.stderr
    assert json.loads(shown.stdout)["secrets"] == ["T_KEY"]
    written = user.corral("run", "--write", str(one), *flags, path, env=env)
    assert said(written)["changed"][0] == "written"


@ONE_USER
def test_values_that_do_not_fit_the_settings_are_refused(user, env, scratch):
    path = put(user, scratch, manifest(server=CONFIGURED, user_config=SETTINGS))
    one = folder(user, scratch, "one")
    good = {"dirs": str(one), "key": "x"}
    for change, why in (
        ({"key": None}, "needs a value for 'key'"),
        ({"dirs": None}, "needs a value for 'dirs'"),
        ({"dirs": str(scratch / "absent")}, "is not a directory"),
        ({"dirs": path}, "is not a directory"),
        ({"count": "9"}, "outside of the bundle"),
        ({"count": "nan"}, "outside of the bundle"),
        ({"count": "x"}, "must be a number"),
        ({"loud": "yes"}, "must be true or false"),
        ({"unknown": "1"}, "has no setting 'unknown'"),
    ):
        values = {key: value for key, value in {**good, **change}.items() if value is not None}
        flags = [word for key, value in values.items() for word in ("--config", f"{key}={value}")]
        done = user.corral("run", *flags, path, env=env)
        assert (done.returncode, why in done.stderr.decode()) == (REFUSED, True), (why, done.stderr)
    kept = pathlib.Path(env["XDG_CONFIG_HOME"], "corral", "bundles.toml")
    kept.write_text(f'[hello]\ndirs = ["{one}"]\nkey = "kept"\nloud = true\n')
    os.chown(kept, user.uid, user.uid)
    kept.chmod(0o600)
    assert user.corral("approve", "--yes", path, env=env).returncode == 0
    assert said(user.corral("run", path, env=env))["env"]["T_KEY"] == "kept"
    kept.chmod(0o666)
    assert b"can be written by other users" in user.corral("run", path, env=env).stderr


@ONE_USER
def test_a_secret_may_come_from_the_environment_instead(user, env, scratch):
    settings = {"key": SETTINGS["key"]}
    path = put(
        user, scratch, manifest(server=start([], T_KEY="${user_config.key}"), user_config=settings)
    )
    done = user.corral("run", "--secret", "T_KEY", path, env={**env, "T_KEY": "outside"})
    assert said(done)["env"]["T_KEY"] == "outside"


def test_a_bundles_request_counts_once_it_is_approved(user, env, scratch):
    wanted = folder(user, scratch, "wanted")
    meta = {"io.corral": {"filesystem": {"read": [str(wanted)]}}}
    path = put(user, scratch, manifest(server=start([str(wanted)]), _meta=meta))
    done = user.corral("run", path, env=env)
    assert done.returncode == REFUSED
    assert f"to read {wanted}" in done.stderr.decode()
    assert f"corral approve {path}" in done.stderr.decode()
    assert user.corral("approve", "--yes", path, env=env).returncode == 0
    assert said(user.corral("run", path, env=env))["seen"] == [["note"]]
    # Another bundle with the same request needs its own approval.
    other = put(user, scratch, manifest(server=start([str(wanted)]), _meta=meta), {"x": "y"})
    assert user.corral("run", other, env=env).returncode == REFUSED


@ONE_USER
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", REFUSED)], ids=["yes", "no"])
def test_a_bundles_request_is_asked_on_a_terminal(user, env, scratch, answer, code):
    path = put(user, scratch, manifest(_meta={"io.corral": {"subprocess": {"allow": True}}}))
    done, out, shown = on_terminal(user, env, answer, "run", path)
    assert (done, bool(out)) == (code, code == 0)
    assert "start other programs" in shown
    assert user.corral("run", path, env=env).returncode == code  # the answer is remembered


@ONE_USER
def test_approve_marks_what_a_new_version_of_a_bundle_asks_for_in_addition(user, env, scratch):
    old = {"io.corral": {"network": {"allow": ["api.example.com"]}, "subprocess": {"allow": True}}}
    path = put(user, scratch, manifest(_meta=old))
    assert user.corral("approve", "--yes", path, env=env).returncode == 0
    new = {"io.corral": {"network": {"allow": ["api.example.com", "evil.example.com:8443"]}}}
    path = put(user, scratch, manifest(version="2.0.0", _meta=new))
    lines = user.corral("approve", "--yes", path, env=env).stdout.decode().splitlines()
    assert "  connect to api.example.com on ports 80 and 443" in lines
    assert "  connect to evil.example.com:8443 (new)" in lines
    assert "it no longer asks to: start other programs" in lines
    listed = user.corral("approve", "--list", env=env).stdout.decode()
    assert listed.count("bundle hello") == 2
    assert user.corral("approve", "--revoke", "hello", env=env).returncode == 0
    assert user.corral("run", path, env=env).returncode == REFUSED


@ONE_USER
def test_a_bundles_default_path_needs_the_users_approval(user, env, scratch):
    wanted = folder(user, scratch, "wanted")
    settings = {"dir": {"type": "directory", "title": "d", "default": str(wanted)}}
    path = put(user, scratch, manifest(server=start(["${user_config.dir}"]), user_config=settings))
    done = user.corral("run", path, env=env)
    assert (done.returncode, f"to read {wanted}" in done.stderr.decode()) == (REFUSED, True)
    own = folder(user, scratch, "own")
    done = user.corral("run", "--config", f"dir={own}", path, env=env)
    assert said(done)["seen"] == [["note"]]  # typed flags need no approval


@ONE_USER
def test_platform_overrides_replace_the_arguments(user, env, scratch):
    server = start(["plain"])
    own = {"args": ["${__dirname}/server/main.py", "linux"], "env": {"T_SYSTEM": "linux"}}
    server["mcp_config"]["platform_overrides"] = {"linux": own, "win32": {"command": "x.exe"}}
    answer = said(user.corral("run", put(user, scratch, manifest(server=server)), env=env))
    assert (answer["args"], answer["env"]) == (["linux"], {"T_SYSTEM": "linux"})
    elsewhere = manifest(compatibility={"platforms": ["win32"]})
    done = user.corral("run", put(user, scratch, elsewhere), env=env)
    assert b"is for 'win32' only" in done.stderr


@ONE_USER
def test_a_binary_bundle_runs(user, env, scratch):
    """Check that the bundle's program can be executed, although the bundle marks the file as not
    executable.
    """
    server = {
        "type": "binary",
        "entry_point": "server/tool",
        "mcp_config": {"command": "${__dirname}/server/tool", "args": ["hello"]},
    }
    path = put(
        user,
        scratch,
        manifest(server=server),
        {"server/tool": pathlib.Path("/bin/echo").read_bytes()},
    )
    assert user.corral("run", path, env=env).stdout == b"hello\n"


@ONE_USER
@pytest.mark.rig("node")
def test_a_node_bundle_runs(user, env, scratch):
    server = {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {"command": "node", "args": ["${__dirname}/server/index.js"]},
    }
    files = {
        "server/index.js": "console.log(require('x'))",
        "node_modules/x/index.js": "module.exports = 7",
    }
    path = put(user, scratch, manifest(server=server), files, name="old.dxt")
    assert user.corral("run", path, env=env).stdout == b"7\n"


@ONE_USER
def test_a_uv_bundle_has_its_dependencies_installed_first(user, env, scratch, registry, tools):
    registry.publish_wheel("dep", "2.0.0", {"dep.py": "name = 'dep 2'"}, {})
    server = {"type": "uv", "entry_point": "src/server.py"}
    files = {
        "src/server.py": "import beside, dep; print(dep.name, beside.x)",
        "src/beside.py": "x = 1",
        "pyproject.toml": '[project]\nname = "x"\nversion = "1"\ndependencies = ["dep>=1"]\n',
    }
    env = {**env, "PATH": f"{tools}:{env['PATH']}"}
    path = put(user, scratch, manifest(manifest_version="0.4", server=server), files)
    done = user.corral("run", path, env=env)
    assert done.stdout == b"dep 2 1\n", done.stderr.decode()
    files["pyproject.toml"] = files["pyproject.toml"].replace("dep>=1", "dep @ http://evil/x.whl")
    done = user.corral(
        "run", put(user, scratch, manifest(manifest_version="0.4", server=server), files), env=env
    )
    assert b"does not name a package in an index" in done.stderr


@ONE_USER
def test_a_command_that_leads_out_of_the_bundle_is_refused(user, env, scratch):
    own = scratch / "own.py"
    own.write_text("print('mine')")
    os.chown(own, user.uid, user.uid)
    config = {"command": "python3", "args": [str(own)]}
    server = {"type": "python", "entry_point": "server/main.py", "mcp_config": config}
    done = user.corral("run", put(user, scratch, manifest(server=server)), env=env)
    assert (done.returncode, f"leads to {scratch}, which" in done.stderr.decode()) == (
        REFUSED,
        True,
    )
    server["mcp_config"] = {"command": "npx", "args": ["-y", "thing"]}
    done = user.corral("run", put(user, scratch, manifest(server=server)), env=env)
    assert (done.returncode, b"fetches its program" in done.stderr) == (REFUSED, True)


@ONE_USER
def test_a_malicious_bundle_leaves_nothing_in_the_store(user, env, scratch):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest()))
        archive.writestr("../../../evil", "x")
    path = scratch / "evil.mcpb"
    path.write_bytes(held.getvalue())
    done = user.corral("run", str(path), env=env)
    assert (done.returncode, b"leads out of the archive" in done.stderr) == (REFUSED, True)
    assert done.stderr.startswith(f"corral: {path}: ".encode())
    for data, why in ((b"nothing", b"not a zip archive"), (packed([]), b"must have a JSON object")):
        path.write_bytes(data)
        done = user.corral("run", str(path), env=env)
        assert (done.returncode, why in done.stderr) == (REFUSED, True)
    assert entries(user, env) == []
    cache = pathlib.Path(env["XDG_CACHE_HOME"])
    assert [path for path in cache.rglob("*") if path.name == "evil"] == []
    assert list((cache / "corral-staging").iterdir()) == []


def serve_bundle(registry, content: bytes, *, sha256: str = "", **more: object) -> None:
    registry.files["/download/hello.mcpb"] = content
    package = {
        "registryType": "mcpb",
        "identifier": f"{registry.url}/download/hello.mcpb",
        "fileSha256": sha256 or hashlib.sha256(content).hexdigest(),
        "transport": {"type": "stdio"},
        **more,
    }
    registry.publish_server("org.example/hello", "1.0.0", packages=[package])


def test_a_registrys_server_is_fetched_once_and_verified(user, env, registry):
    serve_bundle(registry, packed(manifest(server=start(["from", "bundle"]))))
    done = user.corral("run", "org.example/hello@1.0.0", "more", env=env)
    assert said(done)["args"] == ["from", "bundle", "more"]
    asked = list(registry.asked)
    assert asked == ["/v0.1/servers/org.example/hello/versions/1.0.0", "/download/hello.mcpb"]
    assert said(user.corral("run", "org.example/hello@1.0.0", env=env))["args"] == [
        "from",
        "bundle",
    ]
    assert registry.asked == asked


@ONE_USER
def test_a_download_with_another_digest_is_refused(user, env, registry):
    good = packed(manifest())
    serve_bundle(
        registry, packed(manifest(), {"evil": "x"}), sha256=hashlib.sha256(good).hexdigest()
    )
    done = user.corral("run", "org.example/hello", env=env)
    assert (done.returncode, b"do not run it" in done.stderr) == (REFUSED, True)
    assert [row["kind"] for row in entries(user, env)] == ["registry"]
    registry.files["/download/hello.mcpb"] = good
    assert said(user.corral("run", "org.example/hello", env=env))["args"] == []


@ONE_USER
@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_a_publisher_cannot_add_arguments_to_an_approved_bundle(user, env, scratch, registry):
    """Approve a bundle. Then let a publisher publish it in a registry with an additional argument.
    corral must ask for a new approval.
    """
    wanted = folder(user, scratch, "wanted")
    meta = {"io.corral": {"filesystem": {"read": [str(wanted)]}}}
    path = put(user, scratch, manifest(_meta=meta))
    assert user.corral("approve", "--yes", path, env=env).returncode == 0
    content = pathlib.Path(path).read_bytes()
    more = [{"type": "positional", "value": str(wanted)}]
    serve_bundle(registry, content, packageArguments=more)
    done = user.corral("run", "org.example/hello", env=env)
    assert done.returncode == REFUSED
    assert (
        f"org.example/hello asks for more than you approved: to read {wanted}"
        in done.stderr.decode()
    )
    # Sanity checks: the bundle runs if the user types the argument, and also after the user has
    # approved the published server.
    assert said(user.corral("run", path, str(wanted), env=env))["seen"] == [["note"]]
    assert user.corral("approve", "--yes", "org.example/hello", env=env).returncode == 0
    assert said(user.corral("run", "org.example/hello", env=env))["seen"] == [["note"]]
    serve_bundle(registry, content)
    word = "org.example/hello@1.0.0"
    assert said(user.corral("run", word, str(wanted), env=env))["seen"] == [["note"]]


@ONE_USER
@pytest.mark.rig("node")
def test_variables_and_arguments_of_server_json_are_used(user, env, registry, scratch):
    registry.publish_npm(
        "server", "1.0.0",
        {"main.js": "console.log(JSON.stringify([process.argv.slice(2), process.env.T_TOKEN, process.env.T_MODE]))"},
        bin="main.js",
    )  # fmt: skip
    package = {
        "registryType": "npm",
        "registryBaseUrl": "https://registry.npmjs.org",
        "identifier": "server",
        "version": "1.0.0",
        "transport": {"type": "stdio"},
        "packageArguments": [
            {
                "type": "named",
                "name": "--mode",
                "value": "{kind}-x",
                "variables": {"kind": {"default": "fast"}},
            },
            {"type": "positional", "valueHint": "file", "format": "filepath", "isRequired": True},
        ],
        "environmentVariables": [
            {"name": "T_TOKEN", "isSecret": True, "isRequired": True},
            {"name": "T_MODE", "default": "quiet"},
        ],
    }
    registry.publish_server("org.example/npm", "2.0.0", api="v0", packages=[package])
    note = scratch / "note"
    note.touch()
    os.chown(note, user.uid, user.uid)
    word = "org.example/npm@2.0.0"
    done = user.corral("run", word, env=env)
    assert (done.returncode, b"--config file=VALUE" in done.stderr) == (REFUSED, True)
    file = ["--config", f"file={note}"]
    done = user.corral("run", *file, word, env=env)
    assert (done.returncode, b"T_TOKEN has no value" in done.stderr) == (REFUSED, True)
    # The variable is set now, but the server is not yet allowed to see it.
    done = user.corral("run", *file, word, env={**env, "T_TOKEN": "s3cret"})
    assert (done.returncode, b"see the secret T_TOKEN" in done.stderr) == (REFUSED, True)
    for flags in (["--secret", "T_TOKEN"], []):
        done = user.corral("run", *file, *flags, word, env={**env, "T_TOKEN": "s3cret"})
        assert said(done) == [["--mode", "fast-x", str(note)], "s3cret", "quiet"]
        user.corral("approve", "--yes", word, env=env)
    assert b"s3cret" not in done.stderr


@ONE_USER
def test_a_signature_is_not_verified_and_explain_says_so(user, env, scratch):
    """Append an invalid signature block to a bundle. As without the block, corral must report that
    the signature is not verified. It must report the digest of the changed file.
    """
    path = pathlib.Path(put(user, scratch, manifest()))
    block = b"nobody"
    signature = b"MCPB_SIG_V1" + len(block).to_bytes(4, "little") + block + b"MCPB_SIG_END"
    digests = []
    for data in (path.read_bytes(), path.read_bytes() + signature):
        path.write_bytes(data)
        told = json.loads(user.corral("explain", "--json", str(path), env=env).stdout)["bundle"]
        assert told["signature"].startswith("not verified")
        assert told["sha256"] == hashlib.sha256(data).hexdigest()
        digests.append(told["sha256"])
        assert user.corral("run", str(path), env=env).returncode == 0
    assert len(set(digests)) == 2
    text = user.corral("explain", str(path), env=env).stdout.decode()
    assert f"Bundle sha256: {digests[1]}\nBundle signature: not verified" in text


KEPT_SETTINGS = {"key": {"type": "string", "title": "k", "sensitive": True}}
INSPECTED = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        tool = {"name": "t", "description": repr(sys.argv[1:]), "inputSchema": {"type": "object"}}
        answer = {"protocolVersion": "2025-11-25", "capabilities": {}, "tools": [tool]}
        answer |= {"prompts": [], "resources": [], "resourceTemplates": []}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


@pytest.fixture
def kept(user, env, scratch) -> None:
    path = scratch / "config" / "corral" / "bundles.toml"
    path.write_text('[hello]\nkey = "kept-secret"\n')
    os.chown(path, user.uid, user.uid)
    path.chmod(0o600)


@ONE_USER
def test_a_bundle_does_not_start_if_the_user_refuses_it_the_kept_values(user, env, scratch, kept):
    bundle = manifest(server=start(["${user_config.key}"]), user_config=KEPT_SETTINGS)
    path = put(user, scratch, bundle)
    code, out, shown = on_terminal(user, env, b"n\n", "run", path)
    assert "get your value of key" in shown
    assert (code, out) == (REFUSED, b"")
    # Sanity check: after the answer `y` the server gets the value.
    code, out, _ = on_terminal(user, env, b"y\n", "run", path)
    assert code == 0
    assert json.loads(out)["args"] == ["kept-secret"]


@ONE_USER
def test_an_inspected_bundle_gets_the_kept_values_only_after_approval(user, env, scratch, kept):
    words = ["${user_config.key}"]
    path = put(
        user,
        scratch,
        manifest(server=start(words), user_config=KEPT_SETTINGS),
        {"server/main.py": INSPECTED},
    )
    looked = user.corral("inspect", "--json", path, env=env)
    assert looked.returncode == 0, looked.stderr.decode()
    assert b"kept-secret" not in looked.stdout + looked.stderr
    # Sanity checks: the server gets a typed value, and after the approval also the kept value.
    typed = user.corral("inspect", "--json", "--config", "key=typed", path, env=env)
    assert json.loads(typed.stdout)["tools"][0]["description"] == "['typed']"
    assert user.corral("approve", "--yes", path, env=env).returncode == 0
    looked = user.corral("inspect", "--json", path, env=env)
    assert json.loads(looked.stdout)["tools"][0]["description"] == "['kept-secret']"
