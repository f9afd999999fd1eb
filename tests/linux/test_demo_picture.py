"""Compare the README's picture with a fresh run of `corral demo`, act by act."""

import importlib.util
import json
import pathlib
import re
from html import unescape

PICTURES = pathlib.Path(__file__).resolve().parent.parent.parent / "docs/pictures"


def load_script():
    spec = importlib.util.spec_from_file_location("draw_demo", PICTURES / "draw_demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_picture_of_the_demo_agrees_with_a_fresh_run(ordinary):
    script = load_script()
    done = ordinary.corral("demo", "--json", timeout=280)
    told = json.loads(done.stdout)
    shown = [unescape(text) for text in re.findall(r">([^<]*)</text>", script.PICTURE.read_text())]
    drawn = list(zip(*[iter(shown[4:])] * 3, strict=True))
    fresh = script.rows(told)
    assert [row[0] for row in drawn] == [row[0] for row in fresh]
    assert all(len(text) <= script.MAX_LETTERS for row in drawn for text in row[1:])
    for (act, inside, outside), (_, now, free, attack) in zip(drawn, fresh, strict=True):
        assert inside.startswith("denied") == attack, act
        assert now.startswith("denied") == attack, act
        # For each result, compare only whether it is a denial, because the texts differ between
        # runs.
        assert not outside.startswith("denied"), act
        assert not free.startswith("denied") or act in told["not_tried"], act
