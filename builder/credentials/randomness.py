"""Runs of letters and digits that a machine drew, which no list of services has to know."""

from __future__ import annotations

import base64
import binascii
import re

_LEAST_LETTERS = 24
_MOST_WORDS = 0.45  # of the letters; in names of programs it is more, in what was drawn seldom
# Pages have such names in their addresses, up to what is asked of them; certificates and pictures
# are lines of them; digests are known, and so are the ids that servers draw for what they answer.
_KNOWN = (
    r"https?://[^\s?\"'<>]++"
    r"|(?<![A-Za-z0-9.@-])(?:[a-z0-9-]{1,63}+\.){1,5}+[a-z]{2,10}/[^\s?\"'<>]++"
    r"|-----BEGIN [A-Z0-9 ]{1,40}-----[^-]*+"
    r"|\bdata:(?:audio|font|image|video)/[a-z0-9.+-]{1,40};base64,[A-Za-z0-9+/=]*+"
    r"|(?<![\w-])(?:chatcmpl|chatcmpl-tool|cmpl|embd|classify|pool|score|rerank|call|toolu|resp|msg"
    r"|rs|fc|req|run|batch|file|ftjob)[-_]?(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]++"
    r"|(?<![\w-])(?i:(?:(?:x-)?(?:call|correlation|job|request|response|run|span|trace)[_-]?)?id"
    r"|etag|(?:[a-z]{1,20}[_-]?)?(?:digest|checksum|fingerprint|integrity|md5|sha1|sha256|sha512)"
    r"|h1)[\"']?\s?[:=]\s?[\"']?(?:W/)?[\"']?[A-Za-z0-9+/=]++"
)
DRAWN = (
    rf"{_KNOWN}|(?<![A-Za-z0-9/+=])(?<!sha1[-:])(?<!(?:sha|SHA)(?:256|384|512)[-:])(?<!md5[-:])"
    r"([A-Za-z0-9][A-Za-z0-9+/]{23,}+)"
)
# Public keys of SSH, which begin with the length and the name of their kind, and of minisign;
# certificates, pictures, what gzip packed, hashes of IPFS, and numbers to the base of 16.
_PUBLIC = re.compile(
    r"AAAA[A-L](?:[HXn3]N[rz]|[GWm2]Vj)|RW[A-Za-z0-9+/]{54}$|MII|iVBORw0KGgo|H4sI"
    r"|Qm[1-9A-HJ-NP-Za-km-z]{44}$|0x"
)
# What a run measured, each number behind the word that says of what: B200x8Tp4Isl1kMtp3.
_NUMBER = "[0-9]+(?:[a-z](?:[0-9]+[a-z]?)?|[BKM](?![a-z]))?"
_SETTINGS = re.compile(
    f"(?:[a-z]{{0,9}}{_NUMBER})*+(?:[A-Z]{{1,5}}{_NUMBER}|[A-Z][a-z]{{1,8}}{_NUMBER}"
    "|[A-Z][a-z]{2,}|[A-Z]{3,5}|Nv)+"
)
_WORD = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}|[0-9]{3,}|(?<![0-9])(?:16|32|64|[0-9]0)(?![0-9])")
_IN_PATH = re.compile(r"((?:[A-Z]?[a-z]{1,30}/)*)(.*?)((?:/[A-Z]?[a-z]{1,30})*/?)$")
# No name goes on so: a small letter behind a digit, or a capital with one small letter.
_UNLIKE_NAMES = re.compile(r"[0-9][a-z](?![A-Z])|(?<![A-Z])[A-Z][a-z](?=[A-Z])")


def is_random(run: str) -> bool:
    """Whether a run was drawn: both cases, digits in between, and few letters in words.

    That is likely, not certain: enough to keep a text out of a log, and too little to refuse it.

    >>> [is_random(x) for x in ("q7RkZ2mW9xLp4TbV8nYc3HsD", "B200x8Tp8Ep8Bs256Isl8kOsl1k")]
    [True, False]
    """
    letters = max(re.split(r"[+/]", run), key=len)
    if len(letters) < _LEAST_LETTERS or _PUBLIC.match(run) or _SETTINGS.fullmatch(letters):
        return False
    if not re.search("[a-z]", letters) or not re.search("[A-Z]", letters):
        return False
    if len(re.findall("[0-9]+", letters)) < 3:
        return False
    words = sum(map(len, _WORD.findall(letters)))
    return words <= _MOST_WORDS * len(letters) and bool(_UNLIKE_NAMES.search(letters))


def without_words(run: str) -> tuple[str, str, str]:
    """A run between the words of a path around it.

    >>> without_words("runs/q7RkZ2mW9xLp4TbV8nYc3HsD/log")
    ('runs/', 'q7RkZ2mW9xLp4TbV8nYc3HsD', '/log')
    """
    before, inner, behind = _IN_PATH.match(run).groups()  # type: ignore[union-attr]
    return before, inner, behind


def in_base64(run: str) -> str:
    """The printable text that a run encodes in base64, or none; the text is then checked itself."""
    try:
        text = base64.b64decode(run + "=" * (-len(run) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.isprintable() or all(map(str.isprintable, text.split())) else ""
