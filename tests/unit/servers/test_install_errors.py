"""Test corral's messages for errors that npm, uv and pip print when an installation fails."""

import sys

import pytest

from corral.servers.packages.install_errors import UNKNOWN, explain_failure
from corral.servers.packages.npm import find_unmet_engine
from corral.servers.reference import parse_reference

# Output of npm 11.19, uv 0.9 and pip 23.2.
NPM_GIT = """\
npm error     at promiseRetry (/usr/lib/node_modules/npm/node_modules/@gar/promise-retry/lib/index.js:43:10)
npm error     at module.exports (/usr/lib/node_modules/npm/node_modules/@npmcli/git/lib/spawn.js:29:10) {
npm error   errno: -1,
npm error   code: 'EPERM',
npm error   syscall: 'spawn',
"""
UV_NO_WHEEL = """\
error: No solution found when resolving dependencies
  cause: Because proxy-tools==0.1.0 has no usable wheels and only proxy-tools==0.1.0 is available, we can conclude that all versions of proxy-tools cannot be used.
hint: Wheels are required for `proxy-tools` because building from source is disabled for all packages (i.e., with `--no-build`)"""
PIP_NO_WHEEL = """\
ERROR: Ignored the following versions that require a different python version: 0.0.0 Requires-Python >=3.14
ERROR: Could not find a version that satisfies the requirement proxy_tools (from pywebview) (from versions: none)
ERROR: No matching distribution found for proxy_tools"""
UV_PYTHON = "cause: Because the current Python version (3.11.7) does not satisfy Python>=3.12 and all versions of mcp-server-docker depend on Python>=3.12, we can conclude"
PIP_PYTHON = """\
ERROR: Ignored the following versions that require a different python version: 0.1.0 Requires-Python >=3.12; 0.2.0 Requires-Python >=3.12
ERROR: Could not find a version that satisfies the requirement mcp-server-docker (from versions: none)
ERROR: No matching distribution found for mcp-server-docker"""
UV_UNKNOWN = "cause: Because nosuch was not found in the package registry and you require nosuch, we can conclude that your requirements are unsatisfiable."
PIP_UNKNOWN = """\
ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)
ERROR: No matching distribution found for nosuch"""
NPM_UNKNOWN = """\
npm error code E404
npm error 404 Not Found - GET https://registry.example/nosuch
npm error 404  The requested resource 'nosuch@*' could not be found or you do not have permission to access it."""
NPM_SCOPED = """\
npm error code E404
npm error 404 Not Found - GET https://registry.example/@scope%2fnosuch
npm error 404  The requested resource '@scope/nosuch@*' could not be found or you do not have permission to access it."""
NPM_VERSION = """\
npm error code ETARGET
npm error notarget No matching version found for @scope/server@99.0.0.
npm error notarget In most cases you or one of your dependencies are requesting a package version that doesn't exist."""
UV_VERSION = "cause: Because there is no version of server==9.9.9 and you require server==9.9.9, we can conclude that your requirements are unsatisfiable."
PIP_VERSION = """\
ERROR: Could not find a version that satisfies the requirement server==9.9.9 (from versions: 0.1.3, 1.0.0)
ERROR: No matching distribution found for server==9.9.9"""
NPM_TIMEOUT = """\
npm error code FETCH_ERROR
npm error errno FETCH_ERROR
npm error network timeout at: http://registry.example/server"""
UV_TIMEOUT = """\
error: Request failed after 1 retry in 61.4s
  cause: Failed to fetch: http://registry.example/simple/server/
  cause: operation timed out"""
