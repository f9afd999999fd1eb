"""Test the store for copies of runtimes: the key and the content of a copy, and how a program's
arguments are changed to name the copy.
"""

import os
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError
from corral.plan.model import Plan, Results
from corral.platforms.contract import Reaped
from corral.platforms.steps import StepFailed
from corral.platforms.windows import undo
from corral.platforms.windows.files import file_trees
from corral.platforms.windows.files.file_trees import Listing, TreeCopy
from corral.platforms.windows.mechanisms import (
    app_container,
    mitigations,
    path_grants,
    process_creation,
    restricted_token,
)
from corral.platforms.windows.probes import app_container as container
from corral.platforms.windows.probes import trial
from corral.platforms.windows.runtime_copies import python_paths
from corral.platforms.windows.runtime_copies import store as runtimes
from corral.programs.model import Program

STORE = "C:\\Users\\Ann\\AppData\\Local\\corral\\cache\\store"
NODE = "C:\\Program Files\\nodejs\\node.exe"
PYTHON = "C:\\Python312\\python.exe"
ONE = Listing(directories=(), files=(("", 10, 5),))
TREE = Listing(directories=("", "lib"), files=(("a", 1, 1), ("lib\\b", 2, 2)))


def copied(source, listing=TREE):
    return runtimes.plan_copy(source, listing, directory=STORE)


PRELOAD = copied(runtimes.NODE_PRELOAD, ONE)


def test_node_and_its_server_are_copied():
    trees = [copied(NODE, ONE), copied("C:\\work\\srv"), PRELOAD]
    program = Program(
        path=NODE,
        argv=(NODE, "C:\\work\\srv\\index.js", "--data", "C:\\work\\other", "srv"),
        search=("C:\\Program Files\\nodejs", "C:\\Windows\\System32"),
        cwd="C:\\work\\srv\\sub",
        real=NODE,
    )
    found = runtimes.program_inside(program, trees)
    assert found.path == f"{trees[0].directory}\\node.exe"
    assert found.argv == (
        found.path,
        "--require",
        PRELOAD.staged,
        "--preserve-symlinks",
        "--preserve-symlinks-main",
        f"{trees[1].directory}\\srv\\index.js",
        "--data",
        "C:\\work\\other",
        "srv",
    )
    assert found.cwd == f"{trees[1].directory}\\srv\\sub"
    assert found.search == (trees[0].directory, "C:\\Windows\\System32")
    ((name, options),) = found.environment
    assert name == "NODE_OPTIONS"
    assert options.startswith(f'--require "{PRELOAD.staged.replace(chr(92), "/")}" --preserve-')


def test_granted_paths_are_used_in_place():
    """Check that granted paths are not replaced by copies, because a copy is read-only and does not
    show later changes to the original. Two things are copied nevertheless: the runtime, and a
    script with only a read grant.
    """
    tree = copied("C:\\work\\srv")
    program = Program(
        path=NODE,
        argv=(NODE, "C:\\work\\srv\\index.js", "c:\\WORK\\srv\\data\\x", "C:\\work\\srv\\database"),
        search=("x",),
        cwd="C:\\work\\srv\\data",
        real=NODE,
    )
    found = runtimes.program_inside(
        program, [copied(NODE, ONE), tree, PRELOAD], ["C:\\work\\srv\\data"]
    )
    assert found.argv[5:] == (
        f"{tree.staged}\\index.js",
        "c:\\WORK\\srv\\data\\x",
        f"{tree.staged}\\database",
    )
    assert found.cwd == "C:\\work\\srv\\data"
    copies, everything = [copied(NODE, ONE), tree, PRELOAD], ["C:\\work"]
    read = runtimes.program_inside(program, copies, everything)
    assert read.argv[5:7] == (f"{tree.staged}\\index.js", "c:\\WORK\\srv\\data\\x")
    whole = runtimes.program_inside(program, copies, everything, everything)
    assert whole.argv[5] == "C:\\work\\srv\\index.js"
    assert whole.path == found.path  # the runtime is always copied


def test_writable_paths_are_not_copied():
    written = ["C:\\work\\srv\\data", "c:\\WORK\\srv\\a\\b", "C:\\work\\srv", "C:\\work", "D:\\x"]
    assert runtimes._below("C:\\work\\srv", written) == ["data", "a\\b"]


