"""Serve MCP over stdio without any tools, and answer every request."""

import json
import sys

RESULT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "serverInfo": {"name": "idle", "version": "1"},
}

for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": RESULT}), flush=True)
