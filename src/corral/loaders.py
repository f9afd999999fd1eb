"""Environment variables that make a loader, a runtime or a tool run or trust something else.

A server may not set these for itself without approval: they change which code starts, or whom it
trusts, before the first line of the server that somebody looked at.
"""

from __future__ import annotations

PREFIXES = (
    "LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "PERL5", "PERLLIB", "RUBY", "BUNDLE_", "GEM_",
    "GIT_", "BASH_", "LUA_", "JAVA_", "_JAVA_", "JDK_", "DOTNET_", "COMPLUS_", "CORECLR_", "COR_",
    "NPM_CONFIG_", "PIP_", "UV_", "DENO_", "BUN_", "ELECTRON_", "OPENSSL_", "SSL_", "CURL_",
    "GCONV_", "SUDO_", "CORRAL_", "__PYVENV",
)  # fmt: skip
NAMES = frozenset((
    "NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED",
    "NODE_REPL_EXTERNAL_MODULE", "NODE_V8_COVERAGE", "ENV", "IFS", "PS4", "PROMPT_COMMAND", "SHELL",
    "SHELLOPTS", "ZDOTDIR", "PATH", "PATHEXT", "COMSPEC", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR",
    "HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TMPDIR", "TEMP", "TMP", "XDG_CONFIG_HOME",
    "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "EDITOR", "VISUAL", "PAGER", "LESSOPEN",
    "LESSCLOSE", "LOCPATH", "NLSPATH", "TERMINFO", "TERMCAP", "HOSTALIASES", "RES_OPTIONS",
    "LOCALDOMAIN", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "ALL_PROXY", "NO_PROXY", "PHPRC", "PHP_INI_SCAN_DIR", "CLASSPATH", "GOFLAGS", "RUSTC_WRAPPER",
    "SSH_ASKPASS", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "TK_LIBRARY", "TCLLIBPATH",
))  # fmt: skip


def is_loader_variable(name: str) -> bool:
    """Names are compared without case: Windows does, and proxies are written both ways."""
    upper = name.upper()
    return upper in NAMES or upper.startswith(PREFIXES)