def test_the_working_directory_and_variables_name_copies():
    certificates, server = copied("C:\\ca.pem", ONE), copied("C:\\work\\srv")
    store = runtimes.Store(
        trees=(certificates, server),
        program=Program(path="x", argv=("x",), cwd="C:\\own"),
        granted=("C:\\work\\srv\\data",),
    )
    values = {
        "SSL_CERT_FILE": "C:\\ca.pem",
        "DATA": "C:\\work\\srv\\data",
        "PLAIN": "C:\\ca.pem;C:\\x",
    }

    def planned(cwd):
        return Plan(
            program=Program(path=NODE, argv=(NODE,), cwd=cwd),
            steps=(store,),
            controls=(),
            environment=tuple(values.items()),
        )

    assert process_creation.started_program(planned("C:\\work\\srv")).cwd == server.staged
    assert (
        process_creation.started_program(planned("C:\\work\\srv\\data")).cwd
        == "C:\\work\\srv\\data"
    )
    assert process_creation.started_program(planned("")).cwd == "C:\\own"
    assert dict(process_creation.plan_variables(planned(""))) == {
        **values,
        "SSL_CERT_FILE": certificates.staged,
    }


def test_a_linked_node_is_copied_from_its_target():
    """Start node through a link on PATH. The link's target must be copied, not the link itself."""
    real = "C:\\nvm\\v22\\node.exe"
    tree = copied(real, ONE)
    found = runtimes.program_inside(
        Program(path=NODE, argv=(NODE,), real=real, search=("x",)), [tree, PRELOAD]
    )
    assert found.path == f"{tree.directory}\\node.exe"


def test_python_gets_no_flags_of_node():
    tree = copied("C:\\Python312")
    launcher = ("__PYVENV_LAUNCHER__", "C:\\work\\venv\\Scripts\\python.exe")
    venv = copied("C:\\work\\venv")
    program = Program(
        path=PYTHON, argv=(PYTHON, "-m", "srv"), real=PYTHON, search=("x",), environment=(launcher,)
    )
    found = runtimes.program_inside(program, [tree, venv])
    assert found.argv == (f"{tree.directory}\\Python312\\python.exe", "-m", "srv")
    assert found.environment == ((launcher[0], f"{venv.directory}\\venv\\Scripts\\python.exe"),)


def test_a_path_with_a_similar_name_is_not_replaced():
    tree = copied("C:\\work\\srv")
    assert runtimes.path_in_copies("C:\\work\\srv2\\x", [tree]) == "C:\\work\\srv2\\x"
    assert runtimes.path_in_copies("c:\\WORK\\srv\\x", [tree]) == f"{tree.staged}\\x"
    assert runtimes.path_in_copies("srv", [tree]) == "srv"


def test_every_copy_has_its_own_capability():
    trees = [copied("C:\\a"), copied("C:\\b"), copied("C:\\a", ONE)]
    assert len({tree.sid for tree in trees}) == 3
    store = runtimes.Store(trees=tuple(trees), program=Program(path=NODE, argv=(NODE,)))
    assert store.sids == tuple(tree.sid for tree in trees)
    assert all(tree.source in store.describe() for tree in trees)


@given(st.sampled_from(["source", "name", "size", "time", "directory", "beside"]))
def test_other_content_makes_another_copy(what):
    changed = {
        "source": file_trees.copy_key("D:\\x", TREE, ()),
        "name": file_trees.copy_key(
            "C:\\x", Listing(directories=("", "lib"), files=(("A", 1, 1), ("lib\\b", 2, 2))), ()
        ),
        "size": file_trees.copy_key(
            "C:\\x", Listing(directories=("", "lib"), files=(("a", 2, 1), ("lib\\b", 2, 2))), ()
        ),
        "time": file_trees.copy_key(
            "C:\\x", Listing(directories=("", "lib"), files=(("a", 1, 2), ("lib\\b", 2, 2))), ()
        ),
        "directory": file_trees.copy_key(
            "C:\\x", Listing(directories=("", "lib", "new"), files=TREE.files), ()
        ),
        "beside": file_trees.copy_key("C:\\x", TREE, ("another",)),
    }
    assert changed[what] != file_trees.copy_key("C:\\x", TREE, ())
    assert file_trees.copy_key("C:\\x", TREE, ()) == file_trees.copy_key("C:\\x", TREE, ())


