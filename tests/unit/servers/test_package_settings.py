"""Which registries the user's own npm, pip and uv would ask: those and no others, with their credentials hidden."""

from __future__ import annotations

import os
import sys

import pytest

from corral.errors import SandboxError
from corral.servers.packages import npm_settings, pypi_settings, sandboxed_install
from corral.servers.packages.package import package_key
from corral.servers.packages.sources import without_credentials
from corral.servers.reference import parse_reference


@pytest.fixture
def env(tmp_path):
    """Nothing of this machine's: every file that could speak is the test's own."""
    (tmp_path / "config").mkdir()
    (tmp_path / "pip.conf").touch()
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "USERPROFILE": str(tmp_path),
        "APPDATA": str(tmp_path / "config"),
        "PROGRAMDATA": str(tmp_path / "machine"),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "npm_config_userconfig": str(tmp_path / ".npmrc"),
    }


def test_npm_reads_the_users_file_and_the_environment(env, tmp_path):
    (tmp_path / ".npmrc").write_text(
        "; comment\nregistry=https://one.example.com/npm/\n@corp:registry = https://corp.example.com/\n"
        "//corp.example.com/:_authToken=${TOKEN}\n//other.example.com/:_authToken=not-needed\nscript-shell=/bin/evil\n"
    )
    found = npm_settings.read_registry({**env, "TOKEN": "s3cret"})
    assert found.urls == ("https://one.example.com/npm/", "https://corp.example.com/")
    assert list(found.secrets.values()) == ["s3cret"]
    assert found.hidden == ("s3cret",)
    lines = dict(npm_settings.settings_lines(found, {**env, "TOKEN": "s3cret"}))
    assert lines["//corp.example.com/:_authToken"] == "${CORRAL_NPM_0}"
    assert not {"script-shell", "//other.example.com/:_authToken"} & lines.keys()
    assert "s3cret" not in str(lines)
    own = npm_settings.read_registry({**env, "npm_config_registry": "https://two.example.com"})
    assert own.urls[0] == "https://two.example.com"


def test_npm_registries_are_web_addresses(env):
    with pytest.raises(SandboxError, match="no web address"):
        npm_settings.read_registry({**env, "npm_config_registry": "file:///etc"})


def test_a_password_in_the_address_of_an_npm_registry(env):
    with pytest.raises(SandboxError, match="has a password in it") as caught:
        npm_settings.read_registry(
            {**env, "npm_config_registry": "https://me:s3cret@npm.example.com/"}
        )
    assert "s3cret" not in str(caught.value)


def test_a_project_in_the_working_directory_has_no_say(env, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".npmrc").write_text("registry=https://evil.example.com/\n")
    monkeypatch.chdir(tmp_path / "project")
    assert npm_settings.read_registry(env).urls[0] != "https://evil.example.com/"


def test_pip_and_its_environment(env, tmp_path):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://me:s3cret@pypi.example.com/simple\n"
        "extra-index-url =\n    https://more.example.com/simple\n    file:///srv/pypi/simple\n"
        "[install]\nfind-links = /srv/wheels\n"
    )
    found = pypi_settings.read_registry(env)
    assert found.urls == (
        "https://me:s3cret@pypi.example.com/simple",
        "https://more.example.com/simple",
    )
    assert found.hidden == ("s3cret",)
    assert found.secrets["UV_DEFAULT_INDEX"] == found.urls[0]
    assert found.secrets["PIP_FIND_LINKS"] == "/srv/wheels"
    assert found.settings == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    assert without_credentials(found.urls[0]) == "https://pypi.example.com/simple"
    own = pypi_settings.read_registry({**env, "PIP_INDEX_URL": "https://two.example.com/simple"})
    assert own.urls[0] == "https://two.example.com/simple"


