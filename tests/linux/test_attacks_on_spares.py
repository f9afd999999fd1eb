"""Attack `corral.Pool`, which starts spare sandboxes before they are needed. A change on the host
while a spare sandbox is waiting must not weaken the walls of this sandbox.
"""

import pytest
from callers import Caller
from test_pool import SPARES

LOSE_A_MASK = """
def relink(path):
    "Take a name away and give it back: the same inode, but the kernel has detached every mount on it."
    os.link(path, path + '-kept'); os.unlink(path)
    os.rename(path + '-kept', path)
def keep(path): pass
"""


@pytest.fixture
def caller(ordinary):
    return Caller(ordinary, SPARES + LOSE_A_MASK)


@pytest.mark.parametrize(("act", "fits"), [("keep", True), ("relink", False)])
@pytest.mark.parametrize(("name", "access"), [(".env", "read"), (".envrc", "write")])
def test_a_spare_sandbox_is_not_used_if_a_secret_or_protected_file_lost_its_mask(
    caller, act, fits, name, access
):
    caller.run(
        f"path = os.path.abspath('granted/{name}')\n"
        "os.mkdir('granted')\n"
        "with open(path, 'w') as file: file.write('as before')\n"
        f"with corral.Pool({{'filesystem': {{'{access}': [os.path.dirname(path)]}}}}) as pool:\n"
        "    def attack(): return launch(pool, '/bin/sh', '-c', f'exec 2>/dev/null; read line < {path}; echo $line; echo more >> {path}')\n"
        "    first = attack()\n"
        "    [tree] = wait_for_spares()\n"
        f"    {act}(path)\n"
        "    second = attack()\n"
        "    assert first[:2] == second[:2]\n"
        "    with open(path) as file: assert file.read() == 'as before'\n"
        f"    assert (second[2].pid == tree[2]) is {fits}\n"
    )