@pytest.fixture
def source(tmp_path):
    (tmp_path / "src" / "lib" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "empty").mkdir()
    (tmp_path / "src" / "a.py").write_bytes(b"x" * 3000)
    (tmp_path / "src" / "lib" / "deep" / "b.py").write_bytes(b"y")
    os.utime(tmp_path / "src" / "a.py", ns=(10**18, 10**18 + 5))
    return tmp_path / "src"


def test_a_tree_is_copied(source, tmp_path):
    listing = file_trees.list_files(str(source))
    assert [name for name, _, _ in listing.files] == ["a.py", "lib\\deep\\b.py"]
    assert listing.directories == ("", "empty", "lib", "lib\\deep")
    assert listing.describe().startswith("2 files, ")
    target = tmp_path / "copy"
    file_trees.copy(str(source), str(target), listing)
    assert (target / "a.py").read_bytes() == b"x" * 3000
    assert (target / "lib" / "deep" / "b.py").read_bytes() == b"y"
    assert (target / "empty").is_dir()
    # The copied files keep their modification times, because Python uses a compiled module only if
    # the time recorded in it matches the source file.
    assert file_trees.list_files(str(target)).files == listing.files
    # The file in the copy is not a hard link to the source file.
    assert (target / "a.py").stat().st_ino != (source / "a.py").stat().st_ino
    file_trees.remove(str(target))
    assert not target.exists()


def test_one_file_is_copied(source, tmp_path):
    listing = file_trees.list_files(str(source / "a.py"))
    file_trees.copy(str(source / "a.py"), str(tmp_path / "copy.py"), listing)
    assert (tmp_path / "copy.py").read_bytes() == b"x" * 3000


def test_excluded_directories_are_left_out(source):
    listing = file_trees.list_files(str(source), ("LIB\\deep", "empty"))
    assert [name for name, _, _ in listing.files] == ["a.py"]
    assert listing.directories == ("", "lib")


def test_a_file_that_changes_during_the_copy_is_an_error(source, tmp_path):
    listing = file_trees.list_files(str(source))
    (source / "a.py").write_bytes(b"z" * 3000)
    with pytest.raises(OSError, match="changed"):
        file_trees.copy(str(source), str(tmp_path / "copy"), listing)


def test_a_copy_never_overwrites_a_file(source, tmp_path):
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileExistsError):
        file_trees.copy(str(source), str(tmp_path / "copy"), file_trees.list_files(str(source)))


@pytest.mark.links
@pytest.mark.parametrize(
    ("target", "told"),
    [("..", "to a directory"), ("/", "path outside"), ("../../outside", "path outside")],
)
def test_links_to_directories_or_out_of_a_tree_are_refused(source, target, told):
    (source.parent / "outside").touch()
    place = source / "lib" / "link"
    place.symlink_to(target)
    with pytest.raises(file_trees.Unsuitable, match=f"is a link .*{told}"):
        file_trees.list_files(str(source))
    with pytest.raises(file_trees.Unsuitable, match="is a link"):
        file_trees.list_files(str(place))


@pytest.mark.links
def test_a_link_to_a_file_of_the_tree_is_copied_as_a_file(source, tmp_path):
    """Use an absolute link from `python3.exe` to `python.exe`, like the link that
    actions/python-versions makes in each Python of a GitHub runner
    (installers/win-setup-template.ps1).
    """
    (source / "python3.exe").symlink_to(source / "a.py")
    (source / "lib" / "chain").symlink_to("../python3.exe")
    (source / "lib" / "excluded").symlink_to("deep/b.py")
    (source / "lib" / "nowhere").symlink_to("none")
    listing = file_trees.list_files(str(source), ("lib\\deep",))
    assert listing.links == (("lib\\chain", "a.py"), ("python3.exe", "a.py"))
    assert [name for name, _, _ in listing.files] == ["a.py", "lib\\chain", "python3.exe"]
    (source / "python3.exe").unlink()
    (source / "python3.exe").symlink_to("/etc/passwd")  # `copy` must not open this link
    file_trees.copy(str(source), str(tmp_path / "copy"), listing)
    for name in ("python3.exe", "lib/chain"):
        copied = tmp_path / "copy" / name
        assert (copied.is_symlink(), copied.read_bytes()) == (False, b"x" * 3000)


