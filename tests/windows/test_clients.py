"""Test client configurations at Windows paths and with Windows line endings."""

import json

import pytest

CLAUDE = """\ufeff{\r
  "mcpServers": { // mine\r
    "time": {"command": "cmd", "args": ["/c", "npx", "-y", "some-server@1.2.3", "C:\\\\notes"]},\r
    "node": {\r
      "command": "C:\\\\Program Files\\\\nodejs\\\\node.exe",\r
      "env": {"API_KEY": "x"}\r
    },\r
    "shell": {"command": "powershell.exe", "args": ["-c", "x"]}\r
  }\r
}\r
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("APPDATA", str(tmp_path / "Roaming"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    (tmp_path / "corral.exe").write_bytes(b"")
    return tmp_path


def test_a_wrapped_configuration_is_restored_byte_for_byte(corral, home):
    path = home / "Roaming" / "Claude" / "claude_desktop_config.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(CLAUDE.encode())
    program = str(home / "corral.exe")
    # Wine has no AppContainers, so `wrap` would refuse every server without --best-effort.
    # With --no-install, `wrap` leaves slow steps, such as installations, to the first start.
    flags = ("--best-effort", "--no-install")
    done = corral("wrap", "claude-desktop", *flags, "--corral", program)
    assert done.returncode == 1, done.stderr  # corral refuses the server `shell`
    assert b"shell  refused" in done.stdout
    text = path.read_bytes().decode("utf-8-sig")
    assert text.count("\n") == text.count("\r\n")
    servers = json.loads(text.replace("// mine", ""))["mcpServers"]
    # `time` is an npm package. No npm package was ever installed here, so corral does not know
    # whether Windows would prevent the installation, and leaves the entry unchanged.
    assert b"time  left" in done.stdout
    assert servers["time"]["command"] != program
    node = "C:\\Program Files\\nodejs\\node.exe"
    assert servers["node"]["args"] == ["run", "--secret", "API_KEY", "--best-effort", "--", node]
    assert servers["shell"]["command"] == "powershell.exe"
    [told] = json.loads(corral("status", "--json", "claude-desktop").stdout)
    assert [row["state"] for row in told["servers"]] == ["not wrapped", "wrapped", "not wrapped"]
    assert corral("unwrap", "claude-desktop").returncode == 0
    assert path.read_bytes() == CLAUDE.encode()


def test_a_read_only_file_is_refused(corral, home):
    path = home / "mcp.json"
    path.write_bytes(CLAUDE.encode())
    path.chmod(0o444)
    try:
        done = corral("wrap", str(path), "--best-effort", "--corral", str(home / "corral.exe"))
        assert done.returncode == 125
        assert b"is read-only" in done.stderr
        assert path.read_bytes() == CLAUDE.encode()
    finally:
        path.chmod(0o666)
