"""The diagnostic, the form of every error and warning, and suggestions for misspelt names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from .credentials import mask
from .general_rules import INVALID, NO_RULE, SYNTAX, Rule, Severity


class Location(NamedTuple):
    """A location in a text, counted from 1; line 0 means the whole text."""

    line: int
    column: int


NOWHERE = Location(0, 0)
MAX_CHARACTERS = 4_000  # of one text of a diagnostic, which may list dozens of vulnerabilities
MAX_NAME_CHARACTERS = 200  # that is compared with others
MOST_LISTED = 19  # names of which all are told
MOST_ALIKE = 4  # names with all words of another one, of which so many are told

# What moves a cursor, colours a line, hides a letter, turns the direction of writing, or is no
# letter at all, such as a byte of a file's name that is not UTF-8.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Text of several lines, safe for a terminal: control characters are escaped as in JSON."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Text that must not start a new line, such as a name, a key or a value."""
    return printable(text.replace("\n", "\\n"))


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What is wrong: where it is, what is expected, and how to fix it.

    `where` is for a reader: an argument, a file, a file with line and path. `path` is the dotted
    path of the wrong value and `location` its place in the text, if known; `within` names the
    embedded file that they refer to. `rule` is the broken rule; a diagnostic of severity `warning`
    stops nothing. `release` is set if a file was checked for several engine releases. `log` are
    lines of a program's log to show below.
    """

    where: str
    message: str
    fix: str = ""
    rule: Rule = NO_RULE
    severity: Severity = "error"
    path: str = ""
    location: Location = NOWHERE
    within: str = ""
    release: str = ""
    log: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Masks credentials and shortens long texts, whoever reports them."""
        for name in ("where", "message", "fix", "path"):
            object.__setattr__(self, name, mask(_shortened(getattr(self, name))))
        object.__setattr__(self, "log", tuple(mask(_shortened(line)) for line in self.log))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return one_line(f"{text}; {self.fix}" if self.fix else text)

    def in_file(self, file: str, release: str = "") -> Diagnostic:
        """The diagnostic for a named file, with each text on one line."""
        message, fix = (" ".join(text.split()) for text in (self.message, self.fix))
        rule = self.rule or INVALID
        return replace(self, where=file, message=message, fix=fix, rule=rule, release=release)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def located(
    location: Location,
    path: str,
    message: str,
    fix: str,
    rule: Rule = SYNTAX,
    severity: Severity | None = None,
    within: str = "",
) -> Diagnostic:
    """A diagnostic of a text, without the file's name; its severity is usually that of the rule."""
    return Diagnostic("", message, fix, rule, severity or rule.severity, path, location, within)


