"""Write the files of a Kubernetes export, and list the commands that the user has to run next."""

import json
import os
import shlex
from collections.abc import Sequence

from corral.errors import SandboxError
from corral.export.containerfile import COPIED, WHEEL, Build
from corral.export.kubernetes import Object
from corral.export.pod import format_policy
from corral.export.publish import publish
from corral.export.workload import Workload
from corral.export.yaml_text import format_documents

OBJECTS_FILE = "kubernetes.yaml"
HEADER = "# The server of this export: "
WRITTEN = (
    OBJECTS_FILE,
    "Containerfile",
    "policy.json",
    *(name for names in COPIED.values() for name in names),
)


def write_objects(
    workload: Workload,
    objects: Sequence[Object],
    build: Build | None,
    directory: str,
    *,
    force: bool,
) -> None:
    header = f"{HEADER}{json.dumps(workload.server)}\n"
    files = {OBJECTS_FILE: (header + format_documents(objects)).encode()}
    if build is not None:
        files |= {"Containerfile": build.text.encode(), **build.files}
        files |= {"policy.json": format_policy(workload.pod).encode()}
    _refuse_other_server(directory, header)

    def fill(fresh: str) -> None:
        for name, content in files.items():
            with open(os.path.join(fresh, name), "wb") as file:
                file.write(content)

    publish(directory, fill, names=(*WRITTEN, WHEEL), force=force)


def _refuse_other_server(directory: str, header: str) -> None:
    try:
        with open(os.path.join(directory, OBJECTS_FILE), encoding="utf-8") as file:
            first = file.readline()
    except (OSError, ValueError):
        return
    if first.startswith(HEADER) and first != header:
        raise SandboxError(
            f"{directory} contains the export of another server:"
            f" {first.removeprefix(HEADER).strip()}",
            hint="name another directory with -o",
        )


def next_steps(
    workload: Workload, objects: Sequence[Object], directory: str, *, build: bool
) -> list[str]:
    where, image = shlex.quote(directory), workload.image
    secrets = workload.pod.policy.secret_names
    lines = []
    if build:
        lines.append(f"pip wheel --no-deps -w {where} CORRAL  # the directory of corral's source")
        lines += [f"podman build -t {image} {where}", f"podman push {image}"]
    if secrets:
        words = " ".join(f'--from-literal={one}="${one}"' for one in secrets)
        lines.append(f"kubectl create secret generic {workload.secrets} {words}")
    # Each server has its own field manager, so that the API server reports a conflict if another
    # server is applied under the same name.
    apply = f"kubectl apply --server-side --field-manager={workload.manager}"
    lines.append(f"{apply} -f {where}/{OBJECTS_FILE}")
    lines += _reach(workload, {str(one["kind"]) for one in objects})
    return [f"wrote {directory}; next:", *(f"  {line}" for line in lines)]


def _reach(workload: Workload, kinds: set[str]) -> list[str]:
    name, ports = workload.name, workload.pod.policy.listen
    pod = f"pod/{name}"
    ready = f"--for=condition=Ready {pod}"
    if "SandboxClaim" in kinds:  # the pod comes from the warm pool, so its name differs
        found = f"kubectl get sandboxclaim {name} -o jsonpath='{{.status.sandbox.name}}'"
        pod, ready = f'"$({found})"', f"--for=condition=Ready sandboxclaim/{name}"
    elif "Deployment" in kinds:
        pod, ready = f"service/{name}", f"--for=condition=Available deployment/{name}"
    last = f"exec -i {pod} -- {shlex.join(workload.command())}"
    if ports:
        last = f"port-forward {pod} {ports[0]}"
    return [f"kubectl wait --timeout=5m {ready}", f"kubectl {last}"]
