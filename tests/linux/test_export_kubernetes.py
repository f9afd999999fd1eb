"""Test `corral export kubernetes`: check the files against Kubernetes's schemas, and run them in
podman.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

import rigs
from containers import Podman
from users import SOURCE, make_user

yaml = pytest.importorskip("yaml")
REFUSED, WRONG = 125, 2
IMAGE = "localhost/corral-test:1"
VERSIONS = tuple(f"1.{minor}" for minor in range(30, 38))
EVERYTHING = (
    "--read", "/data", "--write", "/out", "--volume", "/data=configmap:texts", "--volume", "/out=claim:results",
    "--allow-net", "api.github.com", "--allow-net", "*.example.com:8443", "--allow-net", "10.1.0.0/16:5432-5440",
    "--secret", "TOKEN", "--env", "A=b", "--max-memory", "256M", "--max-cpu", "500m", "--timeout", "5m", "--state",
)  # fmt: skip
SMALL = ("--max-memory", "32M", "--max-cpu", "5m", "--listen", "8080")
VARIANTS = {
    "plain": (),
    "everything": EVERYTHING,
    "listens": ("--listen", "8080", "--max-pids", "64"),
    "cilium": (*EVERYTHING, "--cilium"),
    "agent-sandbox": (*EVERYTHING, "--agent-sandbox", "--replicas", "3"),
    "listening-sandbox": (*SMALL, "--state", "--agent-sandbox"),
    "deadline": (*SMALL, "--timeout", "5m"),
}
LISTENING = {"listens", "deadline"}
SANDBOXES = {"agent-sandbox", "listening-sandbox"}


def export(user, folder, *words, image="registry.example/notes:1", command=("--", "server")):
    argv = ("export", "kubernetes", "-o", str(folder), "--image", image, *words, *command)
    # Pass on this machine's proxy and certificates, so that the export can reach the package
    # registry.
    names = ("SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy")
    extra = {name: os.environ[name] for name in names if name in os.environ}
    return user.corral(*argv, env=user.environment(**extra), timeout=300)


@pytest.fixture
def folder(ordinary):
    path = ordinary.home / "exported"
    shutil.rmtree(path, ignore_errors=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def read_objects(folder) -> list[dict]:
    return list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_command_prints_what_it_wrote(ordinary, folder, variant):
    done = export(ordinary, folder, "--name", "notes", *VARIANTS[variant])
    assert done.returncode == 0, done.stderr.decode()
    assert b"corral inside" in done.stdout
    assert b"the engine" in done.stdout
    assert b"neither" not in done.stdout
    assert f" -f {folder}/kubernetes.yaml" in done.stderr.decode()
    kinds = [one["kind"] for one in read_objects(folder)]
    assert ("Service" in kinds) == (variant in LISTENING)
    assert ("Deployment" in kinds) == (variant == "listens")
    assert ("SandboxTemplate" in kinds) == (variant in SANDBOXES)
    assert ("CiliumNetworkPolicy" in kinds) == (variant == "cilium")


@pytest.mark.rig("kubernetes")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", ["everything", "listens", "deadline"])
def test_kubernetes_schemas_accept_the_files(ordinary, folder, variant, version):
    assert export(ordinary, folder, *VARIANTS[variant]).returncode == 0
    path = str(folder / "kubernetes.yaml")
    argv = [sys.executable, "-c", VALIDATE, "--strict", "-k", version, path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Sanity check: an unknown field is refused.
    text = (folder / "kubernetes.yaml").read_text().replace("automountService", "automatedService")
    (ordinary.home / "wrong.yaml").write_text(text)
    argv[-1] = str(ordinary.home / "wrong.yaml")
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


VALIDATE = "import sys; from kubernetes_validate.__main__ import main; sys.exit(main())"


@pytest.mark.rig("agent_sandbox")
@pytest.mark.parametrize("variant", sorted(SANDBOXES))
def test_agent_sandbox_definitions_accept_the_files(ordinary, folder, variant):
    import jsonschema

    definitions = {}
    for path in rigs.definitions().glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        (version,) = [one for one in spec["versions"] if one["name"] == "v1beta1"]
        definitions[spec["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    assert export(ordinary, folder, *VARIANTS[variant]).returncode == 0
    checked = [one for one in read_objects(folder) if one["kind"] in definitions]
    assert len(checked) == 3
    for one in checked:
        jsonschema.validate(one, closed(definitions[one["kind"]]))
        with pytest.raises(jsonschema.ValidationError):  # Sanity check: an unknown key is refused
            jsonschema.validate({**one, "spec": {**one["spec"], "unknown": 1}}, closed(definitions[one["kind"]]))  # fmt: skip


def closed(schema):
    """Return a copy of the schema that refuses unknown fields, like an API server in strict
    mode.
    """
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(value) for name, value in schema.items() if name != "properties"}
    if "properties" in schema:
        made["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
        if "x-kubernetes-preserve-unknown-fields" not in schema and "metadata" not in schema.get(
            "required", ()
        ):
            made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--name", "Not_A_Name"), REFUSED, "is not a valid name"),
        (("--volume", "/x"), REFUSED, "is not a valid volume"),
        (("--read", "/data"), REFUSED, "--volume /data=claim:NAME"),
        (("--agent-sandbox", "--replicas", "0"), WRONG, "--replicas takes a number"),
        (("--replicas", "3"), WRONG, "add --agent-sandbox"),
        (
            ("--volume", "/d=emptydir", "--volume", "/d=claim:x"),
            REFUSED,
            "names two volumes for /d",
        ),
        (
            ("--agent-sandbox", "--listen", "8080", "--timeout", "5m"),
            REFUSED,
            "timeout: a listening server in a pool",
        ),
        (("--cilium", "--agent-sandbox"), WRONG, "leave one of them out"),
        (("--allow-net", "http://x"), WRONG, "--allow-net"),
    ],
)
def test_bad_input_writes_nothing(ordinary, folder, words, code, said):
    done = export(ordinary, folder, *words)
    assert done.returncode == code, done.stderr.decode()
    assert said in done.stderr.decode()
    assert not folder.exists()
    assert not list(ordinary.home.glob("exported.*"))


def test_an_image_option_with_another_form_writes_nothing(ordinary, folder):
    done = export(ordinary, folder, image="No Image")
    assert done.returncode == REFUSED
    assert b"registry/name:tag" in done.stderr
    assert not folder.exists()


def test_an_earlier_export_is_replaced_only_by_force(ordinary, folder):
    assert export(ordinary, folder, "--name", "one").returncode == 0
    again = export(ordinary, folder, "--name", "two")
    assert again.returncode == REFUSED
    assert b"--force replaces it" in again.stderr
    assert read_objects(folder)[-1]["metadata"]["name"] == "one"
    assert export(ordinary, folder, "--name", "two", "--force").returncode == 0
    assert read_objects(folder)[-1]["metadata"]["name"] == "two"
    (folder / "own").touch()
    kept = export(ordinary, folder, "--name", "three", "--force")
    assert kept.returncode == REFUSED
    assert (folder / "own").exists()


def test_a_directory_contains_the_export_of_only_one_server(ordinary, folder):
    """Export another server into a directory that already contains an export. Even with `--force`
    and the same name, corral must not replace the first export.
    """
    first = ("--name", "notes")
    assert export(ordinary, folder, *first, command=("--", "/opt/a/notes")).returncode == 0
    before = (folder / "kubernetes.yaml").read_bytes()
    second = export(ordinary, folder, *first, "--force", command=("--", "/opt/b/notes"))
    assert second.returncode == REFUSED
    assert b"another server" in second.stderr
    assert (folder / "kubernetes.yaml").read_bytes() == before
    assert not list(ordinary.home.glob("exported.*"))
    again = export(ordinary, folder, *first, "--force", command=("--", "/opt/a/notes"))
    assert again.returncode == 0  # Sanity check: the same server's export is replaced


def test_exported_files_do_not_contain_the_value_of_a_secret(ordinary, folder):
    env = ordinary.environment(TOKEN="hunter2")
    argv = (
        "export",
        "kubernetes",
        "-o",
        str(folder),
        "--image",
        "x",
        "--secret",
        "TOKEN",
        "--",
        "server",
    )
    assert ordinary.corral(*argv, env=env).returncode == 0
    assert "hunter2" not in (folder / "kubernetes.yaml").read_text()


# The tests below run the exported pod in podman.

ASK = """
import json, urllib.request, sys
answer = {}
for name in ("allowed.test", "other.test"):
    try:
        answer[name] = urllib.request.urlopen(f"http://{name}:8080/", timeout=20).status
    except OSError as error:
        answer[name] = type(error).__name__