PIP_TIMEOUT = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'ReadTimeoutError("HTTPConnectionPool(host='registry.example', port=80): Read timed out. (read timeout=30.0)")': /simple/server/
ERROR: Could not find a version that satisfies the requirement server (from versions: none)
ERROR: No matching distribution found for server"""
NPM_ENGINE = """\
npm error code EBADENGINE
npm error engine Unsupported engine
npm error engine Not compatible with your version of node/npm: server@1.0.0
npm error notsup Not compatible with your version of node/npm: server@1.0.0
npm error notsup Required: {"node":">=999"}
npm error notsup Actual:   {"npm":"11.19.1","node":"v20.20.2"}"""
NPM_ALTNAME = """\
npm error code ERR_TLS_CERT_ALTNAME_INVALID
npm error Hostname/IP does not match certificate's altnames: Host: registry.example. is not in the cert's altnames: DNS:other.example"""
UV_ALTNAME = 'cause: invalid peer certificate: certificate not valid for name "registry.example"; certificate is only valid for DnsName("other.example")'
PIP_ALTNAME = "SSLCertVerificationError(1, \"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch, certificate is not valid for 'registry.example'. (_ssl.c:1002)\")"
PIP_23_ALTNAME = "WARNING: Could not fetch URL https://registry.example/simple/server/: connection error: hostname 'registry.example' doesn't match either of 'other.example', '10.0.0.1' - skipping"
NPM_TRANSITIVE = """\
npm error code ETARGET
npm error notarget No matching version found for dep@^5.
npm error notarget In most cases you or one of your dependencies are requesting a package version that doesn't exist."""
UV_TRANSITIVE = """\
error: No solution found when resolving dependencies
  cause: Because only dep==2.0.0 is available and all versions of server depend on dep>=5, we can conclude that all versions of server cannot be used.
         And because you require server==1.0.0, we can conclude that your requirements are unsatisfiable."""
PIP_TRANSITIVE = """\
ERROR: Could not find a version that satisfies the requirement dep>=5 (from server) (from versions: 2.0.0)
ERROR: No matching distribution found for dep>=5"""


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (NPM_TIMEOUT, "does not answer", "try again later"),
        (UV_TIMEOUT, "does not answer", "try again later"),
        (PIP_TIMEOUT, "does not answer", "try again later"),
        ("npm error code FETCH_ERROR", "cannot be reached", "HTTPS_PROXY"),
        (NPM_ENGINE, "it needs another version of Node.js (>=999)", "--node"),
        (NPM_ALTNAME, "for another host name", "address right"),
        (UV_ALTNAME, "for another host name", "address right"),
        (PIP_ALTNAME, "for another host name", "address right"),
        (PIP_23_ALTNAME, "for another host name", "address right"),
        ("npm error code CERT_HAS_EXPIRED", "has expired", "clock"),
        (UV_NO_WHEEL, "proxy-tools has no wheel", "--allow-install-scripts"),
        (NPM_GIT, "in a git repository", "checksum"),
        (PIP_NO_WHEEL, "proxy_tools has no wheel", "--allow-install-scripts"),
        (UV_PYTHON, "it needs another version of Python (>=3.12)", "--python"),
        (PIP_PYTHON, "it needs another version of Python (>=3.12)", "--python"),
        (UV_UNKNOWN, "nosuch is not in the registry", "spelled"),
        (PIP_UNKNOWN, "nosuch is not in the registry", "spelled"),
        (NPM_SCOPED, "@scope/nosuch is not in the registry", "spelled"),
        (NPM_UNKNOWN, "nosuch is not in the registry", "spelled"),
        (NPM_VERSION, "no such version of @scope/server", "newest"),
        (UV_VERSION, "no such version of server", "newest"),
        (PIP_VERSION, "no such version of server", "newest"),
        ("npm warn tar TAR_ENTRY_ERROR ENOSPC: no space left", "no space left", "XDG_CACHE_HOME"),
        ("uv: Disk quota exceeded (os error 122)", "no space left", "XDG_CACHE_HOME"),
        ("error: invalid peer certificate: UnknownIssuer", "certificate", "SSL_CERT_FILE"),
        ("npm error code SELF_SIGNED_CERT_IN_CHAIN", "certificate", "cafile"),
        ("npm error code EAI_AGAIN", "cannot be reached", "HTTPS_PROXY"),
        ("error: tcp connect error: Connection refused", "cannot be reached", "HTTPS_PROXY"),
    ],
)
def test_the_cause_of_a_known_installer_error_is_named_with_a_hint(text, what, hint):
    found, help_ = explain_failure(text.split("\n"))
    assert what in found
    assert hint in help_


