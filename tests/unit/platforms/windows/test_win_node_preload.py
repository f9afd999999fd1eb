"""Test the node preload, a script that corral makes node load before the server.

The tests run it in a real node process whose calls are denied as in an AppContainer.
"""

import os
import shutil
import subprocess

import pytest

from corral.platforms.windows.runtime_copies import store

HERE = os.path.dirname(os.path.abspath(__file__))
DENIALS = os.path.join(HERE, "appcontainer.cjs")
pytestmark = pytest.mark.rig("node")


@pytest.fixture
def granted(tmp_path):
    place = tmp_path / "with space"
    (place / "sub").mkdir(parents=True)
    (place / "sub" / "file").write_text("content")
    (place / "link").symlink_to("sub")
    return place


def run(code, granted, *preloads, module=False):
    """Run code in node with DENIALS, which denies calls as in an AppContainer, and with these
    preloads. Return the code's output, or node's error if node fails.
    """
    words = [word for one in (DENIALS, *preloads) for word in ("--require", one)]
    kind = ["--input-type=module"] if module else []
    done = subprocess.run(
        ["node", *store.NODE_FLAGS, *words, *kind, "-e", code],
        cwd=granted,
        env={"PATH": os.environ["PATH"], "CORRAL_GRANTED": str(granted), "TMPDIR": str(granted)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout.decode() if done.returncode == 0 else done.stderr.decode()


REALPATH = {
    "sync": "console.log(fs.realpathSync(N))",
    "sync, native": "console.log(fs.realpathSync.native(N))",
    "callback": "fs.realpath(N, (e, found) => { if (e) throw e; console.log(found) })",
    "callback, native": "fs.realpath.native(N, (e, found) => { if (e) throw e; console.log(found) })",
    "promise": "fs.promises.realpath(N).then((found) => console.log(found))",
    "buffer": "console.log(fs.realpathSync(Buffer.from(N), 'buffer').toString())",
    "URL": "console.log(fs.realpathSync(require('url').pathToFileURL(N)))",
}


@pytest.mark.parametrize("form", REALPATH)
def test_realpath_of_a_granted_file_works_with_the_preload(granted, form):
    code = f"const fs = require('fs'), N = {str(granted / 'link' / 'file')!r};{REALPATH[form]}"
    assert "EPERM" in run(code, granted)
    assert run(code, granted, store.NODE_PRELOAD).strip() == str(granted / "sub" / "file")


def test_realpath_works_as_the_filesystem_server_imports_it(granted):
    code = (
        "import fs, { realpath } from 'fs/promises'; import { realpathSync } from 'fs';"
        "console.log([await fs.realpath('link'), await realpath('link'), realpathSync('link')]"
        ".map((one) => one.endsWith('/sub')).join())"
    )
    assert "EPERM" in run(code, granted, module=True)
    assert run(code, granted, store.NODE_PRELOAD, module=True).strip() == "true,true,true"


@pytest.mark.parametrize(
    ("path", "code"),
    [("none", "ENOENT"), ("link/none", "ENOENT"), ("loop", "ELOOP"), ("..", "EPERM")],
)
def test_realpath_distinguishes_missing_and_denied_files(granted, path, code):
    """Check the codes of errors. A server uses them to find out whether a file does not exist
    (ENOENT) or may not be accessed (EPERM).
    """
    (granted / "loop").symlink_to("loop")
    text = f"try {{ require('fs').realpathSync({path!r}) }} catch (e) {{ console.log(e.code) }}"
    assert run(text, granted, store.NODE_PRELOAD).strip() == code


CHILDREN = {
    "spawn": (
        (
            "const c = cp.spawn(process.execPath, ['-e', 'process.stdin.pipe(process.stdout)']);"
            "let all = ''; c.stdout.on('data', (one) => all += one);"
            "c.on('close', (code) => console.log(code, all)); c.stdin.end('x'.repeat(200000) + 'end')"
        ),
        "0 " + "x" * 200000 + "end",
    ),
    "both outputs": (
        (
            "cp.execFile(process.execPath, ['-e', 'console.log(1); console.error(2)'],"
            "(error, ...both) => console.log(error, JSON.stringify(both)))"
        ),
        'null ["1\\n","2\\n"]',
    ),
    "exec": ("cp.exec('exit 3', (error) => console.log(error.code))", "3"),
    "execSync": ("console.log(String(cp.execSync('cat', { input: 'in' })))", "in"),
    "execFileSync": (
        (
            "try { cp.execFileSync(process.execPath, ['-e', 'process.exit(4)'], { stdio: 'pipe' }) }"
            "catch (error) { console.log(error.status ?? error) }"
        ),
        "4",
    ),
    "spawnSync": (
        "console.log(cp.spawnSync('echo', ['a b'], { encoding: 'utf8' }).stdout.trim())",
        "a b",
    ),
    "ignore": (
        "cp.spawn('cat', { stdio: 'ignore' }).on('close', (code) => console.log(code))",
        "0",
    ),
    "spawnSync, ignore": ("console.log(cp.spawnSync('cat', { stdio: 'ignore' }).status)", "0"),
}


@pytest.mark.parametrize("form", CHILDREN)
def test_children_with_pipes_work(granted, form):
    code, expected = CHILDREN[form]
    code = f"const cp = require('child_process'); {code}"
    assert run(code, granted, store.NODE_PRELOAD).strip() == expected
    assert "EPERM" in run(code, granted)
    assert sorted(os.listdir(granted)) == ["link", "sub"]  # no file is left in TEMP


def test_starting_a_missing_program_fails_with_enoent(granted):
    code = (
        "const c = require('child_process').spawn('none', []);"
        "c.on('error', (error) => console.log(error.code, c.stdout !== null))"
    )
    assert run(code, granted, store.NODE_PRELOAD).strip() == "ENOENT true"


def test_a_fork_is_refused_with_an_explanation(granted):
    code = "require('child_process').fork('x.js')"
    assert "do not work in an AppContainer" in run(code, granted, store.NODE_PRELOAD)


def test_workers_and_child_nodes_get_the_preload(granted):
    """Use a path with a space, because node splits NODE_OPTIONS at spaces."""
    preload = granted / "preload.cjs"
    shutil.copy(store.NODE_PRELOAD, preload)
    node = runtimes_copy("C:\\node.exe", "C:\\store\\node.exe")
    copies = [node, runtimes_copy(store.NODE_PRELOAD, str(preload))]
    program = store.Program(
        path="C:\\node.exe", argv=("C:\\node.exe",), real="C:\\node.exe", search=("x",)
    )
    ((name, options),) = store.program_inside(program, copies).environment
    code = (
        "const { Worker } = require('worker_threads');"
        'new Worker(\'require("worker_threads").parentPort.postMessage(require("fs").realpath.name + '
        'globalThis[Symbol.for("corral.node_preload")])\', { eval: true })'
        ".on('message', (text) => console.log(text))"
    )
    environment = {"PATH": os.environ["PATH"], name: options}
    done = subprocess.run(
        ["node", "-e", code], env=environment, capture_output=True, check=True, timeout=60
    )
    assert done.stdout.strip() == b"realpathtrue"


def runtimes_copy(source, staged):
    listing = store.Listing(directories=(), files=(("", 1, 1),))
    return store.TreeCopy(source=source, staged=staged, sid="S-1-15-3-1024-1", listing=listing)
