"""Cut secrets from text that is shown, logged or sent, and find credentials in a recipe.

Text that is hashed, compared or stored for use never passes here. A secret is told by its name
(`password: x`, `"api_key": "x"`, `--token x`), by its place (a URI) or by its form. What must look
random to be cut depends on how surely the name is that of a secret and its value is no word of a
sentence: `password=reset-me` is a setting, "the password reset page" none. Every search is linear
in the text.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

CUT = "..."
_MOST = 300  # characters of a value that decide whether it is a secret
Span = tuple[int, int]

_NAME = re.compile(
    r"(?i:api|access|private|secret|account) (?i:key|token)\b|[A-Za-z_](?:[\w-]|\.(?=\w))*"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = re.compile(
    r"[a-z]*(?:password|passwd|passphrase|passcode|secret|credential|apikey|secretkey|accesskey"
    r"|privatekey|authtoken|accesstoken|apitoken)s?|[a-z]*pwd"
)
# What stands before `key` and `token` in the name of a secret.
_OWNER = re.compile(
    r"access|account|admin|api|app|application|auth|bearer|bot|csrf|deploy|encryption|gh|git|github"
    r"|gitlab|hf|hmac|hub|id|identity|jwt|license|master|npm|private|push|pypi|refresh|registration"
    r"|secret|security|server|service|session|shared|signing|slack|ssh|storage|subscription|tls"
    r"|vault|wandb|webhook|xsrf"
)
_PIECE_OF_TEXT = re.compile(
    r"additional|begin|blank|bos|class|cls|context|decoder|end|eod|eos|extra|first|image|last|mask"
    r"|next|pad|padding|prefix|prompt|sep|separator|special|start|stop|suffix|unk|unknown"
)
_AMBIGUOUS = re.compile(r"auth|hmac|jwt|pass|pw|sessionid|sig|signature")
_ONLY_IN_QUERY = re.compile(r"key|code|sas", re.IGNORECASE)
_ENDING = re.compile(  # of SECRET_KEY_BASE, API_KEY_2
    r"b64|base|backup|current|new|old|prev|previous|dev|staging|test|prod|production|v|value|\d+"
)

_SEPARATOR = re.compile(
    r"(?P<end>\\?[\"'])?\]?(?:"
    r"(?P<tight>=(?!=)|%3D)(?![ \t=>])"
    r"|(?P<wide>[ \t]{0,9}(?:=>|:=|=(?!=)|:(?!/))[ \t]{0,9})"
    r"|(?P<pair>,?\s{1,40}[\"']?[Vv]alue[\"']?\s{0,3}[:=]\s{0,3})"  # name: PASSWORD, value: x
    r"|(?P<element>>)"
    r"|(?P<list>,\s{0,9}(?=[\"']))"
    r"|(?P<word>[ \t]{1,3}(?:(?:is|was)[ \t]{1,3}|(?=\S)))"
    r"|)"
)
_QUOTED = re.compile(
    r"[fbruFBRU]{0,2}(?P<quote>\\?[\"'])((?:(?!(?P=quote))(?:\\.|[^\n\\]))*)(?P=quote)"
)
_QUOTE = re.compile(r"[fbruFBRU]{0,2}\\?[\"']")
# To a blank or a quote, or to a comma, semicolon or ampersand before the next item.
_BARE = re.compile(r"(?:[^\s\"'`;&,<>]|[;&,](?!\s|$|[\"'\])}]|[\"']?[\w.-]{1,64}[\"']?\s?[=:]))+")
_ELEMENT = re.compile(r"[^<\n]+")
_COOKIE = re.compile(r"[\w.%-]+=[^\n\"']*")
_AUTHORIZATION = re.compile(
    r"(?:bearer|basic|token|bot|negotiate|key|apikey)[ ]+(?P<value>[^\s\"',;]+)"
    r"|(?:digest|oauth|hawk|signature|sharedkey\w*|aws4-[\w-]+)[ ]+\w[^\n]*=[^\n]*",
    re.IGNORECASE,
)
_BLOCK_MARK = re.compile(
    r"[ \t]*(?:[!&][\w!./-]*[ \t]*)*(?:[|>][+-]?\d?[+-]?[ \t]*(?:#[^\n]*)?)?(?=\n)"
)
# What is in brackets that may hold others; a part of it if they stay open.
_BRACKETS = re.compile(r"[{\[]((?:[^{}\[\]]|[{\[][^{}\[\]]*[}\]])*)")
_NEXT_WORD = re.compile(r"[ \t]*[A-Za-z]|[.:;)]?[ \t]+\w")

# Expressions, placeholders, types and states: no values.
_NO_VALUE = re.compile(
    r"\$\w+|\$[{(].*|arn:.*|\d*\.\d+|%\(?\w+\)?[s%]|[{\[(<].*|[*.x_-]+|[?!]+|your\b.*|(?i:your_.*)"
    r"|[A-Za-z_][\w.]*[(\[].*|[a-z_]+(?:\.[a-z_]+)+|!\w+"
    r"|(?i:str|int|bytes|bool|any|object|string|number|boolean|secretstr|optional|required|none"
    r"|null|nil|true|false|undefined|unset|yes|no|on|off|ok|missing|unknown|invalid|valid|wrong"
    r"|incorrect|empty|hidden|redacted|masked|expired|changed|reset|default|forgotten|lost|stolen"
    r"|leaked|weak|locked|denied|rejected|accepted|disabled|enabled|protected|encrypted|revoked"
    r"|failed|not|is|are|was|were|be|it|its|the|this|that|these|an?|and|or|to|of|for|in|at|by|as"
    r"|with|from|if|when|where|which|who|will|must|may|can|cannot|should|would|has|have|does|needs"
    r"|you|your|we|they|one|two|both|each|all"
    r"|option|flag|value|argument|instead)",
    re.DOTALL,
)
_PLACEHOLDER = "{$<%"
_RANDOM = re.compile(r"(?=.*[A-Za-z])(?=.*[\d!@#%^&+=])")
# Numbers with units, versions, names like aes-256, paths, addresses and digests.
_ORDINARY = re.compile(
    r"\d[\d.,:]*[-a-z%]*|v?\d+(?:\.\w+)+|[a-z]+(?:-(?:[a-z]+|\d{1,4}))+|[~.]{0,2}/.*|\w+://.*|(?:sha|md)\d+[:-].*|[a-z]+=\S*"
)
Strength = Literal["", "weak", "strong", "authorization", "cookie"]
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
    for first, last in _find_named(text):
        pieces += [text[end:first], CUT]
        end = last
    return "".join([*pieces, text[end:]])


def redact_data(value: Any, key: str = "") -> Any:
    """Apply `redact` to every string in plain data, and cut the values of keys of secrets."""
    if isinstance(value, str):
        is_secret = bool(key) and _strength(key) == "strong" and _is_value(value)
        return CUT if is_secret else redact(value)
    if isinstance(value, dict):
        return {name: redact_data(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_data(item) for item in value]
    return value


def find_credential(value: Any) -> tuple[str, str] | None:
    """The dotted key and the kind of the first credential in the data of a recipe: of a URI, or a
    token or key by its form. Text like `name: value` is none, since labels may be like that."""
    kinds = ((key, _credential_kind(text)) for key, text in list_texts(value))
    return next(((key, kind) for key, kind in kinds if kind), None)


def list_texts(value: Any, key: str = "") -> list[tuple[str, str]]:
    """List the dotted key and the text of each string in plain data."""
    if isinstance(value, str):
        return [(key, value)]
    items = enumerate(value) if isinstance(value, list | tuple) else ()
    items = value.items() if isinstance(value, dict) else items
    below = (list_texts(item, f"{key}.{name}" if key else str(name)) for name, item in items)
    return [text for texts in below for text in texts]


def _credential_kind(text: str) -> str:
    if _PRIVATE_KEY.search(text):
        return "a private key"
    if _ISSUED.search(text):
        return "a token"
    for chunk in _CHUNK.finditer(text):
        uri, _, query = chunk[0].partition("?")
        if "://" in uri and _without_login(chunk) != chunk[0]:
            return "a password"
        if "://" in uri and any(_find_named(f"?{query}")):
            return "a signature or a key"
    return ""


def _without_login(chunk: re.Match[str]) -> str:
    """Cut user and password of each URI in a text without blanks."""
    parts = _LAST_AT.match(chunk[0])
    return _OF_URI.sub("", parts[0]) + chunk[0][parts.end() :] if parts else chunk[0]


class _Key(NamedTuple):
    """A name of a secret in a text, and what stands around it."""

    name: str
    start: int
    before: str  # the character before it
    strength: Strength
    form: str | None  # the group of `_SEPARATOR`
    separator: str

    @property
    def is_compound(self) -> bool:
        """Whether it is no word of a sentence: `db_password`, `apiKey`."""
        return len(_WORD.findall(self.name)) > 1


def _find_named(text: str) -> Iterator[Span]:
    """Yield where the values of names of secrets are, in order."""
    place = 0
    while name := _NAME.search(text, place):
        place = name.end()
        before = text[name.start() - 1 : name.start()]
        strength = _strength(name[0])
        if not strength and before and before in "?&" and _ONLY_IN_QUERY.fullmatch(name[0]):
            strength = "weak"
        if not strength:
            continue
        separator = _SEPARATOR.match(text, place)
        assert separator is not None, "it may be empty"
        key = _Key(name[0], name.start(), before, strength, separator.lastgroup, separator[0])
        if span := _find_value(text, key, separator.end()):
            yield span
            place = span[1]


@lru_cache(4096)
def _strength(name: str) -> Strength:
    """How surely a name is that of a secret, by its last words. The value of a weak one must look
    random, since it may as well belong to a sentence or a program."""
    words = [word.lower() for word in _WORD.findall(name[-100:])]
    while len(words) > 1 and _ENDING.fullmatch(words[-1]):
        words.pop()
    if not words or name in ("PWD", "OLDPWD"):
        return ""
    *_, before, word = ["", *words]
    if word in ("authorization", "cookie"):
        return word
    if _SECRET.fullmatch(word) or (word == "key" and _OWNER.fullmatch(before)):
        return "strong"
    if word == "token" and _PIECE_OF_TEXT.fullmatch(before):
        return ""
    if word in ("pass", "token") and before and name.isupper():
        return "strong"
    if word == "token":
        return "strong" if _OWNER.fullmatch(before) else "weak"
    return "weak" if _AMBIGUOUS.fullmatch(word) else ""


def _find_value(text: str, key: _Key, start: int) -> Span | None:
    """Where the value of a key is, if it is a secret; `start` is behind the separator."""
    # `"secret"` and `secret` alone.
    if key.form in (None, "end"):
        return None
    if key.form == "element":
        element = _ELEMENT.match(text, start) if key.before == "<" else None
        return element.span() if element and _is_secret(element[0], key, exact=True) else None
    is_item = key.is_compound or _begins_item(text, key.start)
    if key.form in ("wide", "tight") and is_item and (block := _find_block(text, key, start)):
        return block
    is_flag = text.startswith("--", max(0, key.start - 2))
    quote = _QUOTE.match(text, start)
    if header := _find_header(text, key, quote.end() if quote else start):
        return header
    if quoted := _QUOTED.match(text, start):
        may_be = is_flag or key.form not in ("word", "list")
        return quoted.span(2) if may_be and _is_secret(quoted[2], key, exact=True) else None
    if quote:
        start = quote.end()  # which is not closed
    bare = _BARE.match(text, start, start + _MOST)
    if bare is None:
        return None
    value = bare[0] if bare[0] == CUT else bare[0].rstrip(".,:;\\)]}")
    end = start + len(value)
    in_query = bool(key.before) and key.before in "?&"
    if key.form == "tight" and (in_query or key.separator.endswith("%3D")):
        is_secret = value not in ("", CUT) and (_strength(key.name) != "" or _is_random(value))
    elif key.form == "word":
        is_secret = _is_secret_word(value, key, is_flag)
    elif key.form == "tight":
        is_secret = _is_secret(value, key, exact=True)
    else:
        is_last = not _NEXT_WORD.match(text, end)
        is_title = key.name[0].istitle() and value.istitle()
        exact = is_item and is_last and not is_title and len(value) >= 4
        is_secret = _is_secret(value, key, exact, least=5 if is_last else 8)
    if is_secret and len(bare[0]) == _MOST and (whole := _BARE.match(text, start)):
        end = whole.end()
    return (start, end) if is_secret else None


def _find_header(text: str, key: _Key, start: int) -> Span | None:
    if key.strength == "cookie" and key.form == "wide" and (cookie := _COOKIE.match(text, start)):
        return cookie.span()
    if key.strength != "authorization" or key.form == "word":
        return None
    header = _AUTHORIZATION.match(text, start)
    if header is None or (value := header["value"] or header[0])[0] in _PLACEHOLDER:
        return None
    in_sentence = not _is_random(value) and _NEXT_WORD.match(text, header.end())
    return None if in_sentence else header.span()


def _find_block(text: str, key: _Key, start: int) -> Span | None:
    """Where the indented lines below a key are, or the mapping or list of a plural."""
    is_plural = key.name.lower().endswith("s")
    if is_plural and (brackets := _BRACKETS.match(text, start)):
        return brackets.span(1) if re.search(r"[\"':]", brackets[1]) else None
    mark = _BLOCK_MARK.match(text, start)
    if mark is None or key.form == "tight":
        return None
    before = text[text.rfind("\n", 0, key.start) + 1 : key.start]
    indent = len(before) - len(before.lstrip(" +-"))
    indent -= 2 * ("- " in before)  # the item of a list
    deeper = rf"(?:\n[+]?(?:[ \t]{{{max(0, indent) + 1},}}[^\n]*|(?=\n)))+"
    lines = re.compile(deeper).match(text, mark.end())
    value = lines[0].strip() if lines else ""
    if lines is None or (key.strength == "weak" and not _is_random(value)):
        return None
    is_alone = " " not in value and ":" not in value and _is_secret(value, key, exact=True)
    if not (mark[0].strip() or is_plural or is_alone):  # a mapping, or a sentence
        return None
    return lines.end() - len(lines[0].lstrip()), lines.end()


def _is_secret(value: str, key: _Key, exact: bool, least: int = 3) -> bool:
    """Whether a value of a key is a secret. `exact`: it is surely a value and no word of a
    sentence; else a random one of at least so many characters is a secret."""
    if not _is_value(value):
        return False
    if key.strength != "strong":
        return len(value) >= (8 if exact else 12) and " " not in value and _is_random(value)
    return (exact and len(value) >= 3) or (len(value) >= least and _is_random(value))


def _is_secret_word(value: str, key: _Key, is_flag: bool) -> bool:
    """Whether a word is the value of the name before it: `--password x`, `password is x`."""
    if not _is_value(value):
        return False
    if is_flag and key.strength == "strong":
        return not value.startswith("-") and not value.isupper()
    is_said = bool(key.separator.strip()) or is_flag or key.is_compound or key.name[0].isupper()
    return is_said and len(value) >= 6 and _is_random(value)


def _is_value(value: str) -> bool:
    """Whether it is no expression, placeholder, type or state, nor the name of a secret."""
    is_name = value.replace("_", "").isalpha() and _strength(value) != ""
    return bool(value) and not is_name and not _NO_VALUE.fullmatch(value[:_MOST])


def _is_random(value: str) -> bool:
    return bool(_RANDOM.match(value[:_MOST])) and not _ORDINARY.fullmatch(value[:_MOST])


def _begins_item(text: str, start: int) -> bool:
    """Whether a name begins a line, or an item of a mapping."""
    before = text[max(0, start - 40) : start].rstrip(" \t\"'\\")
    return (not before and start < 40) or before[-1:] in ("\n", *"{,;([-+|&?")
