"""Test `corral.Pool`. Its spares are sandboxes that wait for a command. A spare is used only once,
and only for a command that needs exactly the walls that the spare already has.
"""

import signal

import pytest
from callers import Caller
from traces import PATIENCE

SPARES = f"""
import select, time
def children(pid):
    try:
        with open(f'/proc/{{pid}}/task/{{pid}}/children') as file: return [int(one) for one in file.read().split()]
    except (FileNotFoundError, ProcessLookupError): return []
def find_spares(running=()):
    "(supervisor, init, target) of each spare whose target waits: it has three streams, a pipe and a socket."
    [zygote] = children(os.getpid())
    trees = [(s, i, t) for s in children(zygote) for i in children(s) for t in children(i)]
    try: return [tree for tree in trees if tree[2] not in running and len(os.listdir(f'/proc/{{tree[2]}}/fd')) == 5]
    except (FileNotFoundError, PermissionError): return []
def wait_for_spares(count=1, running=()):
    deadline = time.monotonic() + {PATIENCE}
    while len(found := find_spares(running)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found
def has_ended(pid):
    try: fd = os.pidfd_open(pid)
    except ProcessLookupError: return True
    try: return bool(select.select([fd], [], [], {PATIENCE})[0])
    finally: os.close(fd)
def launch(pool, *argv, **more):
    with pool.launch(argv or ['/bin/echo', trace], stdin=corral.PIPE, stdout=corral.PIPE, **more) as box:
        box.stdin.close()
        return box.stdout.read(), box.wait(), box
"""


@pytest.fixture
def caller(ordinary):
    return Caller(ordinary, SPARES)


@pytest.fixture
def any_caller(user):
    return Caller(user, SPARES)


def test_a_spare_sandbox_is_used_for_one_launch_and_has_an_ordinary_report(any_caller):
    any_caller.run(
        "with corral.Pool() as pool:\n"
        "    first = launch(pool, '/bin/sh', '-c', 'echo $0; exit 3', trace)\n"
        "    [(supervisor, init, target)] = wait_for_spares()\n"
        "    second = launch(pool, '/bin/sh', '-c', 'echo $0; exit 3', trace)\n"
        "    assert second[2].pid == target != first[2].pid\n"
        "    assert first[:2] == second[:2] == (trace.encode() + b'\\n', 3)\n"
        "    ordinary, spare = first[2].report, second[2].report\n"
        "    for name in ('command', 'outcome', 'controls', 'warnings', 'denials', 'hit', 'discarded'):\n"
        "        assert getattr(ordinary, name) == getattr(spare, name), name\n"
        "    assert spare.usage.memory > 0\n"
        "    assert all(has_ended(pid) for pid in (supervisor, init, target))\n"
        "    [(_, _, third)] = wait_for_spares()\n"
        "    assert launch(pool, '/bin/sh', '-c', 'echo $0; exit 3', trace)[2].pid == third != target\n"
    )


def test_a_spare_sandbox_has_every_wall_and_no_descriptor_of_corral(any_caller):
    any_caller.run(
        "secret = 'secret-' + trace\n"
        "os.environ['TOKEN'] = secret\n"
        "with corral.Pool({'environment': {'secrets': ['TOKEN']}}) as pool:\n"
        "    launch(pool)\n"
        "    [(_, init, target)] = wait_for_spares()\n"
        "    with open(f'/proc/{target}/status') as file: status = dict(line.split(':', 1) for line in file)\n"
        "    assert (status['NoNewPrivs'].strip(), status['Seccomp'].strip()) == ('1', '2'), status\n"
        "    assert {int(status[name], 16) for name in ('CapPrm', 'CapEff', 'CapBnd', 'CapAmb')} == {0}\n"
        "    ends = sorted(os.readlink(f'/proc/{target}/fd/{fd}').split(':')[0] for fd in os.listdir(f'/proc/{target}/fd'))\n"
        "    assert ends == ['/dev/null'] * 3 + ['pipe', 'socket'], ends\n"
        "    for name in ('mnt', 'pid', 'net', 'ipc', 'uts', 'user'):\n"
        "        assert os.readlink(f'/proc/{target}/ns/{name}') != os.readlink(f'/proc/self/ns/{name}')\n"
        "    launch(pool, '/usr/bin/env')\n"
        "    [(_, _, target)] = wait_for_spares()\n"
        "    out, _, box = launch(pool, '/usr/bin/env')\n"
        "    assert f'TOKEN={secret}' in out.decode().splitlines() and box.pid == target\n"
    )


