"""Explain a failed installation: find its cause in the package manager's output, and choose a hint.

corral knows the error messages of npm 9 to 11, uv and pip. If corral recognizes no line of the
output, it gives a general hint.
"""

import re
from collections.abc import Sequence

from corral.programs.installed_runtimes import find_fitting_node, find_fitting_python
from corral.record import record
from corral.servers.reference import Reference, normalize_name


@record
class Cause:
    """A known cause of a failure, recognized if `pattern` matches the output.

    `what` describes the cause to the user. Its {package} and {wanted} are replaced with the text of
    the first named group that matched.
    """

    pattern: str
    what: str
    hint: str


MAX_LINE_LENGTH = 1000
"""Longer lines are cut before they are searched. Packages and registries choose parts of the
output, and the time that a regular expression takes may grow with the square of a line's length.
"""
PACKAGE = r"(?<![\w@/.\-])(?P<package>[\w@/.\-]{1,214})"
NO_WHEEL = "{package} has no wheel for this Python, so it would have to be built"
BUILD = "--allow-install-scripts builds it in the sandbox of the installation"
UNREACHABLE = "the registry cannot be reached"
SILENT = "the registry does not answer"
NO_VERSION = "leave the version out to get the newest, or look for versions on the package's page"
NO_DEPENDENCY = (
    "another package depends on it, and that package is broken: try another version of the server,"
    " or tell its authors"
)
PYTHON = Cause(
    pattern=r"(?i)does not satisfy Python ?(?P<wanted>[<>=!~\d.,]+)"
    r"|requires (?:a different )?Python ?:? ?(?P<other>[<>=!~\d.,]+)"
    r"|Requires-Python (?P<third>[<>=!~\d.,]+)",
    what="it needs another version of Python{wanted}",
    hint="install a version that fits (`uv python install 3.13`) and name it (--python 3.13), or"
    " name an older version of the package",
)
NODE = Cause(
    pattern=r"(?m)^npm error code EBADENGINE$(?:.|\n)*?Required: .*?\"node\":\"(?P<wanted>[^\"]+)"
    r"|npm v?[\d.]+ (?:is known not to run on|does not support) Node\.js",
    what="it needs another version of Node.js{wanted}",
    hint="install a newer Node.js and name it (--node 24), or name an older version of the package",
)
VERSION = Cause(
    pattern=rf"(?i)No matching version found for {PACKAGE}@(?P<version>[^\s.]\S*?)\.?\s"
    rf"|there is no version of {PACKAGE.replace('package', 'other')}==(?P<third>[\w.\-+]+)"
    rf"|only {PACKAGE.replace('package', 'fourth')}[<>=!~]\S* (?:is|are) available and"
    r" [^\n]*depends? on (?P=fourth)",
    what="there is no such version of {package}",
    hint=NO_VERSION,
)
PIP_VERSION = Cause(
    pattern=rf"satisfies the requirement {PACKAGE}[<>=!~]\S*"
    r" (?:\(from (?!versions)[^\n]*?\) )?\(from versions: \d",
    what=VERSION.what,
    hint=NO_VERSION,
)
CAUSES = (
    Cause(
        pattern=r"ENOSPC|No space left on device|os error 28|EDQUOT|Disk quota exceeded"
        r"|os error 122",
        what="there is no space left",
        hint="free space on the disk of corral's cache, or set XDG_CACHE_HOME to another disk",
    ),
    Cause(
        pattern=r"(?i)ALTNAME_INVALID|NotValidForName|certificate not valid for name"
        r"|(?:hostname|ip address) mismatch|hostname '[^']*' doesn't match",
        what="the registry's certificate is for another host name",
        hint="is the registry's address right? Its certificate has to contain this host name",
    ),
    Cause(
        pattern=r"(?i)CERT_HAS_EXPIRED|certificate has expired|peer certificate: Expired",
        what="the registry's certificate has expired",
        hint="is the clock of this machine right? If it is, the registry needs a new certificate",
    ),
    Cause(
        pattern=r"(?i)invalid peer certificate|certificate verify failed|SELF_SIGNED_CERT"
        r"|UNABLE_TO_(GET|VERIFY)\w*|self.signed certificate",
        what="the registry's certificate is not trusted",
        hint="set SSL_CERT_FILE (uv), PIP_CERT (pip) or `cafile` in ~/.npmrc to the file with your"
        " organisation's certificates; for uv, `system-certs = true` in uv.toml works too",
    ),
    Cause(  # npm and uv cannot start git in the sandbox
        pattern=r"/@npmcli/git/|Git operation failed|Git executable not found",
        what="one of its dependencies is in a git repository, not in the registry",
        hint="corral installs only packages with a checksum in the registry; try another version"
        " of the server, or install it yourself and name its own command",
    ),
    PIP_VERSION,
    Cause(  # this message of pip names no cause; usually the package exists but has no wheel
        pattern=rf"satisfies the requirement {PACKAGE}\S* \(from (?!versions)[^\n]*versions: none",
        what=NO_WHEEL,
        hint=BUILD,
    ),
    Cause(
        pattern=rf"{PACKAGE}(?:==\S+)? has no (?:usable )?wheels"
        rf"|no wheels (?:with|are available for) {PACKAGE.replace('package', 'other')}"
        r"|building (?:source distributions )?is disabled",
        what=NO_WHEEL,
        hint=BUILD,
    ),
    PYTHON,
    NODE,
    VERSION,
    Cause(
        pattern=r"(?i)network timeout|ETIMEDOUT|ERR_SOCKET_TIMEOUT|timed out",
        what=SILENT,
        hint="try again later, and check HTTPS_PROXY and the registry's address; what was"
        " downloaded is kept for the next attempt",
    ),
    Cause(
        pattern=r"(?i)EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ECONNRESET|dns error|connection refused"
        r"|tcp connect error|Temporary failure in name resolution|NewConnectionError|FETCH_ERROR",
        what=UNREACHABLE,
        hint="is this machine online, and are HTTPS_PROXY and the registry's address right?",
    ),
    Cause(
        pattern=rf"(?i)\b404\b[^\n]*?'{PACKAGE}@|{PACKAGE.replace('package', 'other')} was not"
        r" found in the (?:package registry|provided package locations)"
        r"|No matching distribution found for (?P<third>[\w.\-]+)",
        what="{package} is not in the registry",
        hint="is its name spelled right? If another package depends on it, that package is broken",
    ),
)
UNKNOWN = Cause(
    pattern="",
    what="the package manager failed",
    hint="see its last lines above; is the name right, and can the registry be reached?",
)