@pytest.mark.links
def test_a_link_that_names_the_tree_by_another_path_is_copied(source, tmp_path):
    (tmp_path / "alias").symlink_to(source)
    (source / "python3.exe").symlink_to(tmp_path / "alias" / "a.py")
    assert file_trees.list_files(str(source)).links == (("python3.exe", "a.py"),)


@pytest.mark.links
@pytest.mark.parametrize("text", ["\\\\host\\share\\x", "\\\\?\\UNC\\host\\share\\x", "//host/x"])
def test_a_link_to_another_machine_is_not_opened(source, monkeypatch, text):
    """Check that corral does not open a link to another machine, because Windows would send the
    user's credentials to that machine.
    """
    (source / "link").symlink_to(text)
    monkeypatch.setattr(file_trees.os.path, "realpath", lambda _: pytest.fail("opened"))
    with pytest.raises(file_trees.Unsuitable, match="path outside"):
        file_trees.list_files(str(source))


@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_compiled_module_that_changes_during_the_copy_is_left_out(source, tmp_path, change):
    """Replace or remove a compiled module during the copy, as Python may do at any time."""
    compiled = source / "lib" / "__pycache__" / "b.cpython-313.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"one")
    listing = file_trees.list_files(str(source))
    compiled.unlink()
    if change == "written":
        compiled.write_bytes(b"another")
    file_trees.copy(str(source), str(tmp_path / "copy"), listing)
    assert not (tmp_path / "copy" / "lib" / "__pycache__" / compiled.name).exists()
    assert (tmp_path / "copy" / "a.py").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs fifos")
def test_paths_that_are_not_files_are_refused(source):
    os.mkfifo(source / "fifo")
    with pytest.raises(file_trees.Unsuitable, match="neither"):
        file_trees.list_files(str(source))


def test_a_tree_beyond_the_limits_is_refused(source, monkeypatch):
    monkeypatch.setattr(file_trees, "MAX_BYTES", 3001)
    file_trees.list_files(str(source))  # Sanity check: a tree at the limit is accepted
    monkeypatch.setattr(file_trees, "MAX_BYTES", 3000)
    with pytest.raises(file_trees.Unsuitable, match="more than"):
        file_trees.list_files(str(source))
    monkeypatch.undo()
    monkeypatch.setattr(file_trees, "MAX_FILES", 5)
    with pytest.raises(file_trees.Unsuitable, match="more than 5 files"):
        file_trees.list_files(str(source))


@pytest.mark.links
def test_a_refusal_to_copy_names_its_reason(source):
    (source / "link").symlink_to("/")
    program = Program(
        path="x", argv=("x",), reads=(str(source),), why=("the server",), search=("x",)
    )
    with pytest.raises(PolicyError, match="is a link") as caught:
        runtimes.plan(program, directory=STORE)
    assert "hoisted" in caught.value.hint
    missing = Program(
        path="x", argv=("x",), reads=(str(source / "none"),), why=("x",), search=("x",)
    )
    with pytest.raises(PolicyError, match="none"):
        runtimes.plan(missing, directory=STORE)


def test_pyvenv_cfg_gets_the_path_of_the_copied_base():
    found = python_paths.with_home(
        "home = C:\\junction\r\nversion = 3.12.1\r\nHOME=x\r\n", "C:\\store\\p"
    )
    assert found.splitlines() == ["home = C:\\store\\p", "version = 3.12.1"]


def test_paths_in_files_are_replaced_by_those_of_copies():
    trees = [copied("C:\\work\\proj"), copied("C:\\work\\proj2"), copied("C:\\Python312")]
    first, second, base = (tree.staged for tree in trees)
    text = "C:\\work\\proj\\src\r\nc:\\WORK\\proj2\r\nC:\\work\\proj3\r\nimport x\r\n"
    assert (
        python_paths.replace_paths(text, trees)
        == f"{first}\\src\r\n{second}\r\nC:\\work\\proj3\r\nimport x\r\n"
    )
    finder = "MAPPING = {'a': 'C:\\\\work\\\\proj\\\\a'}"
    doubled = first.replace("\\", "\\\\")
    assert python_paths.replace_paths(finder, trees) == f"MAPPING = {{'a': '{doubled}\\\\a'}}"
    assert python_paths.replace_paths("home = C:\\Python312\n", trees) == f"home = {base}\n"


@given(st.text(max_size=60))
def test_text_that_names_no_copied_path_stays_unchanged(text):
    assert python_paths.replace_paths(text, [copied("C:\\work\\proj")]) == text


