"""Test which registries the user's npm, pip and uv would use, and that credentials stay hidden."""

from __future__ import annotations

import os
import sys

import pytest

from corral.errors import SandboxError
from corral.servers.packages import npm_settings, pypi_settings, sandboxed_install
from corral.servers.packages.package import package_key
from corral.servers.packages.sources import InstallOptions, Registry, without_credentials
from corral.servers.reference import parse_reference


@pytest.fixture
def env(tmp_path):
    """Return environment variables that point only to settings of this test."""
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


def test_npm_registries_must_be_web_addresses(env):
    with pytest.raises(SandboxError, match="not a web address"):
        npm_settings.read_registry({**env, "npm_config_registry": "file:///etc"})


def test_a_password_in_the_address_of_an_npm_registry_is_hidden(env):
    with pytest.raises(SandboxError, match="has a password in it") as caught:
        npm_settings.read_registry(
            {**env, "npm_config_registry": "https://me:s3cret@npm.example.com/"}
        )
    assert "s3cret" not in str(caught.value)


def test_settings_in_the_working_directory_are_ignored(env, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".npmrc").write_text("registry=https://evil.example.com/\n")
    monkeypatch.chdir(tmp_path / "project")
    assert npm_settings.read_registry(env).urls[0] != "https://evil.example.com/"


def test_pip_reads_its_file_and_the_environment(env, tmp_path):
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


def test_pips_files_are_read_from_the_directories_of_this_system(env, tmp_path, monkeypatch):
    """Check that /etc is not read on Windows, where any user can create a directory with this name."""
    env = {name: value for name, value in env.items() if name != "PIP_CONFIG_FILE"}
    monkeypatch.setattr(sys, "platform", "win32")
    everybody, own = pypi_settings.pip_files(env)
    assert everybody == [os.path.join(tmp_path, "machine", "pip", "pip.ini")]
    assert own[-1] == os.path.join(tmp_path, "config", "pip", "pip.ini")
    monkeypatch.setattr(sys, "platform", "linux")
    everybody, own = pypi_settings.pip_files(env)
    assert "/etc/pip.conf" in everybody
    assert own[-1] == os.path.join(tmp_path, "config", "pip", "pip.conf")


def test_an_index_on_disk_is_readable_with_the_files_beside_it(env, tmp_path):
    (tmp_path / "index" / "simple").mkdir(parents=True)
    place = str(tmp_path / "index")
    found = pypi_settings.read_registry({**env, "UV_DEFAULT_INDEX": f"file://{place}/simple"})
    assert (found.urls, found.reads) == ((), (place,))


def test_uvs_settings_come_before_pips(env, tmp_path):
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


def test_without_settings_the_index_is_pypi(env):
    found = pypi_settings.read_registry(env)
    assert found.urls[0] == "https://pypi.org/simple"
    assert found.urls[1] == "https://files.pythonhosted.org/"


def test_a_token_in_place_of_a_user_name_is_hidden_too(env):
    found = pypi_settings.read_registry(
        {**env, "UV_DEFAULT_INDEX": "https://t0ken@pypi.example.com/simple"}
    )
    assert found.hidden == ("t0ken",)


@pytest.mark.parametrize("url", ["ftp://example.com/", "simple", "ssh://x"])
def test_an_index_must_be_a_web_address_or_a_path(env, url):
    with pytest.raises(SandboxError, match="not a web address or an absolute path"):
        pypi_settings.read_registry({**env, "UV_DEFAULT_INDEX": url})


def test_only_the_registrys_hosts_and_ports_are_allowed():
    urls = ["http://127.0.0.1:4873/npm/", "https://[::1]:8443/", "http://127.0.0.1:4873/other"]
    assert sandboxed_install.urls_to_rules(urls) == ["127.0.0.1:4873", "[::1]:8443"]
    # A registry on localhost also needs a rule for 127.0.0.1, because corral refuses connections to
    # loopback addresses that no rule names.
    assert set(sandboxed_install.urls_to_rules(["https://localhost:7777/"])) >= {
        "localhost:7777",
        "127.0.0.1:7777",
    }