def test_a_spare_sandbox_is_not_used_after_its_grant_was_replaced_or_got_a_secret(caller):
    caller.run(
        "granted = os.path.abspath('granted')\n"
        "def write(name, text):\n"
        "    with open(f'{granted}/{name}', 'w') as file: file.write(text)\n"
        "os.mkdir(granted); write('file', 'old')\n"
        "with corral.Pool({'filesystem': {'read': [granted]}}) as pool:\n"
        "    def show(name='file'): return launch(pool, '/bin/cat', f'{granted}/{name}')\n"
        "    def goes_elsewhere(act):\n"
        "        [tree] = wait_for_spares()\n"
        "        act()\n"
        "        shown = show()\n"
        "        assert shown[2].pid != tree[2] and all(map(has_ended, tree))\n"
        "        return shown\n"
        "    show()\n"
        "    [(_, _, target)] = wait_for_spares()\n"
        "    assert show()[2].pid == target  # sanity check\n"
        "    def replace():\n"
        "        os.rename(granted, granted + '-old'); os.mkdir(granted); write('file', 'new')\n"
        "    assert goes_elsewhere(replace)[0] == b'new'\n"
        "    goes_elsewhere(lambda: write('.env', 'secret'))\n"
        "    assert show('.env')[0] == b''\n"
        "    [tree] = wait_for_spares()\n"
        "    launch(pool, '/bin/echo', trace)\n"
        "    assert all(map(has_ended, tree))  # the spare was for another program\n"
    )


def test_a_spare_sandbox_is_not_used_after_a_mount_or_system_file_changed(any_caller):
    """Change a mount while a spare is waiting, and then a file in /etc while another spare is
    waiting. The pool must end both spares without using them. The caller has a private mount
    namespace and a copy of /etc, so the host does not change.
    """
    if any_caller.user.uid:
        pytest.skip("only root can mount")
    any_caller.run(
        "import ctypes, shutil, subprocess\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.unshare(0x20000) == 0\n"
        "def mount(*words): subprocess.run(['mount', *words], check=True)\n"
        "mount('--make-rprivate', '/')\n"
        "os.mkdir('etc'); os.mkdir('empty')\n"
        "shutil.copytree('/etc', 'etc', symlinks=True, dirs_exist_ok=True, ignore_dangling_symlinks=True)\n"
        "mount('--bind', 'etc', '/etc')\n"
        "with corral.Pool() as pool:\n"
        "    launch(pool)\n"
        "    [tree] = wait_for_spares()\n"
        "    mount('-t', 'tmpfs', 'none', 'empty')  # Sanity check: a mount elsewhere\n"
        "    assert launch(pool)[2].pid == tree[2]\n"
        "    [tree] = wait_for_spares()\n"
        "    mount('-t', 'tmpfs', 'none', '/usr/local/share')\n"
        "    assert launch(pool)[2].pid != tree[2] and all(map(has_ended, tree))\n"
        "    [tree] = wait_for_spares()\n"
        "    shutil.copy('/etc/ld.so.cache', 'copy'); shutil.move('copy', '/etc/ld.so.cache.new')\n"
        "    os.rename('/etc/ld.so.cache.new', '/etc/ld.so.cache')\n"
        "    assert launch(pool)[2].pid != tree[2] and all(map(has_ended, tree))\n"
        "subprocess.run(['umount', 'empty', '/usr/local/share', '/etc'], check=True)\n"
    )


