"""What a credential in a text looks like: known formats, words that introduce one, random letters.

Known formats are rows of `builder/data/credentials.yaml`; the words of names are there too.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent.parent / "data" / "credentials.yaml"


# Lists of words are text, which YAML reads faster.
SCHEMA: Any = {
    **dict.fromkeys(("prefixes", "short_prefixes", "base64_prefixes"), str),
    "formats": {"*": [str]},
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


def formats() -> tuple[str, ...]:
    """A regular expression for each known format."""
    return (
        rf"{_begun('prefixes')}(?=[A-Za-z_=+.-]{{0,300}}[0-9])[A-Za-z0-9_=+.-]{{16,}}",
        rf"{_begun('short_prefixes')}(?=[A-Za-z0-9_=+.-]{{0,300}}?{_RUN})[A-Za-z0-9_=+.-]{{16,}}",
        rf"{_begun('base64_prefixes')}(?=[A-Za-z0-9_=+/-]{{0,300}}?{_RUN})[A-Za-z0-9_=+/-]{{20,}}",
        *map("|".join, known()["formats"].values()),
    )


def _begun(prefixes: str) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, known()[prefixes].split()))})"


_RUN = r"(?=[A-Za-z]{0,11}[0-9])(?=[0-9]{0,11}[A-Za-z])[A-Za-z0-9]{12}"
# A variable, a placeholder or a path instead of a credential, as the whole value.
_ROOTS = (
    "app|config|data|etc|home|mnt|models|opt|proc|root|run|secrets|shared|srv|tmp|usr|var|vault"
    "|workspace"
)
_PATHS = (
    rf"/(?:{_ROOTS})(?:/[\w.-]{{1,99}})*|(?:/[a-z][a-z_-]{{1,40}}){{2,}}/[\w.-]{{1,99}}"
    r"|(?:/[\w.-]{1,99})+\.[a-z]{2,5}"
)
_ASKED = r"(?:[_-](?:[A-Z]?[a-z]{1,15}|[A-Z]{2,15}))"
_PLACE_HOLDERS = (
    r"\*{3,}|\[[A-Za-z _.-]{1,60}\]|<[^<>\n\"']{1,80}>|\{\{[^{}\n]{1,99}\}\}"
    r"|(?i:none|null|empty|dummy|not-needed|change[_-]?(?:me|it))"
    rf"|(?i:your|change|replace){_ASKED}{{1,6}}"
)
# Where a store of secrets, a file or the environment has it.
_REFERENCES = (
    r"file:/{0,3}[\w./-]{1,199}|env:\w{1,99}|vault:[\w./-]{1,199}#[\w-]{1,99}"
    r"|arn:aws[a-z-]{0,10}:[a-z]{1,20}:[\w:/.-]{1,199}|op://[\w./-]{1,199}"
)
# The default within a variable may be one itself.
_VARIABLE = r"\$(?:[A-Za-z_]\w{0,99}|\{(?![^}\n]{0,99}:-[^}\n]{0,99}[0-9])[^}\n\"']{1,199}\}\}?)"
_ELSEWHERE = (
    rf"[\"']?(?:\$\(|(?:{_VARIABLE}(?:[/:@.-](?:{_VARIABLE}|[\w.-]{{1,40}}))?"
    rf"|{_PLACE_HOLDERS}|{_PATHS}|{_REFERENCES})"
    r"(?=[\"'](?![A-Za-z0-9])|[`)\]}>.:\\|]{0,9}(?:[\s;,&\"']|$)))"
)
# Words and numbers as names of files, releases and objects have them, and their whole. Keys that
# are written in groups have no word of small letters, or groups of one length.
_PART = (
    r"(?>[a-z]{1,20})?+(?>(?:20[0-9]{6}|[0-9]{1,4})(?![0-9])"
    r"(?>rc[0-9]{1,3}|x[0-9]{1,3}b|[a-z]{1,20})?+)?+"
)
_NAME_END = r"(?![A-Za-z0-9%+/=_~.-])"
_GROUPED = "|".join(rf"(?:[a-z0-9]{{{n}}}[-_./]){{1,9}}[a-z0-9]{{{n}}}" for n in range(3, 9))
NAME = (
    r"[\"']?(?=[a-z0-9_./-]{0,99}?(?<![a-z0-9])(?=[a-z]{0,19}[aeiou])[a-z]{3,20}(?![a-z0-9]))"
    rf"(?!(?=[a-z_./-]{{0,99}}(?!(?:19|20)[0-9]{{2}}(?![0-9]))[0-9])(?:{_GROUPED}){_NAME_END})"
    rf"(?>{_PART}(?:[-_./]{_PART})++){_NAME_END}"
)
# What follows "basic" in a sentence is no base64, whose length is a multiple of four.
_TITLE = (
    rf"(?!(?:[A-Za-z0-9+/]{{4}})+{_NAME_END})"
    rf"[A-Za-z0-9]{{1,20}}(?:[-.][A-Za-z0-9]{{1,12}})*+{_NAME_END}"
)
_GIVES = r"\s?(?:=>|:=|[:=])\s{0,3}"  # between a key and its value
# Behind a word that says so: parts of connection strings, queries, headers and command lines.
SPOKEN_OF = (
    r"(?i:\b(?:account_?key|shared_?access_?(?:key|signature)|client_?secret|access_?token"
    r"|refresh_?token|password|passwd|pwd|api[_-]?key|secret[_-]?key)\s?=\s?)"
    rf"(?!{_ELSEWHERE})[^\s;&,]{{4,}}",
    r"(?i:[?&;](?:sig|signature|x-amz-signature|x-goog-signature|token|key|auth|secret)=)"
    rf"(?!{NAME})[A-Za-z0-9%+/=_-]{{12,}}|"
    r"(?i:[?&]code=)[A-Za-z0-9%+/=_-]{40,}",
    r"\bcurl\b[^\n]{0,200}\s(?:-u|--user)[ =]?[^\s:]{1,99}:(?!\$)\S{4,}"
    r"|\b(?:sshpass|(?:docker|podman|helm|skopeo|oras)[^\n]{0,100}? login\b[^\n]{0,200}?)"
    r"\s-p\s*(?![\"']?\$|-)\S{4,}"
    # A space would end the option; docker's -p gives ports.
    r"|\bmysql\w*\b[^\n]{0,200}?\s-p(?![\"']?\$|-|[0-9.:]{1,30}(?:/\w{1,4})?(?:\s|$))\S{4,}"
    r"|\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S{4,}"
    r"|\b(?:redis-cli\b[^\n]{0,200}?\s-a|mongo\w*\b[^\n]{0,200}?\s-p|ldap\w+\b[^\n]{0,200}?\s-w"
    r"|az login\b[^\n]{0,200}?\s-p|htpasswd\s+-\w*b\w*\s+\S+\s+\S+|wandb login)"
    r"\s+(?![\"']?\$|-)\S{4,}"
    rf"|--from-literal[ =][^\s=]{{1,99}}=(?!{_ELSEWHERE})\S{{4,}}"
    r"|\s-pass(?:in|out)?\s+pass:(?!\$)\S{4,}|\bjdbc:oracle:\w+:[^\s/@]{1,99}/[^\s@]{1,99}@",
    # The same words as keys of YAML and of files of settings; a digit tells it from a sentence.
    r"(?i:\b(?:[a-z_-]{0,40}secret_?access_?key|api_?key|private_?key|client-key-data"
    r"|(?:api|app|client|consumer|oauth|shared)[_-]?secret|(?:access|auth|bearer|refresh)[_-]?token)"
    rf"{_GIVES})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    r"(?i:\b[a-z_-]{0,40}(?:password|passwd|passphrase)"
    rf"{_GIVES})(?!{_ELSEWHERE})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{8,}",
    r"(?i:\b(?<!existing-)(?<!pull-)(?!existing|image_?pull)(?:[a-z_-]{0,40}secret(?:_?key)?"
    r"|_?(?:auth|access|refresh|api|session)?_?token|_?auth)"
    rf"{_GIVES})(?!{_ELSEWHERE})(?!{NAME})"
    r"[\"']?(?=[^\s\"']{0,300}[0-9])[^\s;,\"'{}\[\]]{12,}",
    r"(?i:--(?:token|secret|(?:[a-z]{1,20}[_-]){0,3}"
    r"(?:api[_-]?key|password|passwd|passphrase|(?:access|auth|bearer|hf)[_-]token))[ =])"
    rf"(?!{_ELSEWHERE})\S{{6,}}",
    rf"(?i:<\w{{0,40}}(?:password|passwd|secret|token|api_?key)>)(?!{_ELSEWHERE})[^<>\s]{{4,}}</",
    r"(?i:\b(?:(?:proxy-)?authorization|x-api-key|api-key|cookie(?=\s?:\s?[^\s=;]{1,99}=)"
    r"|private-token|job-token|x-[a-z-]{1,40}-(?:token|team)|ocp-apim-subscription-key)\s?[:=]\s?"
    rf"(?:(?:bearer|basic|token|apikey|negotiate) )?+)(?!{_ELSEWHERE})\S{{8,}}",
    rf"(?i:\b(?:bearer |basic (?!{_TITLE})))(?!{NAME})"
    r"(?=[a-z+/=_.~-]{0,99}[0-9A-Z])[A-Za-z0-9+/=_.~-]{16,}",
    r"(?i:[\"'](?:auth|token|secret|identitytoken)\\{0,3}[\"']"
    rf"\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})(?!{NAME})[\"'][^\"'\s]{{4,}}[\"']",
    r"(?i:[\"'][a-z0-9_.-]{0,40}(?:password|passwd|api_?key|client_secret|access_?key|access_?token)"
    rf"\\{{0,3}}[\"']\s*:\s*\\{{0,3}}(?=[\"']))(?!{_ELSEWHERE})[\"'][^\"'\s]{{4,}}[\"']",
    r"\bpassw(?:or)?d:\S{6,}",
)
# Without one of these none of them can be there.
SPEAKS = (
    r"(?i:(?:key|key-data|sig|signature|secret|token|passw(?:or)?d|passphrase|pwd|auth|authorization"
    r"|code|cookie|team)[\\\"']{0,4}\s*[:=]|bearer |basic "
    r"|--[a-z_-]{0,60}(?:key|passw(?:or)?d|passphrase|token|secret) )"
    r"|curl|sshpass|login|mysql|redis-cli|mongo|ldap|htpasswd|literal|pass:|jdbc|</"
)
ASSIGNED = rf"\b([A-Za-z][A-Za-z0-9_]{{0,99}})=(?!{_ELSEWHERE})[\"']?([^\s;&,\"']{{4,}})"

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
