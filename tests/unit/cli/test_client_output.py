"""Test how the results of `wrap`, `unwrap` and `grant` are printed."""

from corral.cli import client_output
from corral.cli.option_parser import Options
from corral.clients.edit_file import FileEdit
from corral.clients.rewrite import ServerOutcome


def test_the_lines_of_an_installers_error_are_printed_as_lines(capsys):
    why = "cannot install npm:x: x is not in the registry:\nnpm error code E404\nnpm error 404"
    outcome = ServerOutcome(name="x", state="refused", why=why, hint="is its name spelled right?")
    edit = FileEdit(path="/a.json", real="/a.json", outcomes=(outcome,))
    selection = client_output.Selection(word="/a.json", paths=("/a.json",), names=())
    texts = {"refused": "refused"}
    code = client_output.edit_files(selection, lambda _: edit, Options(), texts=texts, fields=())
    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        "/a.json",
        "  x  refused: cannot install npm:x: x is not in the registry:",
        "      npm error code E404",
        "      npm error 404",
        "    hint: is its name spelled right?",
    ]
