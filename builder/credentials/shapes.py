"""What a credential in a text looks like: known formats, words that introduce one, random letters.

The expressions and the words of names are rows of `builder/data/credentials.yaml`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent.parent / "data" / "credentials.yaml"


# Lists of words are text, which YAML reads faster.
SCHEMA: Any = {
    **dict.fromkeys(("prefixes", "short_prefixes", "base64_prefixes"), str),
    "formats": {"*": [str]},
    "parts": {"*": [str]},
    "speaks": [str],
    "spoken_of": [[str]],
    "names": {
        **dict.fromkeys(("words", "endings", "suffixes", "passwords", "about_passwords"), str),
        **dict.fromkeys(("before_plurals", "also_paths"), str),
        "harmless": {"*": str},
    },
}


@cache
def known() -> Mapping[str, Any]:
    """The shipped formats and names; `check` and the tests hold the file to `SCHEMA`."""
    import yaml  # commands that read no text start sooner without it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: Mapping[str, Any] = yaml.load(_DATA.read_text(encoding="utf-8"), Loader=loader)
    return found


@cache
def words(name: str, word: str = "") -> frozenset[str]:
    """A list of words of names; of the words that make a `word` harmless, if it is named."""
    found = known()["names"][name]
    return frozenset((found.get(word, "") if word else found).split())


@cache
def part(name: str) -> str:
    """An expression by its name in the file."""
    return _joined(known()["parts"][name])


def _joined(pieces: Iterable[str]) -> str:
    return re.sub(r"%([A-Z_]+)%", lambda found: part(found[1]), "".join(pieces))


@cache
def spoken_of() -> tuple[str, ...]:
    """Expressions for what follows a word that says so: parts of connection strings, queries,
    headers, command lines and keys of files."""
    return tuple(map(_joined, known()["spoken_of"]))


@cache
def speaks() -> str:
    """An expression without which none of `spoken_of` can be there."""
    return _joined(known()["speaks"])


@cache
def formats() -> tuple[str, ...]:
    run = part("RUN")
    return (
        rf"{_begun('prefixes')}(?=[A-Za-z_=+.-]{{0,300}}[0-9])[A-Za-z0-9_=+.-]{{16,}}",
        rf"{_begun('short_prefixes')}(?=[A-Za-z0-9_=+.-]{{0,300}}?{run})[A-Za-z0-9_=+.-]{{16,}}",
        rf"{_begun('base64_prefixes')}(?=[A-Za-z0-9_=+/-]{{0,300}}?{run})[A-Za-z0-9_=+/-]{{20,}}",
        *map("|".join, known()["formats"].values()),
    )


def _begun(prefixes: str) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, known()[prefixes].split()))})"


_LEAST_LETTERS = 24
_MOST_WORDS = 0.45  # of the letters; in names of programs it is more, in what was drawn seldom
# Public keys of SSH, which begin with the length and the name of their kind, and of minisign;
# certificates, pictures, what gzip packed, hashes of IPFS, and numbers to the base of 16.
_PUBLIC = (
    r"AAAA[A-L](?:[HXn3]N[rz]|[GWm2]Vj)|RW[A-Za-z0-9+/]{54}$|MII|iVBORw0KGgo|H4sI"
    r"|Qm[1-9A-HJ-NP-Za-km-z]{44}$|0x"
)
# What a run measured, each number behind the word that says of what: B200x8Tp4Isl1kMtp3.
_NUMBER = "[0-9]+(?:[a-z](?:[0-9]+[a-z]?)?|[BKM](?![a-z]))?"
_SETTINGS = (
    f"(?:[a-z]{{0,9}}{_NUMBER})*+(?:[A-Z]{{1,5}}{_NUMBER}|[A-Z][a-z]{{1,8}}{_NUMBER}"
    "|[A-Z][a-z]{2,}|[A-Z]{3,5}|Nv)+"
)
_WORD = r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|[0-9]{3,}|(?<![0-9])(?:16|32|64|[0-9]0)(?![0-9])"
_IN_PATH = r"((?:[A-Z]?[a-z]{1,30}/)*)(.*?)((?:/[A-Z]?[a-z]{1,30})*/?)$"
# No name goes on so: a small letter behind a digit, or a capital with one small letter.
_UNLIKE_NAMES = r"[0-9][a-z](?![A-Z])|(?<![A-Z])[A-Z][a-z](?=[A-Z])"


def is_random(run: str) -> bool:
    """Whether a run was drawn: both cases, digits in between, and few letters in words.

    That is likely, not certain: enough to keep a text out of a log, and too little to refuse it.

    >>> [is_random(x) for x in ("q7RkZ2mW9xLp4TbV8nYc3HsD", "B200x8Tp8Ep8Bs256Isl8kOsl1k")]
    [True, False]
    """
    letters = max(re.split(r"[+/]", run), key=len)
    if len(letters) < _LEAST_LETTERS or re.match(_PUBLIC, run) or re.fullmatch(_SETTINGS, letters):
        return False
    if not re.search("[a-z]", letters) or not re.search("[A-Z]", letters):
        return False
    if len(re.findall("[0-9]+", letters)) < 3:
        return False
    words = sum(map(len, re.findall(_WORD, letters)))
    return words <= _MOST_WORDS * len(letters) and bool(re.search(_UNLIKE_NAMES, letters))


def without_words(run: str) -> tuple[str, str, str]:
    """A run between the words of a path around it.

    >>> without_words("runs/q7RkZ2mW9xLp4TbV8nYc3HsD/log")
    ('runs/', 'q7RkZ2mW9xLp4TbV8nYc3HsD', '/log')
    """
    before, inner, behind = re.match(_IN_PATH, run).groups()  # type: ignore[union-attr]
    return before, inner, behind


def in_base64(run: str) -> str:
    """The printable text that a run encodes in base64, or none; the text is then checked itself."""
    try:
        text = base64.b64decode(run + "=" * (-len(run) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.isprintable() or all(map(str.isprintable, text.split())) else ""
