"""The store: what a copy is named after, what it holds, and how a program's words change with it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError
from corral.plan.model import Plan, Results
from corral.platforms.windows import undo
from corral.platforms.windows.files import file_trees
from corral.platforms.windows.files.file_trees import Listing, TreeCopy
from corral.platforms.windows.mechanisms import app_container, path_grants, process_creation
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


def test_node_and_its_server():
    trees = [copied(NODE, ONE), copied("C:\\work\\srv")]
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
        "--preserve-symlinks",
        "--preserve-symlinks-main",
        f"{trees[1].directory}\\srv\\index.js",
        "--data",
        "C:\\work\\other",
        "srv",
    )
    assert found.cwd == f"{trees[1].directory}\\srv\\sub"
    assert found.search == (trees[0].directory, "C:\\Windows\\System32")


def test_what_is_granted_is_used_where_it_is():
    """A copy of it nobody could write, and nobody else would see what was written."""
    tree = copied("C:\\work\\srv")
    program = Program(
        path=NODE,
        argv=(NODE, "C:\\work\\srv\\index.js", "c:\\WORK\\srv\\data\\x", "C:\\work\\srv\\database"),
        search=("x",),
        cwd="C:\\work\\srv\\data",
        real=NODE,
    )
    found = runtimes.program_inside(program, [copied(NODE, ONE), tree], ["C:\\work\\srv\\data"])
    assert found.argv[3:] == (
        f"{tree.staged}\\index.js",
        "c:\\WORK\\srv\\data\\x",
        f"{tree.staged}\\database",
    )
    assert found.cwd == "C:\\work\\srv\\data"
    whole = runtimes.program_inside(program, [copied(NODE, ONE), tree], ["C:\\work"])
    assert whole.argv[3] == "C:\\work\\srv\\index.js"
    assert whole.path == found.path  # the runtime comes from the store in any case


def test_what_may_be_written_is_not_copied():
    written = ["C:\\work\\srv\\data", "c:\\WORK\\srv\\a\\b", "C:\\work\\srv", "C:\\work", "D:\\x"]
    assert runtimes._below("C:\\work\\srv", written) == ["data", "a\\b"]


def test_where_a_run_starts_and_what_its_variables_name():
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


def test_a_linked_node():
    """What was found on PATH is a link; what is copied is the file behind it."""
    real = "C:\\nvm\\v22\\node.exe"
    tree = copied(real, ONE)
    found = runtimes.program_inside(
        Program(path=NODE, argv=(NODE,), real=real, search=("x",)), [tree]
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


def test_a_neighbour_is_not_moved():
    tree = copied("C:\\work\\srv")
    assert runtimes.path_in_copies("C:\\work\\srv2\\x", [tree]) == "C:\\work\\srv2\\x"
    assert runtimes.path_in_copies("c:\\WORK\\srv\\x", [tree]) == f"{tree.staged}\\x"
    assert runtimes.path_in_copies("srv", [tree]) == "srv"


def test_every_copy_has_a_capability_of_its_own():
    trees = [copied("C:\\a"), copied("C:\\b"), copied("C:\\a", ONE)]
    assert len({tree.sid for tree in trees}) == 3
    store = runtimes.Store(trees=tuple(trees), program=Program(path=NODE, argv=(NODE,)))
    assert store.sids == tuple(tree.sid for tree in trees)
    assert all(tree.source in store.describe() for tree in trees)


@given(st.sampled_from(["source", "name", "size", "time", "directory", "beside"]))
def test_anything_else_is_another_copy(what):
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


def test_a_copy_of_a_tree(source, tmp_path):
    listing = file_trees.list_files(str(source))
    assert [name for name, _, _ in listing.files] == ["a.py", "lib\\deep\\b.py"]
    assert listing.directories == ("", "empty", "lib", "lib\\deep")
    assert listing.describe().startswith("2 files, ")
    target = tmp_path / "copy"
    file_trees.copy(str(source), str(target), listing)
    assert (target / "a.py").read_bytes() == b"x" * 3000
    assert (target / "lib" / "deep" / "b.py").read_bytes() == b"y"
    assert (target / "empty").is_dir()
    # Compiled modules are good only for the very time of their source.
    assert file_trees.list_files(str(target)).files == listing.files
    assert (target / "a.py").stat().st_ino != (
        source / "a.py"
    ).stat().st_ino  # a copy, never a link
    file_trees.remove(str(target))
    assert not target.exists()


def test_one_file(source, tmp_path):
    listing = file_trees.list_files(str(source / "a.py"))
    file_trees.copy(str(source / "a.py"), str(tmp_path / "copy.py"), listing)
    assert (tmp_path / "copy.py").read_bytes() == b"x" * 3000


def test_what_is_left_out(source):
    listing = file_trees.list_files(str(source), ("LIB\\deep", "empty"))
    assert [name for name, _, _ in listing.files] == ["a.py"]
    assert listing.directories == ("", "lib")


def test_a_file_that_changes_meanwhile(source, tmp_path):
    listing = file_trees.list_files(str(source))
    (source / "a.py").write_bytes(b"z" * 3000)
    with pytest.raises(OSError, match="changed"):
        file_trees.copy(str(source), str(tmp_path / "copy"), listing)


def test_a_copy_never_goes_over_what_is_there(source, tmp_path):
    (tmp_path / "copy").mkdir()
    with pytest.raises(FileExistsError):
        file_trees.copy(str(source), str(tmp_path / "copy"), file_trees.list_files(str(source)))


@pytest.mark.links
@pytest.mark.parametrize("kind", ["file", "directory", "dangling", "top"])
def test_links_are_refused(source, tmp_path, kind):
    place = source / "lib" / "link"
    place.symlink_to(
        {"file": source / "a.py", "directory": "/", "dangling": "none", "top": "."}[kind]
    )
    with pytest.raises(file_trees.Unsuitable, match="is a link"):
        file_trees.list_files(str(place if kind == "top" else source))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no fifos")
def test_what_is_no_file_is_refused(source):
    os.mkfifo(source / "fifo")
    with pytest.raises(file_trees.Unsuitable, match="neither"):
        file_trees.list_files(str(source))


def test_too_much(source, monkeypatch):
    monkeypatch.setattr(file_trees, "MAX_BYTES", 3001)
    file_trees.list_files(str(source))  # the control
    monkeypatch.setattr(file_trees, "MAX_BYTES", 3000)
    with pytest.raises(file_trees.Unsuitable, match="more than"):
        file_trees.list_files(str(source))
    monkeypatch.undo()
    monkeypatch.setattr(file_trees, "MAX_FILES", 5)
    with pytest.raises(file_trees.Unsuitable, match="more than 5 files"):
        file_trees.list_files(str(source))


@pytest.mark.links
def test_a_plan_says_why_not(source):
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


def test_the_settings_of_a_virtual_environment():
    found = python_paths.with_home(
        "home = C:\\junction\r\nversion = 3.12.1\r\nHOME=x\r\n", "C:\\store\\p"
    )
    assert found.splitlines() == ["home = C:\\store\\p", "version = 3.12.1"]


def test_what_names_other_directories_names_their_copies():
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
def test_other_text_stays(text):
    assert python_paths.replace_paths(text, [copied("C:\\work\\proj")]) == text


def test_pointers_in_a_listing():
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


def test_corrals_own_interpreter_goes_without_what_is_installed_in_it():
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


def test_a_copy_without_more(source):
    program = Program(
        path="x", argv=("x",), reads=(str(source),), why=("the prefix of python",), search=("x",)
    )
    (whole,) = runtimes.plan(program, directory=STORE).trees
    (less,) = runtimes.plan(program, directory=STORE, without=("lib",)).trees
    assert len(whole.listing.files) == len(less.listing.files) + 1
    assert whole.directory != less.directory


def test_all_copies_of_a_run_are_released(tmp_path):
    """With named hosts there are two stores: the server's, and that of corral's own interpreter."""
    results = Results()
    for name in "ab":
        tree = TreeCopy(source="C:\\x", staged=str(tmp_path / name / "x"), sid="S-1", listing=ONE)
        (tmp_path / f"{name}.whole").touch()
        runtimes.Store(trees=(tree,), program=Program(path=NODE, argv=(NODE,))).apply(results)
    marks = tuple(results.get(runtimes.OpenCopies)._marks)
    assert [os.fstat(mark).st_size for mark in marks] == [0, 0]  # the control: both are open
    results.release()
    for mark in marks:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(mark)


def test_a_python_that_cannot_be_copied_is_no_container_and_no_crash(monkeypatch):
    def refuse(_home):
        raise PolicyError("it holds more than 100000 files")

    monkeypatch.setattr(runtimes, "plan_own_interpreter", refuse)
    with pytest.raises(OSError, match="more than 100000 files"):
        container.steps()


def planned():
    tree = copied(NODE, ONE)
    program = runtimes.program_inside(
        Program(path=NODE, argv=(NODE, "x.js"), real=NODE, search=("x",)), [tree]
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


def test_a_trial_start_has_nothing_granted():
    plan, store = planned()
    claim, profile, staged = trial.trial_steps(plan.steps, store, trial.LINES["node"])
    assert claim.roots == ()
    assert profile == plan.steps[1]
    assert staged.program.argv[1:] == trial.LINES["node"]
    assert staged.program.cwd == "C:\\h"
    assert staged.trees == store.trees


def test_what_has_no_store_or_no_line_is_not_tried():
    plan, store = planned()
    trial.check_runtime_starts(
        Plan(program=plan.program, steps=plan.steps[:3], controls=(), environment=())
    )
    own = runtimes.Store(trees=store.trees, program=Program(path="C:\\x.exe", argv=("C:\\x.exe",)))
    trial.check_runtime_starts(
        Plan(program=plan.program, steps=(own,), controls=(), environment=())
    )


def test_codes_that_tell_nobody_anything():
    assert "library" in trial.exit_code_meaning(0xC0000142)
    assert trial.exit_code_meaning(0xC0000142 - (1 << 32)) == trial.exit_code_meaning(0xC0000142)
    assert trial.exit_code_meaning(1) == ""