def nearest(
    name: str, known: Iterable[str], shows_some: bool = False, most: int = MOST_LISTED
) -> str:
    """The fix for an unknown name: the nearest known names, or all of them if there are few.
    Up to `most` are few. `shows_some` lists examples if there are many and none is near.

    >>> nearest("gb2000", ["gb200", "h200"])
    'did you mean gb200? Known: gb200, h200'
    >>> nearest("gh200", ["gb200", "h200"])
    'Known: gb200, h200'
    >>> nearest("trtlm", ["auto", "flashinfer_trtllm"])
    'did you mean flashinfer_trtllm? Known: auto, flashinfer_trtllm'
    >>> nearest("x", ["10", "9", "9" * 5000])[:14]  # more digits than Python converts
    'Known: 9, 10, '
    """
    names = sorted(known, key=lambda text: (len(text) if text.isdecimal() else 0, text))
    listing = f"Known: {', '.join(names)}"
    close = closest(name, names)
    alike = [close] if close else _of_words(name, names)
    if alike and len(alike) <= MOST_ALIKE:
        return f"did you mean {either(alike)}? {listing if len(names) <= 8 else ''}".rstrip()
    if len(names) <= most:
        return listing
    least = _LEAST_WORD if _long_runs(name) else _LEAST_SHORTENED  # glm46 has few letters
    own = _long_runs(name, least)
    alike = [other for other in names if own and own <= _long_runs(other, least)][:MOST_ALIKE]
    alike = alike or names[:: len(names) // MOST_ALIKE][:MOST_ALIKE] if shows_some else alike
    told = f", as {either(alike)}" if alike else ""
    return f"one of {len(names)} known names is expected{told}"


def _long_runs(name: str, least: int = 4) -> set[str]:
    return {run for run in _RUNS.findall(name.lower()) if len(run) >= least}


def _of_words(name: str, known: Iterable[str]) -> list[str]:
    """The known names that contain every word of `name`, exactly, misspelt or shortened."""
    given = _in_words(name)
    return [
        other
        for other in known
        if any(len(word) >= _LEAST_WORD for word in given)
        and all(any(_is_like(word, part) for part in _in_words(other)) for word in given)
    ]


def _is_like(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    if word == other or len(short) < _LEAST_WORD:
        return word == other
    is_shortened = long.startswith(short) and not re.search(r"[0-9]", long[len(short) :])
    return is_shortened or _slips(word, other) is not None  # a number more is another name


def either(names: Iterable[str]) -> str:
    """Alternatives in a sentence: `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` misspells or abbreviates, or `None`.

    Ties are broken by the same first letter, then by length.
    """
    if len(name) > MAX_NAME_CHARACTERS:
        return None
    names, given = list(known), name.lower()
    ranked = sorted(
        (slips, other[:1].lower() != given[:1], abs(len(other) - len(name)), other)
        for other in names
        if (slips := _slips(given, other.lower())) is not None
    )
    if ranked:
        return ranked[0][-1]
    begun = [other for other in names if _is_part(given, other.lower())]
    return begun[0] if len(begun) == 1 else None


def of_same_words(name: str, known: Iterable[str]) -> str:
    """The known name that has all words of `name` in their order, or that is shorter so; of two
    that are as near both, of more none.

    A word may be shortened: `ctx` is context, `mem` memory.

    >>> of_same_words("max_tokens", ["max_num_tokens", "max_seq_len"])
    'max_num_tokens'
    >>> of_same_words("ctx_servers", ["context_servers", "generation_servers"])
    'context_servers'
    >>> of_same_words("--tp", ["--tp_size", "--pp_size"])
    '--tp_size'
    """
    given = _in_words(name)
    rows = sorted(
        (abs(len(words) - len(given)), other)
        for other in known
        if (words := _in_words(other))
        and (_in_order(given, words) or _in_order(words, given))
        and (min(len(given), len(words)) > 1 or (words[:1] == given and len(words) == 2))
    )
    nearest_rows = [other for distance, other in rows if distance == rows[0][0]]
    return " or ".join(nearest_rows) if len(nearest_rows) <= 2 else ""


def _in_words(name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def _in_order(few: list[str], many: list[str]) -> bool:
    rest = iter(many)
    return 2 * len(few) >= len(many) and all(
        any(_is_same_word(word, other) for other in rest) for word in few
    )


def _is_same_word(one: str, other: str) -> bool:
    """Whether two words are equal, or one abbreviates the other by leaving out letters."""
    short, long = sorted((one, other), key=len)
    letters = iter(long)
    return one == other or (
        len(short) >= _LEAST_SHORTENED
        and short[0] == long[0]
        and short.isalpha()
        and all(letter in letters for letter in short)
    )


def is_misspelling(name: str, other: str) -> bool:
    """Whether a name equals another one except for typing errors."""
    return len(name) <= MAX_NAME_CHARACTERS and _slips(name.lower(), other.lower()) is not None


_RUNS = re.compile(r"[a-z]+|[0-9]+")
_LONG = 8  # letters of a name of which two may be wrong
_LEAST_WORD = 4  # letters of a word that says something
_LEAST_SHORTENED = 3
_LEAST_PART = 4  # letters that say which name they begin


@lru_cache(maxsize=50_000)
def _slips(given: str, other: str) -> int | None:
    """The number of typing errors between two lower-case names; `None` if they are unrelated.

    Separators do not count. Short words are compared one by one: `tp_size` is not a misspelt
    `pp_size`. A number with another digit is another number, as in `gh200`, `fp4` and `V3.1`.
    """
    ours, theirs = _runs(given), _runs(other)
    if "".join(ours) == "".join(theirs):
        return 0
    if _is_swapped("".join(ours), "".join(theirs)):
        return 1
    numbers = [[run for run in runs if run.isdigit()] for runs in (ours, theirs)]
    if numbers[1] and sorted(given[:2]) != sorted(other[:2]) and given[:1] != other[:1]:
        return None
    letters = ["".join(run for run in runs if not run.isdigit()) for runs in (ours, theirs)]
    if len(ours) == len(theirs):
        pairs = [(one, two) for one, two in zip(ours, theirs, strict=True) if one != two]
        if any(_is_another(one, two, len(letters[1]) - len(two)) for one, two in pairs):
            return None
        if len(pairs) == 1 and _is_shortened(*pairs[0], least=3 if len(ours) > 1 else 5):
            return 2
        if letters[0] == letters[1]:
            return len(pairs)
    elif numbers[0] != numbers[1] or min(map(len, letters)) < _LEAST_PART:
        return None
    limit = 2 if len(letters[1]) >= _LONG or sorted(letters[0]) == sorted(letters[1]) else 1
    return _edits(letters[0], letters[1], limit)


def _is_swapped(given: str, other: str) -> bool:
    """Whether only a letter and a neighbouring digit have changed places."""
    if len(given) != len(other) or sorted(given) != sorted(other):
        return False
    at = next(i for i, (one, two) in enumerate(zip(given, other, strict=True)) if one != two)
    one, two = given[at], given[at + 1]
    return one.isdigit() != two.isdigit() and f"{given[:at]}{two}{one}{given[at + 2 :]}" == other


@lru_cache(maxsize=10_000)
def _runs(name: str) -> list[str]:
    return _RUNS.findall(name)


def _is_another(given: str, other: str, beside: int) -> bool:
    """Whether a word or number is too different to be a typing error; `beside` counts other
    letters."""
    doubled = any(other[: i + 1] + other[i:] == given for i in range(len(other)))
    if doubled or sorted(given) == sorted(other):
        return False
    if given.isdigit() or other.isdigit():
        return True
    if len(given) == len(other) < 3:
        return beside < _LONG
    if max(len(given), len(other)) < 3 or (len(given) == len(other) == 3 and not beside):
        return True
    is_short = min(len(given), len(other)) <= 3 and not _is_shortened(given, other)
    return is_short and _edits(given, other, 1) is None


def _is_shortened(given: str, other: str, least: int = 3) -> bool:
    """Whether one word is the beginning of the other, as in `len` and `length`."""
    short, long = sorted((given, other), key=len)
    return len(short) >= least and long.startswith(short)


def _is_part(given: str, other: str) -> bool:
    """Whether a name is most of another one, as its beginning or its end."""
    if len(given) < _LEAST_PART or 2 * len(given) < len(other) or len(given) >= len(other):
        return False
    if other.startswith(given):
        rest = other[len(given) :]
        return not re.search(r"[0-9]", rest) and (rest[0] in "_-" or given.isalpha())
    rest = other[: -len(given)]
    return other.endswith(given) and rest[-1] in "_-." and not re.search(r"[0-9]", rest)


def _edits(a: str, b: str, limit: int) -> int | None:
    """Letters to insert, delete, replace or swap with a neighbour; `None` if more than `limit`."""
    if abs(len(a) - len(b)) > limit or len(set(a).difference(b)) > limit:
        return None
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > limit and min(before) > limit:
            return None
    return row[-1] if row[-1] <= limit else None
