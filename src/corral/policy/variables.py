"""Recognize secrets in environment variables and commands, and environment variables that change
which code programs load.

Nothing marks a value as a secret, so corral looks at the value's name and form. If in doubt, the
value counts as a secret. corral masks secrets in its own output, but a command's arguments remain
visible in process lists.
"""

from __future__ import annotations

from corral.safe_text import mask_spans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


SECRET_PARTS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "COOKIE", "SESSION",
    "PRIVATE", "AUTH", "BEARER", "DSN", "CONNECTION_STRING", "CONNECTIONSTRING", "CONN_STR",
    "DATABASE_URL", "DATABASE_URI", "DB_URL", "DB_URI", "APIKEY", "ACCESSKEY", "ACCOUNTKEY",
)  # fmt: skip
SECRET_WORDS = frozenset(("KEY", "KEYS", "PAT", "PASS", "PWD", "PIN", "JWT", "HEADERS"))
KEY_PREFIXES = (
    "sk-", "sk_", "rk_", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxp-",
    "xapp-", "AKIA", "ASIA", "AIza", "eyJ", "hf_", "npm_", "pypi-", "ntn_", "figd_", "tvly-",
    "lin_api_", "dop_v1_", "SG.",
)  # fmt: skip
MIN_KEY_LENGTH = 16
SEPARATORS = "?&;, \t\n"
VARIABLE = "${"


def is_secret_name(name: str) -> bool:
    upper = name.upper().replace("-", "_")
    return any(part in upper for part in SECRET_PARTS) or bool(SECRET_WORDS & set(upper.split("_")))


def is_secret(name: str, value: object) -> bool:
    """Return whether an environment variable looks like a secret, by its name or by its value. For
    example, API keys of well-known services and URLs with a password look like secrets.
    """
    return is_secret_name(name) or (isinstance(value, str) and masked((value,)) != (value,))


def masked(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command's words, after masking everything in them that looks like a secret."""
    return tuple(
        mask_spans(word, spans) for word, spans in zip(words, find_spans(words), strict=True)
    )


def find_spans(words: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return, for each word, the (start, end) of each part that looks like a secret.

    The search must take linear time, because a server may have chosen the words.
    """
    return [_find(word, before) for word, before in zip(words, ("", *words), strict=False)]


def _find(word: str, before: str) -> list[tuple[int, int]]:
    if value := _value(word, before):
        end = len(word.rstrip())
        return [(max(end - len(value), 0), end)]
    if word.startswith(KEY_PREFIXES) and len(word) >= MIN_KEY_LENGTH:
        return [(0, len(word))]
    return [*_find_password(word), *_find_pairs(word)]


def _value(word: str, before: str) -> str:
    """Return the part of a command's word that is the value of a secret, or ''.

    In `NAME=VALUE` and `NAME: VALUE`, this is the value, if the name looks like that of a secret.
    If `before`, the previous word, is an option with such a name, it is the whole word.
    """
    named = before.startswith("-") and "=" not in before and is_secret_name(before)
    found = word if named and not word.startswith("-") else ""
    for mark in "=:":
        name, between, value = word.partition(mark)
        if between and not value.startswith("//") and _is_name(name.lstrip("-")):
            found = found or value.strip()
    return "" if found.startswith(VARIABLE) else found


def _is_name(text: str) -> bool:
    return text.replace("-", "_").isidentifier() and is_secret_name(text)


def _find_password(word: str) -> Iterator[tuple[int, int]]:
    """Yield the span of the password in a URL, or of the user name if there is no password."""
    scheme, mark, rest = word.partition("://")
    user, at, _ = rest.replace("?", "/").partition("/")[0].rpartition("@")
    name, colon, password = user.partition(":")
    start = len(scheme) + len(mark)
    if mark and at and password:
        yield start + len(name) + 1, start + len(user)
    elif mark and name and not colon:
        yield start, start + len(user)


def _find_pairs(word: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of secret values in a list of `name=value`, such as the query of a URL."""
    pairs = word
    for letter in SEPARATORS:
        pairs = pairs.replace(letter, "&")
    start = 0
    for pair in pairs.split("&"):
        name, equals, value = pair.partition("=")
        end = start + len(pair)
        if equals and value and _is_name(name) and not value.startswith(VARIABLE):
            yield end - len(value), end
        start = end + 1


LOADER_PREFIXES = (
    "LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "PERL5", "PERLLIB", "RUBY", "BUNDLE_", "GEM_",
    "GIT_", "BASH_", "LUA_", "JAVA_", "_JAVA_", "JDK_", "DOTNET_", "COMPLUS_", "CORECLR_", "COR_",
    "NPM_CONFIG_", "PIP_", "UV_", "DENO_", "BUN_", "ELECTRON_", "OPENSSL_", "SSL_", "CURL_",
    "GCONV_", "SUDO_", "CORRAL_", "__PYVENV", "ASDF_", "MISE_", "RTX_", "VOLTA_", "PYENV_",
)  # fmt: skip
LOADER_NAMES = frozenset((
    "NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED",
    "NODE_REPL_EXTERNAL_MODULE", "NODE_V8_COVERAGE", "ENV", "IFS", "PS4", "PROMPT_COMMAND", "SHELL",
    "SHELLOPTS", "ZDOTDIR", "PATH", "PATHEXT", "COMSPEC", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR",
    "HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TMPDIR", "TEMP", "TMP", "XDG_CONFIG_HOME",
    "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "EDITOR", "VISUAL", "PAGER", "LESSOPEN",
    "LESSCLOSE", "LOCPATH", "NLSPATH", "TERMINFO", "TERMCAP", "HOSTALIASES", "RES_OPTIONS",
    "LOCALDOMAIN", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "ALL_PROXY", "NO_PROXY", "PHPRC", "PHP_INI_SCAN_DIR", "CLASSPATH", "GOFLAGS", "RUSTC_WRAPPER",
    "SSH_ASKPASS", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "TK_LIBRARY", "TCLLIBPATH",
    "SSLKEYLOGFILE", "XDG_RUNTIME_DIR", "NVM_DIR", "FNM_DIR", "MAMBA_ROOT_PREFIX",
))  # fmt: skip


def is_loader_variable(name: str) -> bool:
    """Return whether an environment variable changes what programs load or trust. The case of its
    name does not matter.
    """
    upper = name.upper()
    return upper in LOADER_NAMES or upper.startswith(LOADER_PREFIXES)
