"""Credentials: which names and texts are one, so that none is written into a bundle or repeated.

Bundles are copied and kept, and messages end in logs. What is found is therefore refused with its
place, and `mask` is on the way of every diagnostic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

MASK = "[credential]"

# The words at the end of a variable's name that say it holds one, and what may stand behind them.
_WORDS = frozenset(
    (
        *("TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASS", "PWD", "PASSPHRASE"),
        *("PASSCODE", "KEY", "APIKEY", "PRIVKEY", "SECRETKEY", "ACCESSKEY", "CREDS"),
        *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION", "BEARER", "JWT", "PAT", "COOKIE"),
        *("DSN", "CONNSTR", "SAS", "SIGNATURE", "WEBHOOK"),
    )
)
_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "APIKEY", "TOKEN")
_BEHIND = frozenset(
    (
        *("ID", "VALUE", "TEXT", "STRING", "URL", "URI", "BASE", "BASE64", "B64", "JSON", "DATA"),
        *("CONFIG", "HEADER", "ENC", "OLD", "NEW", "PROD", "DEV", "TEST", "STAGING", "RO", "RW"),
        *("PRIMARY", "SECONDARY", "DEFAULT", "ENV", "VAR", "PEM"),
    )
)
# What stands before them where they mean something else.
_HARMLESS = {
    "TOKEN": frozenset(
        (
            *("EOS", "BOS", "PAD", "UNK", "SEP", "CLS", "MASK", "STOP", "SPECIAL", "IMAGE"),
            *("AUDIO", "VIDEO", "NEXT", "PER", "FIRST", "LAST", "DRAFT", "MAX", "MIN", "NUM"),
            *("EACH", "START", "END"),
        )
    ),
    "KEY": frozenset(
        ("PUBLIC", "SORT", "PARTITION", "PRIMARY", "FOREIGN", "CACHE", "ROUTING", "HASH", "PER")
    ),
    "PASS": frozenset(("SINGLE", "FORWARD", "BACKWARD", "FIRST", "SECOND", "ONE", "TWO", "BY")),
    "SIGNATURE": frozenset(("MODEL", "FUNCTION")),
}
# These hold a path or a switch as often as a credential.
_ALSO_PATHS = frozenset(("KEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "COOKIE", "CREDS"))
_PATH = re.compile(r"(/[A-Za-z0-9_.-]+){2,}")
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|[01]", re.IGNORECASE)
_CONNECTION = ("CONNECTION", "STRING")

# Mappings whose keys are names that others give.
_FREE = frozenset(("environment", "env", "attributes", "annotations", "variables", "parameters"))

# What services give out, each by the letters that its documentation begins it with.
_SHAPES = (
    r"\bhf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"\bapi_org_[A-Za-z0-9]{20,}",
    r"\bnvapi-[A-Za-z0-9_-]{20,}",  # NVIDIA
    r"\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt|oas)-[A-Za-z0-9_.-]{16,}",  # GitLab
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\bxapp-[A-Za-z0-9-]{10,}",  # Slack
    r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/]{20,}",
    r"discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{20,}",
    r"\bsk-(?=[A-Za-z_-]{0,100}[0-9])[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic, OpenRouter
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|\bwhsec_[A-Za-z0-9]{16,}",  # Stripe
    r"\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}|\bGOCSPX-[A-Za-z0-9_-]{20,}",  # Google
    r"\bnpm_[A-Za-z0-9]{30,}|\bpypi-[A-Za-z0-9_-]{30,}|\brubygems_[a-f0-9]{40,}",
    r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",  # Docker
    r"\bhv[sbr]\.[A-Za-z0-9_-]{20,}",  # Vault
    r"\bdapi[a-f0-9]{32}\b|\bdkea[a-f0-9]{32}\b",  # Databricks
    r"\bdo[opr]_v1_[a-f0-9]{40,}",  # DigitalOcean
    r"\b(?:gsk|r8|tgp_v1|fw|pplx|xai|lsv2_pt|lsv2_sk)[_-][A-Za-z0-9_-]{24,}",
    r"\bwandb_v1_[A-Za-z0-9_]{20,}",
    r"\bgl(?:sa|c)_[A-Za-z0-9+/=_]{20,}|\bsntr[yu]s_[A-Za-z0-9+/=_-]{20,}|\bNRAK-[A-Z0-9]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,99}\.[A-Za-z0-9_-]{16,}|\bkey-[a-f0-9]{32}\b",  # SendGrid, Mailgun
    r"\bATATT3[A-Za-z0-9_=-]{20,}|\blin_api_[A-Za-z0-9]{20,}|\bshp(?:at|ca|pa|ss)_[a-f0-9]{32}",
    r"\btskey-[a-z]{1,20}-[A-Za-z0-9-]{16,}|\bpul-[a-f0-9]{40}\b|\bdp\.(?:pt|st|ct)\.[A-Za-z0-9.]{20,}",
    r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}|\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",  # Telegram
    r"\beyJ[A-Za-z0-9_-]{8,999}\.[A-Za-z0-9_-]{8,9999}\.[A-Za-z0-9_-]*",  # JSON web tokens
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]{0,9999}-----END [A-Z0-9 ]{0,60}-----)?",
    # The same in base64, but for certificates and public keys.
    r"\bLS0tLS1CRUdJTi(?!BDRVJUSUZJQ0FURS|BQVUJMSUMgS0VZ)[A-Za-z0-9+/=\s]{20,}",
    r"PuTTY-User-Key-File-[0-9]",
    # Names and passwords in URLs and before the host of an image; a token in the place of a name.
    r"://[^/\s:@]{0,999}:[^/\s@]{1,999}@|://[^/\s:@]{16,999}@",
    r"(?:^|(?<=\s))[^/\s:@]{1,99}:[^/\s@]{1,999}@(?!sha256:)[\w-]+\.[\w.-]+",
    # Parts of connection strings, queries, headers and command lines.
    r"(?i:\b(?:account_?key|shared_?access_?(?:key|signature)|client_?secret|access_?token"
    r"|refresh_?token|password|passwd|pwd|api[_-]?key|secret[_-]?key)\s?=\s?)[^\s;&,]{4,}",
    r"(?i:[?&;](?:sig|signature|x-amz-signature|x-goog-signature|token|key)=)[A-Za-z0-9%+/=_-]{12,}",
    r"(?i:--(?:api-key|password|token|auth-token|secret)[ =])\S{6,}",
    r"(?i:\b(?:(?:proxy-)?authorization|x-api-key|api-key)\s?:\s?(?:bearer |basic )?)\S{8,}",
    r"(?i:\b(?:bearer|basic) )(?=[a-z+/=_.~-]{0,99}[0-9A-Z])[A-Za-z0-9+/=_.~-]{16,}",
    r'(?i:"(?:auth|password|passwd|token|secret|identitytoken|api_?key|client_secret)"\s*:\s*")'
    r'[^"\s]{4,}"',
    r"\bpassw(?:or)?d:\S{6,}",
)
_ASSIGNED = re.compile(r"\b([A-Za-z][A-Za-z0-9_]{0,99})=([^\s;&,\"']{4,})")


def is_name(name: str) -> bool:
    """Whether a variable of this name holds a credential.

    >>> [is_name(name) for name in ("OPENAI_KEY", "dbPass", "MAX_TOKENS", "HF_TOKEN_PATH")]
    [True, True, False, False]
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.upper()) if word]
    if tuple(words[-2:]) == _CONNECTION:
        return True
    while len(words) > 1 and (words[-1] in _BEHIND or re.fullmatch(r"V?[0-9]+", words[-1])):
        words.pop()
    if not words:
        return False
    last = re.sub(r"[0-9]+$", "", words[-1])
    before = words[-2] if len(words) > 1 else ""
    if last in _WORDS:
        return before not in _HARMLESS.get(last, ())
    return len(last) > 8 and last.endswith(_ENDINGS)


