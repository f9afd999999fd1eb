"""Fail unless corral's probes have proven each of the given capabilities on this machine.

    require_findings.py FILE CAPABILITY...

FILE contains the output of `corral doctor --json`.
"""

import json
import pathlib
import sys

path, *wanted = sys.argv[1:]
found = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["findings"]
proven = {item["capability"] for item in found if item["status"] == "proven"}
for item in found:
    if item["capability"] in wanted and item["capability"] not in proven:
        print(f"{item['capability']}: {item['status']}, {item['evidence']}")
sys.exit(bool(set(wanted) - proven))