@pytest.mark.parametrize("text", [NPM_TRANSITIVE, UV_TRANSITIVE, PIP_TRANSITIVE])
def test_a_missing_version_of_a_dependency_has_its_own_hint(text):
    """Check the hint for a missing version of a dependency. It must not say to leave out the
    version, because the user did not type this version.
    """
    what, hint = explain_failure(text.split("\n"), parse_reference("npm:server"))
    assert what == "there is no such version of dep"
    assert "leave the version out" not in hint
    assert "another version of the server" in hint
    # Sanity check: if the user typed the missing version, the hint says to leave it out.
    assert (
        "leave the version out"
        in explain_failure(text.split("\n"), parse_reference("npm:dep@5.0.0"))[1]
    )


def test_a_suitable_installed_python_is_named():
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"--python {own}" in explain_failure([f"does not satisfy Python=={own}.*"])[1]
    assert "is installed here" not in explain_failure(["does not satisfy Python>=3.999"])[1]


def test_an_unknown_installer_error_gets_the_general_hint():
    assert explain_failure(["something else"]) == (UNKNOWN.what, UNKNOWN.hint)


LONGEST = 1 << 16
HOSTILE = {
    "name": ["a" * LONGEST],
    "names": ["a" * 200 + " ", "@/" * LONGEST],
    "engine": ["npm error code EBADENGINE Required: " * (LONGEST // 36)] * 12,
    "required": ["npm error code EBADENGINE", *["Required: " * (LONGEST // 10)] * 11],
    "only": ["only a<b are available and " * (LONGEST // 27)],
    "missing": ["404 '" * (LONGEST // 5)],
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE)
def test_a_very_long_line_is_searched_in_a_moment(lines):
    """Search very long lines. With a pattern whose time grows with the square of the length, this
    would take minutes.
    """
    assert explain_failure(lines) == (UNKNOWN.what, UNKNOWN.hint)
    said = "nosuch was not found in the package registry"
    # Sanity check: an error after the long lines is found.
    assert "nosuch is not" in explain_failure([*lines, said])[0]


def test_a_requirement_with_too_many_digits_is_no_error():
    nines = "9" * 5000
    for lines in ([f"Requires-Python >=3.{nines}"], [f"does not satisfy Python>={nines}"]):
        assert "is installed here" not in explain_failure(lines)[1]
    engine = ["npm error code EBADENGINE", f'Required: {{"node":">={nines[:900]}"}}']
    assert "it needs another version of Node.js" in explain_failure(engine)[0]


ENGINE = """\
npm warn EBADENGINE Unsupported engine {
npm warn EBADENGINE   package: 'other@1.0.0',
npm warn EBADENGINE   required: { node: '>=1' },
npm warn EBADENGINE   current: { node: 'v1.2.3', npm: '10.8.2' }
npm warn EBADENGINE }
npm warn EBADENGINE Unsupported engine {
npm warn EBADENGINE   package: 'server@1.0.0',
npm warn EBADENGINE   required: { npm: '>=9', node: '>=999' },
npm warn EBADENGINE   current: { node: 'v20.20.2', npm: '10.8.2' }
npm warn EBADENGINE }
""".splitlines()


def test_npms_warning_about_the_engine_of_a_package_is_found():
    assert find_unmet_engine(ENGINE, "server@1.0.0") == (">=999", "20.20.2")
    assert find_unmet_engine(ENGINE, "server@2.0.0") is None
    assert find_unmet_engine(ENGINE[:7], "server@1.0.0") is None


def test_many_warnings_about_engines_are_searched_in_a_moment():
    package = "npm warn EBADENGINE   package: 'server@1.0.0',"
    line = "npm warn EBADENGINE   required: { " + "node: '1' required: " * 1000
    assert find_unmet_engine([package, line] * 1000, "server@1.0.0") is None