def test_a_launch_sees_nothing_of_an_earlier_one(caller):
    caller.run(
        'code = \'import os; print(os.listdir("/tmp"), sorted(os.environ), os.listdir("/dev/shm"), os.listdir("/proc/self/fd"), os.getcwd())\\n\'\n'
        'code += \'for name in ("/tmp/mark", os.environ["HOME"] + "/mark"): open(name, "w").write("x")\'\n'
        "with corral.Pool() as pool:\n"
        "    plain = corral.run([python, '-c', code]).stdout\n"
        "    assert b'mark' not in plain\n"
        "    for _ in range(3):\n"
        "        out, code_, box = launch(pool, python, '-c', code, env={**os.environ, 'MARK': trace})\n"
        "        assert (out, code_) == (plain, 0), out\n"
        "        wait_for_spares()\n"
    )


@pytest.mark.parametrize("part", [0, 1, 2], ids=["supervisor", "init", "target"])
def test_a_launch_works_after_its_spare_sandbox_was_killed(caller, part):
    caller.run(
        "with corral.Pool() as pool:\n"
        "    launch(pool)\n"
        "    [tree] = wait_for_spares()\n"
        f"    os.kill(tree[{part}], 9)\n"
        "    out, code, box = launch(pool, '/bin/echo', 'once')\n"
        "    assert (out, code) == (b'once\\n', 0) and box.pid != tree[2]\n"
        "    assert all(map(has_ended, tree))\n"
    )


