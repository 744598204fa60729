"""Cut secrets from text that is shown, logged or sent, and find credentials in a recipe.

Text that is hashed, compared or stored for use never passes here. A secret is told by its name
(named_secrets.py), by its place (a URI) or by its form. Every search is linear in the text.
"""

import re
from typing import Any

from rungwise.core.configuration.named_secrets import CUT, find_named, is_named_secret

# With a key inside: a sentence about these lines has none.
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?=[^-]*(?:-(?!----)[^-]*)*[\w+/]{16})(?:[^-]|-(?!----))*(?:-----END [A-Z0-9 ]{0,50}-----)?"
)
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9_])(?:github_pat_\w{16,}"
    r"|(?:hf|api_org|gh[opsur]|npm|gsk|r8|[rsp]k_(?:live|test)|whsec|do[opr]_v1|shp(?:at|ca|ss)"
    r"|dckr_pat|lin_api|glsa|glc)_[A-Za-z0-9]{16,}"
    r"|(?:gl(?:pat|dt|rt|ptt)|nvapi|GOCSPX|pypi-Ag|xapp|xox[abeoprs])-?[\w-]{16,}"
    r"|sk-(?:[a-z]+\d*-){0,3}[A-Za-z0-9_]{20,}[\w-]*"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|hv[bsr]\.[\w-]{16,}"
    r"|SG\.[\w-]{16,}\.[\w-]{16,}|dapi[0-9a-f]{32}|AGE-SECRET-KEY-1[A-Z0-9]{16,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*|\d{8,10}:AA[\w-]{30,}"
    r"|hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+)"
)
_BEARER = re.compile(r"\b(bearer\s+)(?=[A-Za-z._~+/-]*[\d=])[\w.~+/-]{8,}=*", re.IGNORECASE)
_LOGIN = re.compile(
    r"(\blogin\s+\S+\s+password\s+|(?<![\w-])(?:-u|--user)[ =][^\s:\"']+:)[^\s\"']+"
)

_CHUNK = re.compile(r"\S+")
# User and password of a URI. A password may contain any character, so everything up to the last @
# is cut, or to the last one before a quote. Digits after the colon, up to a slash, are a port;
# image:tag@sha256:... has neither.
_OF_URI = re.compile(r"(?<=://)(?![^:/@?#]*:\d{1,5}(?:[/?#]|$))(?=[^/@?#]*:)(?:[^\"'<>`]*@|.*@)")
_LAST_AT = re.compile(r".*@(?!sha)")


def redact(text: str) -> str:
    """Cut secrets from a text for people."""
    text = _CHUNK.sub(_without_login, _PRIVATE_KEY.sub(CUT, text))
    text = _ISSUED.sub(CUT, text)
    for pattern in (_BEARER, _LOGIN):
        text = pattern.sub(rf"\1{CUT}", text)
    pieces, end = list[str](), 0
    for first, last in find_named(text):
        pieces += [text[end:first], CUT]
        end = last
    return "".join([*pieces, text[end:]])


def redact_data(value: Any, key: str = "") -> Any:
    """Apply `redact` to every string in plain data, and cut the values of keys of secrets."""
    if isinstance(value, str):
        return CUT if is_named_secret(key, value) else redact(value)
    if isinstance(value, dict):
        return {name: redact_data(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_data(item) for item in value]
    return value


def find_credential(value: Any, key: str = "") -> tuple[str, str] | None:
    """The dotted key and the kind of the first credential in the data of a recipe: of a URI, or a
    token or key by its form. Text like `name: value` is none, since labels may be like that."""
    if isinstance(value, str):
        kind = _credential_kind(value)
        return (key, kind) if kind else None
    items = enumerate(value) if isinstance(value, list | tuple) else ()
    items = value.items() if isinstance(value, dict) else items
    for name, item in items:
        if credential := find_credential(item, f"{key}.{name}" if key else str(name)):
            return credential
    return None


def _credential_kind(text: str) -> str:
    if _PRIVATE_KEY.search(text):
        return "a private key"
    if _ISSUED.search(text):
        return "a token"
    for chunk in _CHUNK.finditer(text):
        uri, _, query = chunk[0].partition("?")
        if "://" in uri and _without_login(chunk) != chunk[0]:
            return "a password"
        if "://" in uri and any(find_named(f"?{query}")):
            return "a signature or a key"
    return ""


def _without_login(chunk: re.Match[str]) -> str:
    """Cut user and password of each URI in a text without blanks."""
    parts = _LAST_AT.match(chunk[0])
    return _OF_URI.sub("", parts[0]) + chunk[0][parts.end() :] if parts else chunk[0]
