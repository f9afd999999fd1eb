"""Test how the search of the documentation site splits pages and queries into words."""

import json
import pathlib
import re
import subprocess

import rigs

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUERY = """
globalThis.Worker = class { postMessage(message) { console.log(JSON.stringify(message)) } };
require(process.argv[1]);
for (const data of ["--allow-net -v api", "well-known", {"docs": ["-x"]}])
  new Worker().postMessage({type: 2, data});
"""


def test_words_of_the_site_end_at_punctuation():
    written = re.search(r"separator: '(.*)'", (ROOT / "mkdocs.yml").read_text("utf-8"))[1]
    separator = written.replace("''", "'")
    words = re.split(separator, "an error (EACCES), `--allow-net`; 'API_KEY' in mcp.json, 3.11")
    assert {"EACCES", "allow", "net", "KEY", "json", "3.11"} <= set(words)


def test_flags_can_be_searched_with_their_hyphens():
    rigs.need("node")
    script = ["node", "-e", QUERY, ROOT / "docs/site.js"]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    sent = [json.loads(line)["data"] for line in lines]
    assert sent == ["allow-net v api", "well-known", {"docs": ["-x"]}]