@cache
def _values() -> re.Pattern[str]:
    """What any of the shapes matches: too large to be compiled by commands that say nothing."""
    return re.compile("|".join(f"(?:{shape})" for shape in _SHAPES))


@lru_cache(maxsize=2_000)
def mask(text: str) -> str:
    """The text with every credential in it replaced."""
    text = _values().sub(MASK, text)
    return _ASSIGNED.sub(
        lambda row: f"{row[1]}={MASK}" if _is_held(row[1], row[2]) else row[0], text
    )


def shown(value: Any, path: str = "", length: int = 60) -> str:
    """The beginning of a value that is wrong, as an error may repeat it."""
    if any(found(value, path)):
        return MASK
    return mask(str(value))[:length]


def found(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The place of every credential in plain data, and what is wrong with it."""
    if isinstance(document, str):
        if mask(document) != document:
            yield path, "holds a credential, which would be in every bundle"
        elif any(_is_held(name, document) for name in _variables(path)):
            yield path, "is by its name a credential, which a bundle must not hold"
    elif isinstance(document, Mapping):
        name, value = document.get("name"), document.get("value")
        if isinstance(name, str) and isinstance(value, str) and _is_held(name, value):
            yield f"{path}.value", "is by its name a credential, which a bundle must not hold"
        for key, inner in document.items():
            yield from found(inner, f"{path}.{key}".strip("."))
            yield from found(str(key), path)
    elif isinstance(document, list):
        for index, inner in enumerate(document):
            yield from found(inner, f"{path}.{index}")
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield from found(str(document), path)


def _variables(path: str) -> list[str]:
    """The names on a path that a user gave."""
    keys = path.split(".")
    free = next((at for at, key in enumerate(keys) if key in _FREE), len(keys))
    return keys[free + 1 :]


def _is_held(name: str, value: str) -> bool:
    """Whether a variable holds the credential that its name speaks of, not where it is."""
    if not value or not is_name(name):
        return False
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    if words & _ALSO_PATHS and not words & {"SECRET", "ACCESS", "API", "APIKEY"}:
        return not (_PATH.fullmatch(value) or _SWITCH.fullmatch(value))
    return True
