"""`corral export ENGINE`: write a server's policy for another engine, such as runc."""

import os
import sys

from corral.cli import HELP, output, run_flags, show_help, what_to_run
from corral.cli.option_parser import Flag, Options, UsageError, parse, suggest
from corral.directories import home_directory
from corral.errors import SandboxError
from corral.export import containerfile, kubernetes, kubernetes_files, workload
from corral.export.holding import format_holding
from corral.export.pod import make_pod_policy
from corral.plan.model import Held
from corral.safe_text import shell_word
from corral.supervisor.prepare import find_subject
from corral.supervisor.report import to_json

SUMMARY = "write a server's policy for another engine: an OCI runtime such as runc, or Kubernetes"
USAGE = """\
usage: corral export oci -o DIRECTORY [OPTIONS] REFERENCE | -- COMMAND [ARGUMENT...]
       corral export kubernetes -o DIRECTORY --image NAME [OPTIONS] REFERENCE | -- COMMAND ..."""
OUT = Flag(name="--output", short="-o", value="PATH", help="the directory to write")
BOTH = (
    OUT,
    Flag(name="--force", help="replace an earlier export in that directory"),
    Flag(name="--json", help="print as JSON what enforces each control"),
)
POD = (
    Flag(name="--image", value="NAME", help="Kubernetes: image with the server and corral"),
    Flag(
        name="--name", value="NAME",
        help="Kubernetes: name of the objects (default: the server's name)",
    ),
    Flag(
        name="--volume", value="PATH=VOLUME", many=True,
        help="Kubernetes: volume for a granted path (claim:NAME, configmap:NAME or emptydir)",
    ),
    Flag(name="--cilium", help="Kubernetes: also write a Cilium policy that allows hosts by name"),
    Flag(name="--agent-sandbox", help="Kubernetes: write agent-sandbox objects"),
    Flag(name="--replicas", value="NUMBER", help="Kubernetes: size of the warm pool (default: 1)"),
    Flag(name="--containerfile", help="Kubernetes: also write a Containerfile for the image"),
)  # fmt: skip
FLAGS = (*BOTH, *POD, *run_flags.FLAGS)
ENGINES = ("oci", "kubernetes")
MAX_REPLICAS = 1000


def main(options: Options, rest: list[str]) -> int:
    engine, *words = rest or [""]
    if engine not in ENGINES or options.values:
        hint = suggest(engine, ENGINES, "corral export --help")
        raise UsageError(f"name an engine: {', '.join(ENGINES)}", hint=hint)
    if words and words[0] in {HELP.name, HELP.short}:
        return show_help("export")
    if engine == "kubernetes":
        return _export_kubernetes(*parse(FLAGS, words))
    return _export_oci(*parse((*BOTH, *run_flags.FLAGS), words))


def _export_oci(options: Options, rest: list[str]) -> int:
    if sys.platform != "linux":
        raise SandboxError(
            "OCI bundles can be exported only on Linux", hint="run this command on Linux"
        )
    from corral.export import oci

    directory = options.get(OUT.name)
    if directory is None:
        raise UsageError(
            "no directory was given for the bundle", hint="corral export oci -o DIRECTORY ..."
        )
    sources, command = what_to_run.sources_and_command(options, rest)
    cwd = what_to_run.start_directory(rest)
    subject = find_subject(command, sources, environment=os.environ, cwd=cwd)
    bundle = oci.build_bundle(subject, sources, cwd=cwd, variables=os.environ)
    oci.write_bundle(bundle, directory, force=options.has("--force"))
    _print_holding(bundle.controls, as_json=options.has("--json"))
    for name in bundle.omitted:
        output.warn(f"{name} is a secret and was not written: add it to process.env in config.json")
    output.note(f"wrote {directory}; start it with `runc run -b {shell_word(directory)} NAME`")
    return 0


def _export_kubernetes(options: Options, rest: list[str]) -> int:
    directory, image = options.get(OUT.name), options.get("--image")
    if directory is None or image is None:
        raise UsageError(
            "give -o and --image: the directory for the files, and the image with the server",
            hint="corral export kubernetes -o DIRECTORY --image NAME ...",
        )
    image = workload.check_image(image)
    name = workload.check_name(options.get("--name") or workload.make_name(rest))
    volumes = workload.parse_volumes(options.all("--volume"))
    replicas = _parse_replicas(options.get("--replicas"))
    _check_engine_flags(options)
    sources, command = what_to_run.sources_and_command(options, rest)
    cwd = what_to_run.start_directory(rest)
    pod = make_pod_policy(sources, volumes, home=home_directory(os.environ), cwd=cwd)
    tree = containerfile.find_tree(command)
    argv = tuple(word.replace(tree, containerfile.SERVER) if tree else word for word in command)
    server = workload.describe_server(rest)
    made = workload.Workload(name=name, image=image, argv=argv, pod=pod, server=server)
    if options.has("--agent-sandbox"):
        objects = kubernetes.make_sandbox_objects(made, replicas=replicas)
    else:
        objects = kubernetes.make_objects(made, cilium=options.has("--cilium"))
    build = containerfile.make_build(argv, tree) if options.has("--containerfile") else None
    force = options.has("--force")
    kubernetes_files.write_objects(made, objects, build, directory, force=force)
    _print_holding(pod.controls, as_json=options.has("--json"))
    for line in kubernetes_files.next_steps(made, objects, directory, build=build is not None):
        output.note(line)
    return 0


def _parse_replicas(text: str | None) -> int:
    if text is None:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_REPLICAS):
        raise UsageError(f"--replicas takes a number from 1 to {MAX_REPLICAS}", hint="--replicas 3")
    return int(text)


def _check_engine_flags(options: Options) -> None:
    if options.has("--replicas") and not options.has("--agent-sandbox"):
        raise UsageError("--replicas works only with --agent-sandbox", hint="add --agent-sandbox")
    if options.has("--cilium") and options.has("--agent-sandbox"):
        raise UsageError(
            "--cilium and --agent-sandbox cannot be combined", hint="leave one of them out"
        )


def _print_holding(controls: tuple[Held, ...], *, as_json: bool) -> None:
    if as_json:
        output.write_json({"controls": to_json(controls)})
        return
    output.write_table([("control", "asked", "enforced by", "how"), *format_holding(controls)])
