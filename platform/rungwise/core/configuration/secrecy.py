"""Keep passwords, tokens and keys out of records, MLflow, spools and the terminal.

A secret is recognised by its place (before the @ of a URI, after the = of a name such as API_KEY)
or by its own form (a private key, a token with the prefix of its issuer). A random text by itself
is none: so do digests look. Every search takes time proportional to the text.
"""

import re
from typing import Any

_CHUNK = re.compile(r"\S+")
_AUTHORITY = re.compile(r"[^/@?\s]*")
_NAMES = (
    r"(?:secret|passw(?:or)?d|pwd|passphrase|credentials?|signature|sig|cookie|"
    r"(?:access|auth|bearer|session|refresh|security|id|api|private|bot|user|hf|hub|gh|git|github|"
    r"gitlab|slack|npm|pypi|wandb|vault)[_-]?token|"
    r"(?:api|access|account|private|signing|encryption|master|shared[_-]?access|subscription|"
    r"secret|service|auth|license)[_-]?key)(?:[_-]?(?:id|base64|b64))?"
)
# What follows a name in code: an expression, a type or a constant.
_CODE = (
    r"(?![A-Za-z_]\w*[.(\[]|\$|(?:str|bytes|int|bool|Any|SecretStr|Optional|None|True|False|null|true"
    r"|false)\b)"
)
_VALUE = r"[^\s\"'&;,(){}\[\]<>]"
# `NAME=value`, `name: "value"` and `--name value`.
_NAMED = re.compile(
    rf"(?<![\w.-])((?:--[\w.-]*{_NAMES}(?:\s+|\s*=\s*)|[\w.-]*{_NAMES}[\"']?\s*(?:=|:(?!/))\s*)[\"']?)"
    rf"{_CODE}{_VALUE}{{3,}}",
    re.IGNORECASE,
)
# A token may also be a piece of text, so its form counts too.
_TOKEN = re.compile(
    r"(?<![\w.-])((?:[\w.-]*[_-])?token[\"']?(?:\s*=\s*|\s*:(?!/)\s*|\s+)[\"']?)"
    r"(?=[A-Za-z_~+/.-]*\d)[\w~+/.-]{16,}=*",
    re.IGNORECASE,
)
# In the query of an address every such word is a name, and so are shorter ones.
_QUERY = re.compile(
    r"([?&;][\w.-]*(?:signature|sig|token|secret|password|passwd|pwd|credential|key|auth|sas|jwt|"
    r"code|session)=)[^&;\s\"']*",
    re.IGNORECASE,
)
# Variables of a shell whose names are in capitals, as GH_TOKEN.
_VARIABLE = re.compile(
    r"(?<![\w.])((?:[A-Z0-9_]*PASSWORD|(?:[A-Z0-9_]*_)?(?:TOKEN|SECRET|PASSWD|PASS|KEY|CREDENTIALS?))"
    rf"(?:_(?!PATH|FILE|DIR|NAME|MODE)[A-Z0-9]+)?[\"']?\s*[=:]\s*[\"']?){_CODE}{_VALUE}{{6,}}"
)
_SCHEME = re.compile(
    r"\b((?:bearer|basic)\s+)(?=[A-Za-z._~+/-]*[\d=])[\w.~+/-]{8,}=*", re.IGNORECASE
)
_LOGIN = re.compile(r"((?<![\w-])(?:-u|--user)[= ]\s*[^\s:]+:|\blogin\s+\S+\s+password\s+)\S+")
# No digest of an image: name:tag@sha256:...
_USER_AT_HOST = re.compile(
    r"(?<![\w./:@])\w[\w.+-]{0,63}:[^\s/:@\"'(){}\[\]<>,]{3,128}@(?!sha\d+:)(?=[A-Za-z0-9])"
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*"
    r"(?:-----END [A-Z0-9 ]{0,50}-----)?"
)
# The tokens of services that people of this field use, by the prefix that their issuer gives them.
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    r"hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|"
    r"github_pat_\w{16,}|gl(?:pat|dt|rt|cbt|ptt|soat)-[\w-]{16,}|"
    r"sk-(?:[a-z0-9]+-)*[A-Za-z0-9_]{16,}[\w-]*|[rs]k_(?:live|test)_\w{16,}|gsk_\w{16,}|nvapi-[\w-]{16,}|"
    r"r8_[A-Za-z0-9]{16,}|xai-\w{16,}|pplx-\w{16,}|tgp_v1_[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|"
    r"xapp-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}|"
    r"pypi-Ag[\w-]{16,}|npm_[A-Za-z0-9]{16,}|dckr_(?:pat|oat)_[\w-]{16,}|"
    r"do[opr]_v1_[0-9a-f]{16,}|dapi[0-9a-f]{32}|hv[bsr]\.[\w-]{16,}|gl(?:c|sa)_[\w+/=-]{16,}|"
    r"SG\.[\w-]{16,}\.[\w-]{16,}|shp(?:at|ca|pa|ss)_[0-9a-f]{16,}|lin_api_\w{16,}|"
    r"eyJ[\w-]{8,}\.eyJ[\w-]{4,}\.[\w-]*|\d{8,10}:AA[\w-]{30,}|AGE-SECRET-KEY-1[A-Z0-9]{16,}|"
    r"hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+)"
)
_CUT = "..."


def without_password(text: str) -> str:
    """Remove what looks like a secret from a text: passwords of URIs, tokens and private keys."""
    text = _PRIVATE_KEY.sub(_CUT, _CHUNK.sub(_without_user, text))
    for pattern in (_QUERY, _VARIABLE, _NAMED, _TOKEN, _SCHEME, _LOGIN):
        text = pattern.sub(rf"\1{_CUT}", text)
    return _USER_AT_HOST.sub("", _ISSUED.sub(_CUT, text))


def without_passwords(value: Any) -> Any:
    """Apply `without_password` to every string in plain data except keys."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, dict):
        return {key: without_passwords(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_passwords(item) for item in value]
    return value


def _without_user(chunk: re.Match[str]) -> str:
    """Cut the user and password of each URI in a text without blanks.

    A password may contain any character, so after a colon everything up to the last @ is cut. An @
    after a slash belongs to a path unless a colon precedes the slash.
    """
    text = chunk[0]
    last = text.rfind("@")
    parts, end = [], 0
    while (scheme := text.find("://", end)) >= 0 and last > scheme:
        start = scheme + 3
        authority = _AUTHORITY.match(text, start)
        assert authority is not None, "it may be empty"
        parts.append(text[end:start])
        end = authority.end()
        if ":" in authority[0]:
            end = last + 1
        elif text[end : end + 1] == "@":
            end += 1
        else:
            parts.append(authority[0])
    return "".join([*parts, text[end:]])