def test_files_that_contain_paths_are_found_in_a_listing():
    names = [
        "pyvenv.cfg",
        ".venv\\pyvenv.cfg",
        ".venv\\Lib\\site-packages\\x.pth",
        "Lib\\site-packages\\__editable___x_finder.py",
        "docs\\x.pth",
        "Lib\\site-packages\\x.py",
        "LIB\\Site-Packages\\y.pth",
    ]
    listing = Listing(directories=(), files=tuple((name, 1, 1) for name in names))
    assert python_paths.find(listing) == (*names[:4], names[6])


def test_the_base_of_an_environment_is_copied_without_its_packages():
    why = "the prefix of python"
    assert python_paths.SITE not in runtimes._left_out("", why, "")
    assert python_paths.SITE in runtimes._left_out("C:\\venv", why, "")
    assert python_paths.SITE not in runtimes._left_out(
        "C:\\venv", why, "include-system-site-packages = true"
    )
    assert python_paths.SITE not in runtimes._left_out("C:\\venv", "the virtual environment", "")


def test_corrals_own_interpreter_is_copied_without_packages():
    program = Program(
        path=PYTHON,
        argv=(PYTHON,),
        real=PYTHON,
        reads=("C:\\Python312", "C:\\work\\project"),
        why=("the prefix of python", "an editable install, x.pth"),
        seen=((1, 2), (1, 3)),
    )
    found = runtimes.without_projects(program)
    assert (found.reads, found.seen) == (("C:\\Python312",), ((1, 2),))
    assert found.why == ("the prefix of python",)


def test_a_copy_without_some_directories_is_another_copy(source):
    program = Program(
        path="x", argv=("x",), reads=(str(source),), why=("the prefix of python",), search=("x",)
    )
    (whole,) = runtimes.plan(program, directory=STORE).trees
    (less,) = runtimes.plan(program, directory=STORE, without=("lib",)).trees
    assert len(whole.listing.files) == len(less.listing.files) + 1
    assert whole.directory != less.directory


def test_all_copies_of_a_run_are_released(tmp_path):
    """Use two copies, as in a run with an allowlist of host names: one for the server, and one for
    the interpreter of corral's shim.
    """
    results = Results()
    for name in "ab":
        tree = TreeCopy(source="C:\\x", staged=str(tmp_path / name / "x"), sid="S-1", listing=ONE)
        (tmp_path / f"{name}.whole").touch()
        runtimes.Store(trees=(tree,), program=Program(path=NODE, argv=(NODE,))).apply(results)
    marks = tuple(results.get(runtimes.OpenCopies)._marks)
    assert [os.fstat(mark).st_size for mark in marks] == [0, 0]  # both are open
    results.release()
    for mark in marks:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(mark)


def test_a_python_that_cannot_be_copied_is_reported(monkeypatch):
    def refuse(_home):
        raise PolicyError("it contains more than 100000 files")

    monkeypatch.setattr(runtimes, "plan_own_interpreter", refuse)
    with pytest.raises(OSError, match="more than 100000 files"):
        container.steps()


def planned():
    tree = copied(NODE, ONE)
    program = runtimes.program_inside(
        Program(path=NODE, argv=(NODE, "x.js"), real=NODE, search=("x",)), [tree, PRELOAD]
    )
    store = runtimes.Store(trees=(tree,), program=program)
    root = path_grants.journal.Root(
        path="C:\\d", access="read", sid="S-1-15-3-1024-1", volume=1, file=2
    )
    steps = (
        undo.Claim(directory="C:\\j", run="r", profile="p", roots=(root,)),
        app_container.Profile(profile="corral-x-1", capabilities=(), home="C:\\h"),
        path_grants.Grants(roots=(root,), directory="C:\\j"),
        store,
    )
    return Plan(program=program, steps=steps, controls=(), environment=()), store


def test_a_runtime_that_was_never_tried_is_marked(tmp_path):
    key = "0a" * 16
    staged = str(tmp_path / key) + "\\node.exe"
    tree = TreeCopy(source=NODE, staged=staged, sid="S-1", listing=ONE)
    own = runtimes.Store(trees=(tree,), program=Program(path=staged, argv=(staged,)))
    (tmp_path / f"{key}.whole").touch()
    assert "not yet seen to start" in own.describe()
    (tmp_path / f"{key}.0123").touch()
    assert "not yet seen to start" not in own.describe()


