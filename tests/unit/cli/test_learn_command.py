from __future__ import annotations

import pytest

from corral.cli import learn
from corral.cli.option_parser import Options
from corral.errors import SandboxError


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_learn_says_that_it_cannot_watch_on_other_systems(monkeypatch, system):
    monkeypatch.setattr(learn.sys, "platform", system)
    with pytest.raises(SandboxError, match="cannot be watched on this system") as raised:
        learn.main(Options(), ["server"])
    assert raised.value.hint.startswith("`corral learn` needs Linux")
