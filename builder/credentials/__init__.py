"""Detects credentials by name and by text, so that no bundle holds one and no message repeats one.

Bundles are copied and kept, and messages end up in logs. So a deployment with a credential is
refused, and every diagnostic passes through `mask`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from . import shapes
from .shapes import formats, in_base64, is_random, part, without_words, words

MASK = "[credential]"
# Mappings whose keys are names chosen by users.
_FREE = frozenset(("environment", "env", "attributes", "annotations", "variables", "parameters"))
# Two words written as one.
_JOINED = (
    "(?:PRIVATE|PRESHARED|ENCRYPTION|SIGNING|MASTER|SHARED|ACCOUNT|SERVICE|DEPLOY|CLIENT"
    "|SSH|SSL|TLS|GPG|AUTH)KEY|APITOKEN"
    "|(?:SSH|DB|PG|USER|ROOT|ADMIN|KEY|STORE|SMTP|LDAP|SQL|REDIS|MAIL|FTP|PROXY)(?:PASS|PWD|PW)"
)
_NEVER_PATHS = frozenset(("SECRET", "ACCESS", "API", "APIKEY"))
_PATH = r"(/[A-Za-z0-9_.-]+){2,}"
# Switches, and tokens of a tokenizer or place holders in angle brackets. Clients of vLLM send
# "EMPTY" as the key if the server checks none.
_HARMLESS = r"(?i)true|false|yes|no|on|off|none|[01]|empty|dummy|not-needed|<[^<>\s]{1,60}>"
_CONNECTIONS = (("CONNECTION", "STRING"), ("CONN", "STR"), ("SEED", "PHRASE"))
_OF_A_STORE = ("KMS", "KEY", "ID")  # which keeps the key to itself
_OF_TERRAFORM = ("TF", "TOKEN")  # the host follows


@lru_cache(maxsize=2_000)
def mask(text: str) -> str:
    """The text without credentials, including letters that look randomly generated."""
    return re.sub(part("DRAWN"), _hide_drawn, _mask_certain(text))


@lru_cache(maxsize=2_000)
def _mask_certain(text: str) -> str:
    """The text without credentials that have a known format or name."""
    if not text.isascii() and (plain := unicodedata.normalize("NFKC", text)) != text:
        # Other forms of the same letters hide no credential.
        return masked if (masked := _mask_certain(plain)) != plain else text
    if _any_of(shapes.speaks()).search(text):
        text = _any_of(*shapes.spoken_of()).sub(MASK, text)
    text = _any_of(*formats()).sub(MASK, text)
    drawn, assigned = part("DRAWN"), part("ASSIGNED")
    text = re.sub(drawn, lambda run: MASK if run[1] and _holds_one(run[1]) else run[0], text)
    if "=" not in text:
        return text
    return re.sub(assigned, lambda row: f"{row[1]}={MASK}" if _is_assigned(row) else row[0], text)


def shown(value: Any, path: str = "", length: int = 60) -> str:
    """The beginning of a wrong value, safe to repeat in an error."""
    if any(found(value, path)):
        return MASK
    return mask(str(value))[:length]


def found(document: Any, path: str = "", by_name: bool = True) -> Iterator[tuple[str, str]]:
    """The path of every credential in plain data, with a message.

    Set `by_name` to false for tables whose keys are names that the data describes.
    """
    if isinstance(document, str):
        if _mask_certain(document) != document:
            yield path, "holds a credential, which would be in every bundle"
        elif by_name and any(is_held(name, document) for name in _variables(path)):
            yield path, "is by its name a credential, which a bundle must not hold"
    elif isinstance(document, Mapping):
        name, value = document.get("name"), document.get("value")
        if by_name and isinstance(name, str) and isinstance(value, str) and is_held(name, value):
            yield f"{path}.value", "is by its name a credential, which a bundle must not hold"
        for key, inner in document.items():
            yield from found(inner, f"{path}.{key}".strip("."), by_name)
            yield from found(str(key), path, by_name)
    elif isinstance(document, list):
        for index, inner in enumerate(document):
            yield from found(inner, f"{path}.{index}", by_name)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield from found(str(document), path, by_name)


def _holds_one(run: str) -> bool:
    plain = in_base64(run)
    return bool(plain) and _mask_certain(plain) != plain


def _hide_drawn(run: re.Match[str]) -> str:
    if not run[1] or in_base64(run[1]) or not is_random(run[1]):
        return run[0]
    before, _, behind = without_words(run[1])
    return f"{before}{MASK}{behind}"


@cache
def _any_of(*expressions: str) -> re.Pattern[str]:
    """An expression that matches any of some; compiled late, because it is large."""
    return re.compile("|".join(f"(?:{one})" for one in expressions))


def _is_assigned(row: re.Match[str]) -> bool:
    """Whether an assignment sets a credential; lower-case names, as in URLs, may name objects."""
    name, value = row[1], row[2]
    is_variable = name != name.lower()
    is_asked = row.string[: row.start()].endswith(("?", "&"))  # in a URL
    is_word = name == "key" and not is_asked and re.fullmatch("[a-z]{1,20}", value)
    return is_held(name, value) and (
        is_variable or not (is_word or re.fullmatch(part("NAME"), value))
    )


def _variables(path: str) -> list[str]:
    """The names on a path that a user chose."""
    keys = path.split(".")
    free = next((at for at, key in enumerate(keys) if key in _FREE), len(keys))
    return keys[free + 1 :]


def is_name(name: str) -> bool:
    """Whether a variable of this name holds a credential.

    >>> [is_name(name) for name in ("OPENAI_KEY", "dbPass", "MAX_TOKENS", "HF_TOKEN_PATH")]
    [True, True, False, False]
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = re.findall(r"[A-Z0-9]+", spaced.upper())
    if tuple(parts[-2:]) in _CONNECTIONS or tuple(parts[:2]) == _OF_TERRAFORM:
        return True
    if tuple(parts[-3:]) == _OF_A_STORE:
        return False
    while len(parts) > 1 and (
        parts[-1] in words("suffixes") or re.fullmatch("V?[0-9]+", parts[-1])
    ):
        parts.pop()
    if not parts:
        return False
    last = re.sub(r"[0-9]+$", "", parts[-1])
    if not words("passwords").isdisjoint(parts) and last not in words("about_passwords"):
        return True
    before = parts[-2] if len(parts) > 1 else ""
    if last not in words("words") and before in words("before_plurals"):
        last = last.removesuffix("S")
    if last in words("words"):
        return before not in words("harmless", last)
    is_long = len(last) > 8 and last.endswith(tuple(words("endings")))
    return is_long or bool(re.fullmatch(_JOINED, last))


def is_held(name: str, value: str) -> bool:
    """Whether a variable holds the credential in its name, and not its location."""
    if not value or re.fullmatch(_HARMLESS, value) or not is_name(name):
        return False
    parts = set(re.split(r"[^A-Z0-9]+", name.upper()))
    if parts.isdisjoint(words("also_paths")) or parts & _NEVER_PATHS:
        return True
    return not re.fullmatch(_PATH, value)