def test_settings_that_change_packages_make_another_installation():
    keys = {
        package_key(parse_reference(word), InstallOptions(scripts=scripts, extra=extra))
        for word in ("npm:x", "npm:x@1", "npm:x@1#a", "pypi:x", "pypi:x==1", "pypi:x[a]==1")
        for scripts in (False, True)
        for extra in ((), ("mcp<2",))
    }
    assert len(keys) == 6 * 2 * 2
    plain = InstallOptions()
    assert package_key(parse_reference("pypi:My_X"), plain) == package_key(
        parse_reference("pypi:my-x"), plain
    )


def test_another_runtime_makes_another_installation():
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    keys = {
        version: package_key(
            parse_reference("pypi:x"), InstallOptions(runtimes={"python": version})
        )
        for version in (own, "3.99", "/opt/python")
    }
    assert len(set(keys.values())) == 3
    assert keys[own] == package_key(parse_reference("pypi:x"), InstallOptions())
    node = package_key(parse_reference("npm:x"), InstallOptions(runtimes={"node": "22"}))
    assert node != package_key(parse_reference("npm:x"), InstallOptions())


def test_a_silent_registry_is_reported_once(tmp_path):
    lines: list[str] = []
    registry = Registry(urls=("https://registry.example/",))
    silence = sandboxed_install._Silence(str(tmp_path), registry, lines.append)
    for own in (".lock", "_logs/debug-0.log", "interpreter-v5/ab/python.msgpack"):
        (tmp_path / own).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / own).write_text("written without an answer")
    silence.look(sandboxed_install.SILENT_SECONDS - 1)
    assert lines == []
    for seconds in (sandboxed_install.SILENT_SECONDS, 100):
        silence.look(seconds)
    (line,) = lines
    assert line.startswith(
        "registry.example has not answered for 12 s; the installer gives up after two attempts of 30 s each"
    )
    answered = sandboxed_install._Silence(str(tmp_path), registry, lines.append)
    (tmp_path / "index").write_text("what the registry answered")
    answered.look(100)
    assert len(lines) == 1  # a registry that has answered is not reported


def test_the_output_of_an_installer_is_shown_without_secrets_or_escapes(tmp_path):
    with open(tmp_path / "log", "w+b") as log:
        log.write(b"\n".join(b"line %d" % at for at in range(100)) + b"\n\x1b[2Jtoken s3cret\n")
        lines = sandboxed_install.read_log_end(log, ["s3cret"])
    assert "s3cret" not in "".join(lines)
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "line 0"


@pytest.mark.parametrize("key", ["system-certs", "native-tls"])
def test_uv_uses_the_systems_certificates_if_its_settings_say_so(env, tmp_path, key):
    (tmp_path / "config" / "uv").mkdir(parents=True, exist_ok=True)
    file = tmp_path / "config" / "uv" / "uv.toml"
    names = {"UV_SYSTEM_CERTS", "UV_NATIVE_TLS"}
    file.write_text(f"{key} = false\n")
    assert not names & pypi_settings.read_registry(env).settings.keys()
    file.write_text(f"{key} = true\n")
    assert names <= pypi_settings.read_registry(env).settings.keys()
    file.unlink()
    for name in names:
        assert names <= pypi_settings.read_registry({**env, name: "1"}).settings.keys()


def test_the_order_of_indexes_and_the_scope_of_a_registry_change_the_cache_key(env, tmp_path):
    one, two = "https://one.example.com/simple", "https://two.example.com/simple"
    keys = {
        pypi_settings.fingerprint_registry({**env, "UV_DEFAULT_INDEX": main, "UV_INDEX": more})
        for main, more in ((one, two), (two, one), (one, ""), (one, one))
    }
    # There are four cases, but (one, one) has the same key as (one, ""), because an index that is
    # listed twice counts once.
    assert len(keys) == 3
    found = set()
    for scope in ("@a", "@b"):
        (tmp_path / ".npmrc").write_text(f"{scope}:registry=https://corp.example.com/\n")
        found.add(npm_settings.fingerprint_registry(env))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("names", "archives", "index"),
    [
        (["plain", "@b/x"], ["https://registry.npmjs.org/a.tgz"], "https://registry.npmjs.org"),
        (["@a/x"], ["https://registry.npmjs.org/a.tgz"], ""),
        (["plain"], ["https://corp.example.com/a.tgz"], ""),
        (["plain"], [""], ""),
    ],
)
def test_an_installation_remembers_its_registry(env, tmp_path, names, archives, index):
    (tmp_path / ".npmrc").write_text("@a:registry=https://corp.example.com/\n")
    assert npm_settings.find_index(names, archives, env) == index
