"""Test corral on kernels without some features. A seccomp filter makes this kernel answer like an
older one.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from users import MAIN

# As in Linux 5.10, close_range works without flags and refuses CLOSE_RANGE_CLOEXEC.
LINUX_5_10 = """
import errno, os, sys
sys.path.insert(0, sys.argv.pop(1))
from corral.abi import linux as abi
from corral.abi.linux_syscalls import AUDIT_ARCHES, TABLES
from corral.platforms.linux.mechanisms import seccomp_compiler as compiler
machine = os.uname().machine
table = TABLES[machine]
rules = dict.fromkeys(table.values(), compiler.ALLOW)
flagged = compiler.low(2, abi.CLOSE_RANGE_CLOEXEC, abi.CLOSE_RANGE_CLOEXEC)
rules[table["close_range"]] = ((((flagged,), compiler.errno_action(errno.EINVAL)),), compiler.ALLOW)
program = compiler.assemble(rules, arch=AUDIT_ARCHES[machine], unknown=compiler.errno_action(errno.ENOSYS), number_limit=None)
abi.prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
abi.seccomp_set_filter(program)
try:
    abi.close_range(1000, 1001, abi.CLOSE_RANGE_CLOEXEC)
except OSError as error:
    assert error.errno == errno.EINVAL
else:
    sys.exit("the filter does not answer as it should")
os.execv(sys.argv[1], sys.argv[1:])
"""
OPEN = "import json, os; print(json.dumps([fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')]))"


@pytest.mark.parametrize("tier", ["walled", "bare"], indirect=True)
def test_no_descriptor_is_inherited_without_the_flag_of_close_range(user):
    """Start corral with an open pipe, whose descriptor the target must not inherit. Sanity check:
    without corral the same program does inherit it.
    """
    read, write = os.pipe()
    filtered = [user.python, "-c", LINUX_5_10, str(user.package)]
    inside = [*user.host, *filtered, user.python, "-c", MAIN, str(user.package), "run", "--"]
    seen = []
    for before in (inside, []):
        process = user.popen(
            [*before, user.python, "-ISc", OPEN], stdout=subprocess.PIPE, pass_fds=(write,)
        )
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        seen.append(write in json.loads(out))
    os.close(read)
    os.close(write)
    assert seen == [False, True]