def test_pips_files_are_where_this_system_has_them(env, tmp_path, monkeypatch):
    """On Windows anybody may make a directory /etc."""
    env = {name: value for name, value in env.items() if name != "PIP_CONFIG_FILE"}
    monkeypatch.setattr(sys, "platform", "win32")
    everybody, own = pypi_settings.pip_files(env)
    assert everybody == [os.path.join(tmp_path, "machine", "pip", "pip.ini")]
    assert own[-1] == os.path.join(tmp_path, "config", "pip", "pip.ini")
    monkeypatch.setattr(sys, "platform", "linux")
    everybody, own = pypi_settings.pip_files(env)
    assert "/etc/pip.conf" in everybody
    assert own[-1] == os.path.join(tmp_path, "config", "pip", "pip.conf")


def test_an_index_on_disk_is_read_with_the_files_beside_it(env, tmp_path):
    (tmp_path / "index" / "simple").mkdir(parents=True)
    place = str(tmp_path / "index")
    found = pypi_settings.read_registry({**env, "UV_DEFAULT_INDEX": f"file://{place}/simple"})
    assert (found.urls, found.reads) == ((), (place,))


def test_uv_comes_before_pip(env, tmp_path):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://pip.example.com/simple\n")
    (tmp_path / "config" / "uv").mkdir()
    (tmp_path / "config" / "uv" / "uv.toml").write_text(
        '[[index]]\nurl = "https://a.example.com/simple"\n[[index]]\nurl = "https://b.example.com/simple"\ndefault = true\n'
    )
    found = pypi_settings.read_registry(env)
    assert found.urls == ("https://b.example.com/simple", "https://a.example.com/simple")
    assert found.settings == {}
    named = pypi_settings.read_registry({**env, "UV_INDEX": "corp=https://c.example.com/simple"})
    assert named.urls[1] == "https://c.example.com/simple"


def test_without_settings_it_is_pypi_and_where_its_files_lie(env):
    found = pypi_settings.read_registry(env)
    assert found.urls[0] == "https://pypi.org/simple"
    assert found.urls[1] == "https://files.pythonhosted.org/"


def test_a_token_in_place_of_a_name_is_hidden_too(env):
    found = pypi_settings.read_registry(
        {**env, "UV_DEFAULT_INDEX": "https://t0ken@pypi.example.com/simple"}
    )
    assert found.hidden == ("t0ken",)


@pytest.mark.parametrize("url", ["ftp://example.com/", "simple", "ssh://x"])
def test_an_index_is_a_web_address_or_a_place_on_disk(env, url):
    with pytest.raises(SandboxError, match="no address that corral knows"):
        pypi_settings.read_registry({**env, "UV_DEFAULT_INDEX": url})


def test_exactly_the_registrys_hosts_and_ports_may_be_reached():
    urls = ["http://127.0.0.1:4873/npm/", "https://[::1]:8443/", "http://127.0.0.1:4873/other"]
    assert sandboxed_install.urls_to_rules(urls) == ["127.0.0.1:4873", "[::1]:8443"]
    # A name that leads to an address the gateway would not dial: named, because the user named it.
    assert set(sandboxed_install.urls_to_rules(["https://localhost:7777/"])) >= {
        "localhost:7777",
        "127.0.0.1:7777",
    }


def test_what_makes_another_installation():
    keys = {
        package_key(parse_reference(word), scripts=scripts, extra=extra)
        for word in ("npm:x", "npm:x@1", "npm:x@1#a", "pypi:x", "pypi:x==1", "pypi:x[a]==1")
        for scripts in (False, True)
        for extra in ((), ("mcp<2",))
    }
    assert len(keys) == 6 * 2 * 2
    assert package_key(parse_reference("pypi:My_X"), scripts=False, extra=()) == package_key(
        parse_reference("pypi:my-x"), scripts=False, extra=()
    )


def test_the_output_of_an_installer_is_shown_without_secrets_or_escapes(tmp_path):
    with open(tmp_path / "log", "w+b") as log:
        log.write(b"\n".join(b"line %d" % at for at in range(100)) + b"\n\x1b[2Jtoken s3cret\n")
        lines = sandboxed_install.read_log_end(log, ["s3cret"])
    assert "s3cret" not in "".join(lines)
    assert "\x1b" not in "".join(lines)
    assert len(lines) == sandboxed_install.MAX_LOG_LINES