print(json.dumps(answer))
"""
MESSAGES = [
    {"id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list"},
    {"id": 3, "method": "tools/call", "params": {"name": "get_current_time", "arguments": {"timezone": "Etc/UTC"}}},
]  # fmt: skip
BASE = "localhost/corral-base:1"
HOSTS_SETTINGS = ("/etc/pip.conf", "/etc/ssl/certs", "/etc/resolv.conf")
FETCH = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/', timeout=20).status)"
ADMIT = "mkdir -p ~/.config/corral && printf '[network]\\nadmit = [\"127.0.0.1\"]\\n' > ~/.config/corral/config.toml"


@pytest.fixture(scope="module")
def played():
    rigs.need("containers")
    podman = Podman()
    yield podman
    podman.do("pod", "rm", "-f", "-a")
    podman.close()


@pytest.fixture(scope="module")
def built(played, package, tmp_path_factory):
    """Build the image from its Containerfile. The base image is made of files of this machine,
    because the test has no registry from which to load one.
    """
    folder = tmp_path_factory.mktemp("build")
    exported, files = folder / "server", folder / "files"
    root = make_user("root", package)
    done = export(root, exported, "--containerfile", image=IMAGE, command=("pypi:mcp-server-time",))
    assert done.returncode == 0, done.stderr.decode()
    (files / "opt/asking").mkdir(parents=True)
    (files / "opt/asking/ask.py").write_text(ASK)
    played.import_image(BASE, files)
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", exported, SOURCE.parent]
    subprocess.run(wheel, check=True, capture_output=True)
    mounts = [f"--volume={path}:{path}:ro" for path in HOSTS_SETTINGS if os.path.exists(path)]
    how = ("--layers=false", "--isolation=chroot", "--network=host", *mounts)
    made = played.do("build", *how, f"--build-arg=BASE={BASE}", "-t", IMAGE, str(exported), timeout=900)  # fmt: skip
    assert made.returncode == 0, made.stderr.decode()
    return exported, done


def play(played, folder):
    objects = read_objects(folder)
    for one in objects:
        if one["kind"] == "Pod":
            # podman cannot publish a port without a network, and this pod has none.
            one["spec"]["containers"][0].pop("ports", None)
    (folder / "played.yaml").write_text(yaml.safe_dump_all(objects))
    done = played.do("kube", "play", "--network=none", str(folder / "played.yaml"))
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.rig("containers")
@pytest.mark.timeout(1200)
def test_the_containerfile_builds_an_image_whose_server_answers(played, built):
    exported, served = built
    locked = (exported / "requirements.lock").read_text()
    assert locked.count("--hash=sha256:") >= locked.count("==") > 5
    looked = played.do("image", "inspect", IMAGE)
    assert json.loads(looked.stdout)[0]["Config"]["User"] == "1000:1000"
    play(played, exported)
    lines = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in MESSAGES)
    answers = exchange(played.argv("exec", "-i", container(exported), *typed(served)), lines)
    assert answers[1]["result"]["serverInfo"]["name"] == "mcp-time"
    assert {tool["name"] for tool in answers[2]["result"]["tools"]} >= {"get_current_time"}
    assert "datetime" in answers[3]["result"]["content"][0]["text"]
    policy = played.do("run", "--rm", "--network=none", IMAGE, "cat", "/etc/corral/policy.json")
    assert json.loads(policy.stdout) == json.loads((exported / "policy.json").read_text())
    # The container must end by itself. Otherwise podman would wait 60 s and then kill it.
    stopped = played.do("stop", "-t", "60", container(exported), timeout=30)
    assert stopped.returncode == 0, stopped.stderr.decode()


@pytest.mark.rig("containers")
@pytest.mark.timeout(1200)
def test_a_pod_in_podman_answers_and_reaches_only_its_hosts(package, played, built, tmp_path):
    root, client = make_user("root", package), tmp_path / "client"
    words = ("--name", "asks", "--allow-net", "allowed.test:8080")
    command = ("--", "/usr/bin/python3", "/opt/asking/ask.py")
    asked = export(root, client, *words, image=IMAGE, command=command)
    assert asked.returncode == 0, asked.stderr.decode()
    play(played, client)
    inside = container(client)
    assert played.do("exec", inside, "sh", "-c", ADMIT).returncode == 0
    assert played.do("exec", "-d", inside, "python3", "-m", "http.server", "8080", "-d", "/tmp").returncode == 0  # fmt: skip
    done = played.do("exec", "-i", inside, *typed(asked))
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"allowed.test": 200, "other.test": "URLError"}, done.stderr
    assert b"--allow-net other.test" in done.stderr


@pytest.mark.rig("containers")
@pytest.mark.timeout(1200)
def test_a_listening_server_in_podman_answers_by_http(package, played, built, tmp_path):
    root, folder = make_user("root", package), tmp_path / "http"
    command = (
        "--",
        "/usr/bin/python3",
        "-m",
        "http.server",
        "-b",
        "0.0.0.0",
        "8080",
        "-d",
        "/usr/lib",
    )
    done = export(root, folder, "--name", "serves", "--listen", "8080", "--timeout", "10m", image=IMAGE, command=command)  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    play(played, folder)
    asking = ("exec", "-i", container(folder), "python3", "-c", f"{UNTIL_OPEN}\n{FETCH}")
    answer = played.do(*asking)
    assert answer.stdout.split() == [b"200"], answer.stderr.decode() + played.do("logs", container(folder)).stderr.decode()  # fmt: skip


UNTIL_OPEN = """
import socket, time
for _ in range(600):
    with socket.socket() as one:
        if one.connect_ex(("127.0.0.1", 8080)) == 0:
            break
    time.sleep(0.1)
"""


def container(folder) -> str:
    (name,) = [one["metadata"]["name"] for one in read_objects(folder) if one["kind"] == "Pod"]
    return f"{name}-server"


def typed(done) -> list[str]:
    """Return the part of the command in corral's message that comes after `kubectl exec -i pod/NAME
    --`: the command that runs in the pod.
    """
    (line,) = [one for one in done.stderr.decode().splitlines() if "kubectl exec -i" in one]
    words = shlex.split(line)
    return words[words.index("--") + 1 :]


def exchange(argv, lines) -> dict[int, dict]:
    """Send messages, wait for their answers with stdin still open, and return the answers by id."""
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answers = {}
    try:
        process.stdin.write(lines)
        process.stdin.flush()
        while len(answers) < 3 and (line := process.stdout.readline()):
            message = json.loads(line)
            answers[message.get("id")] = message
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()
    return answers
