"""Runs of letters and digits that a machine drew, which no list of services has to know."""

from __future__ import annotations

import base64
import binascii
import re

_LEAST_LETTERS = 24
_MOST_WORDS = 0.45  # of the letters; in names of programs it is more, in what was drawn seldom
# Pages have such names in their addresses, up to what is asked of them; certificates are lines of
# them, and digests are known.
DRAWN = (
    r"https?://[^\s?\"'<>]++|-----BEGIN [A-Z0-9 ]{1,40}-----[^-]*+"
    r"|(?<![A-Za-z0-9/+=])(?<!sha1[-:])(?<!(?:sha|SHA)(?:256|384|512)[-:])(?<!md5[-:])"
    r"([A-Za-z0-9][A-Za-z0-9+/]{23,}+)"
)
# Public keys and certificates, pictures, and numbers to the base of 16.
_PUBLIC = re.compile(r"AAAA[BCE][23]NzaC1|MII|iVBORw0KGgo|0x")
_WORD = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|[0-9]{3,}|(?<![0-9])(?:16|32|64|[0-9]0)(?![0-9])")
# No name goes on so: a small letter behind a digit, or a capital with one small letter.
_UNLIKE_NAMES = re.compile(r"[0-9][a-z](?![A-Z])|(?<![A-Z])[A-Z][a-z](?=[A-Z])")


def is_random(run: str) -> bool:
    """Whether a run was drawn: both cases, digits in between, and few letters in words.

    >>> [is_random(x) for x in ("q7RkZ2mW9xLp4TbV8nYc3HsD", "Wav2Vec2ForPreTrainingOutputV3")]
    [True, False]
    """
    letters = max(re.split(r"[+/]", run), key=len)
    if len(letters) < _LEAST_LETTERS or _PUBLIC.match(run):
        return False
    if not re.search("[a-z]", letters) or not re.search("[A-Z]", letters):
        return False
    if len(re.findall("[0-9]+", letters)) < 3:
        return False
    words = sum(map(len, _WORD.findall(letters)))
    return words <= _MOST_WORDS * len(letters) and bool(_UNLIKE_NAMES.search(letters))


def in_base64(run: str) -> str:
    """The printable text that a run is in base64, or none: what it holds is judged by itself."""
    try:
        text = base64.b64decode(run + "=" * (-len(run) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.isprintable() or all(map(str.isprintable, text.split())) else ""