def test_a_node_that_may_start_processes_is_tried_with_a_child(monkeypatch, tmp_path):
    lines = []
    monkeypatch.setattr(trial, "_try_runtime", lambda plan, line: lines.append(line))
    monkeypatch.setattr(trial, "note_path", lambda program, steps: str(tmp_path / str(len(lines))))
    plan, _ = planned()
    for children in (False, True):
        more = mitigations.plan(0, subprocess=children)
        trial.check_runtime_starts(runtimes.replace(plan, steps=(*plan.steps, more)))
    assert lines == [trial.LINES["node"], trial.NODE_WITH_CHILDREN]


def test_a_runtime_is_tried_again_after_its_preload_changed():
    store = runtimes.Store(trees=(copied(NODE, ONE), PRELOAD), program=planned()[1].program)
    other = copied(runtimes.NODE_PRELOAD, TREE)
    changed = runtimes.replace(store, trees=(store.trees[0], other))
    notes = [trial.note_path(one.program, (one,)) for one in (store, changed, store)]
    assert notes[0] != notes[1]
    assert notes[0] == notes[2]


def test_a_trial_start_has_no_grants():
    plan, store = planned()
    claim, profile, staged = trial.trial_plan(plan, trial.LINES["node"]).steps
    assert claim.roots == ()
    assert profile == plan.steps[1]
    assert staged.program.argv[1:] == trial.LINES["node"]
    assert staged.program.cwd == "C:\\h"
    assert staged.trees == store.trees


def test_a_runtime_without_store_or_trial_line_is_not_tried():
    plan, store = planned()
    trial.check_runtime_starts(
        Plan(program=plan.program, steps=plan.steps[:3], controls=(), environment=())
    )
    own = runtimes.Store(trees=store.trees, program=Program(path="C:\\x.exe", argv=("C:\\x.exe",)))
    trial.check_runtime_starts(
        Plan(program=plan.program, steps=(own,), controls=(), environment=())
    )


@pytest.mark.parametrize("printed", ["started", "spawn EPERM", ""])
def test_node_under_a_restricted_token_is_tried_with_a_child(monkeypatch, tmp_path, printed):
    """Check that the trial lets node start a child. Under a restricted token this may fail with
    `spawn EPERM`, because node cannot open the child's pipes for writing (openai/codex#18861).
    """
    monkeypatch.setattr(trial, "directories", lambda: types.SimpleNamespace(cache=str(tmp_path)))
    started: list[Plan] = []

    def start(plan: Plan) -> object:
        started.append(plan)
        reaped = Reaped(status=256, cpu=0.0, memory=0, hit=())
        outcome = trial.Outcome(output=printed, reaped=reaped)
        return types.SimpleNamespace(finish=lambda: outcome)

    monkeypatch.setattr(trial, "Trial", start)
    node = Program(path=NODE, argv=(NODE, "C:\\s.js"), cwd="C:\\work", device=1, inode=2)
    steps = (restricted_token.RestrictedToken(), mitigations.plan(0, subprocess=True))
    plan = Plan(program=node, steps=steps, controls=(), environment=())
    if printed == "started":
        trial.check_runtime_starts(plan)
        # The first trial's result was recorded, so there is no second trial.
        trial.check_runtime_starts(plan)
        assert len(started) == 1
        other = runtimes.replace(plan, program=runtimes.replace(node, inode=3))
        trial.check_runtime_starts(other)
        assert len(started) == 2
    else:
        with pytest.raises(StepFailed, match=printed or "it printed nothing"):
            trial.check_runtime_starts(plan)
        with pytest.raises(StepFailed):
            trial.check_runtime_starts(plan)
    assert started[0].program.argv == (NODE, *trial.NODE_WITH_CHILDREN)
    assert started[0].steps == steps
    bare = Plan(program=node, steps=steps[1:], controls=(), environment=())
    before = len(started)
    trial.check_runtime_starts(bare)  # no trial, because no step restricts the token
    assert len(started) == before


def test_known_exit_codes_of_windows_are_explained():
    assert "libraries" in trial.exit_code_meaning(0xC0000142)
    assert trial.exit_code_meaning(0xC0000142 - (1 << 32)) == trial.exit_code_meaning(0xC0000142)
    assert trial.exit_code_meaning(1) == ""