def explain_failure(lines: Sequence[str], asked: Reference | None = None) -> tuple[str, str]:
    """Describe the failure and return a hint for it. `asked` is what the user wants to install."""
    text = "\n".join(line[:MAX_LINE_LENGTH] for line in lines)
    for cause in CAUSES:
        if found := re.search(cause.pattern, text):
            named = [value for value in found.groupdict().values() if value]
            package = named[0].strip("'`\",") if named else "a package"
            requirement = named[0].rstrip(".,") if named else ""
            wanted = f" ({requirement})" if named else ""
            hint = _find_better_hint(cause, package, requirement, asked)
            return cause.what.format(package=package, wanted=wanted), hint or cause.hint
    return UNKNOWN.what, UNKNOWN.hint


def _find_better_hint(cause: Cause, package: str, requirement: str, asked: Reference | None) -> str:
    if cause is PYTHON:
        found = find_fitting_python(requirement)
        return f"Python {found} is installed here: --python {found}" if found else ""
    if cause is NODE:
        return name_node(requirement)
    if asked is None or cause not in {VERSION, PIP_VERSION}:
        return ""
    return "" if normalize_name(package) == normalize_name(asked.name) else NO_DEPENDENCY


def name_node(requirement: str) -> str:
    """Return a hint that names an installed node with a fitting version. Return "" if there is
    none.
    """
    found = find_fitting_node(requirement)
    return f"node {found} is installed here: --node {found}" if found else ""