def test_a_spare_sandbox_outlives_the_process_that_forked_it_but_not_its_pool(caller):
    caller.run(
        "pool = corral.Pool(spares=3)\n"
        "launch(pool)\n"
        "trees = wait_for_spares(3)\n"
        "[zygote] = children(os.getpid())\n"
        "os.kill(zygote, 9); assert has_ended(zygote)\n"
        "assert launch(pool)[2].pid in [target for _, _, target in trees]\n"
        "with pool.launch(['/bin/sh', '-c', 'read line', trace], stdin=corral.PIPE) as box:\n"
        "    pool.close()\n"
        "    assert all(has_ended(pid) for tree in trees for pid in tree if tree[2] != box.pid)\n"
        "    refused(lambda: pool.launch(['/bin/true']), ValueError)\n"
        "    refused(lambda: box.wait(timeout=0), TimeoutError)  # the pool's end does not end a launched target\n"
        "    box.stdin.close()\n"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_spare_sandbox_ends_with_its_caller_even_if_a_fork_lives_on(caller, number):
    caller.check_fork_keeps_nothing_alive(
        "pool = corral.Pool()\nlaunch(pool)\n[pids] = wait_for_spares()\n",
        number,
        in_fork="assert launch(pool, '/bin/echo', 'x')[0] == b'x\\n'; pool.close()",
    )


def test_each_of_several_launches_at_once_runs_its_command_once(caller):
    caller.run(
        "read, write = os.pipe()\n"
        "with corral.Pool(spares=2) as pool:\n"
        "    boxes = []\n"
        "    def one(number): boxes.append(pool.launch(['/bin/sh', '-c', 'echo $0; read line', str(number)], stdin=corral.PIPE, stdout=write))\n"
        "    launch(pool, '/bin/sh')\n"
        "    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]\n"
        "    for thread in threads: thread.start()\n"
        "    for thread in threads: thread.join()\n"
        "    for box in boxes: box.stdin.close(); assert box.wait() == 1; box.close()\n"
        "    os.close(write)\n"
        "    with open(read) as file: assert sorted(file.read().split()) == list('01234567')\n"
    )


def test_a_very_long_command_runs_and_a_missing_program_is_an_error(caller):
    caller.run(
        "with corral.Pool({'environment': {'pass': ['LARGE']}}) as pool:\n"
        "    launch(pool)\n"
        "    [tree] = wait_for_spares()\n"
        "    large = ['x' * 100_000] * 10\n"
        "    out, code, box = launch(pool, '/bin/echo', *large, env={**os.environ, 'LARGE': large[0]})\n"
        "    assert out.decode().split() == large\n"
        "    refused(lambda: launch(pool, '/no/such/program'), corral.CommandError)\n"
        "    fd = os.open('/', os.O_RDONLY)\n"
        "    refused(lambda: pool.launch(['/bin/echo'], stdin=fd), corral.LaunchError)\n"
        "    assert launch(pool, '/bin/echo', trace)[1] == 0\n"
    )


def test_a_pool_with_a_memory_limit_launches_without_spare_sandboxes(caller):
    caller.run(
        "with corral.Pool({'limits': {'memory': '100M'}}) as pool:\n"
        "    assert launch(pool)[1] == 0\n"
        "    assert launch(pool)[1] == 0\n"
        "refused(lambda: corral.Pool(spares=0), ValueError)\n"
        "refused(lambda: corral.Pool(spares=65), ValueError)\n"
    )


def test_a_spare_sandbox_reports_the_same_denials_as_an_ordinary_launch(caller):
    """Launch a command with a spare and without one, and compare the denials. They must be the
    same, although a spare starts its listener, resolver and gateway before its command is known.
    """
    caller.run(
        "code = 'import os, socket\\n'\n"
        "code += 'for act in (os.fork, lambda: socket.create_connection((\"denied.example\", 80), 5)):\\n'\n"
        "code += '    try: act()\\n    except OSError: print(\"denied\", flush=True)\\n'\n"
        "with corral.Pool({'network': {'allow': ['allowed.example']}}) as pool:\n"
        "    found = []\n"
        "    for _ in range(2):\n"
        "        out, exit_code, box = launch(pool, python, '-c', code)\n"
        "        assert (out, exit_code) == (b'denied\\n' * 2, 0), (out, exit_code)\n"
        "        found.append(sorted((one.kind, one.destination) for one in box.report.denials))\n"
        "        [(_, _, target)] = wait_for_spares()\n"
        "        found.append(target)\n"
        "    ordinary, first, spare, _ = found\n"
        "    assert ordinary == spare and len(spare) >= 2, found\n"
        "    assert box.pid == first\n"
    )


def test_a_spare_sandbox_has_the_pools_policy_and_the_users_current_ceilings(caller):
    """Check that a pool reads its policy only once. It must read the user's ceilings, which are the
    limits that no policy may exceed, at each launch, even if a spare is already waiting.
    """
    caller.run(
        "import shutil\n"
        "config = os.path.expanduser('~/.config/corral')\n"
        "def put(path, text):\n"
        "    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)\n"
        "    with open(path, 'w') as file: file.write(text)\n"
        "def timeout(box): return {one.control: one.asked for one in box.report.controls}.get('timeout')\n"
        "policy = os.path.abspath('policy.toml')\n"
        'put(policy, \'version = 1\\n[limits]\\ntimeout = "300s"\\n[network]\\nallow = ["one.example"]\\n\')\n'
        "with corral.Pool(policy) as pool:\n"
        "    first = launch(pool)[2]\n"
        "    [tree] = wait_for_spares()\n"
        "    put(policy, 'version = 1\\n')\n"
        "    second = launch(pool)[2]\n"
        "    assert (second.pid, timeout(second)) == (tree[2], timeout(first))\n"
        "    [tree] = wait_for_spares()\n"
        "    put(config + '/config.toml', '[ceilings]\\ntimeout = \"200s\"\\n')\n"
        "    refused(lambda: launch(pool), corral.PolicyError)\n"
        "    os.unlink(config + '/config.toml')\n"
        "    assert launch(pool)[2].pid == tree[2]\n"
        "shutil.rmtree(config)\n"
    )
