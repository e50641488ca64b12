"""Checks the names and values of environment variables for engines and their libraries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from ...diagnostics import Diagnostic, Location, closest, is_misspelling, located
from ...facts import release as releases
from ...facts.release import Release
from ...general_rules import Rule
from ...rules.options import TRUE
from ...rules.remedies import age
from ..engine import formats, surroundings
from ..read.yaml_text import places

MISSPELT_VARIABLE = Rule(
    "misspelt-variable",
    "A variable of the engine or its libraries is misspelt, and is not read.",
    "warning",
)
UNKNOWN_VARIABLE = Rule(
    "unknown-variable", "The release reads no environment variable of this name.", "warning"
)
VARIABLE_VALUE = Rule(
    "variable-value", "A variable of the engine has a value that it does not know.", "warning"
)

_VARIABLE = re.compile(
    r"(?<![\w$.{/-])(?:T[A-Z]*L[A-Z]*|TRT_LLM|TENSORRT_?LLM)(?:_[A-Z0-9]+)+(?![\w/-])"
)
_ENGINE = re.compile(r"^(?:TLLM|TRT_?LLM|TENSORRT_?LLM)_")
# A variable with its value: in a shell, in a mapping, or as `name` and `value` keys.
_SETTING = re.compile(
    r"(?<![\w$./-])(?<!\$\{)(?P<name>(?:T[A-Z]*LLM|NCCL|UCX|PYTORCH)_[A-Z0-9_]+)"
    r"[\"']?(?:=|[ \t]*:[ \t]+|,?\s*[\"']?value[\"']?[ \t]*:[ \t]*)"
    r"[\"']?\^?(?P<value>\w+(?::\w+)?(?:,\w+(?::\w+)?)*)[\"']?(?=[\s,;}\])]|$)"
)
_TRANSPORTS = "UCX_TLS"
_OF_LIBRARY = re.compile(
    r"(?<![\w$.{/-])(NCCL|UCX|HF_HUB)_[A-Z0-9_]+(?=[\"']?(?:[=:,\]]|\s+[\w\"']|\s*$))"
)
# Variables that a script sets for itself, reads, or passes to programs.
_SET = re.compile(r"""^[ \t]*([A-Z]\w*)=(?:"[^"\n]*"|'[^'\n]*'|[^\s"';&|])*[ \t]*(?:;|#|$)""", re.M)
_READ = re.compile(r"\$\{?([A-Z]\w*)")
_GIVING = re.compile(r"(?:\bexport|\s-x|\s-e|--env|--export)[\s=].*")
_ALL_GIVEN = re.compile(r"set -\w*a|allexport")
_NAMES = re.compile(r"[A-Z]\w*")


def variable_diagnostics(text: str) -> Iterator[Diagnostic]:
    """Reports misspelt engine variables and values that the engine does not know."""
    misspelt = list(_misspelt_variables(text))
    own = _own_variables(text) if misspelt else set()
    yield from (row for row in misspelt if row.path not in own)
    switches, choices = surroundings()["switches"]["names"], surroundings()["choices"]["names"]
    ways = set(surroundings()["transports"]["of_gpus"]) if _moves_cache(text) else set()

    def lacks_gpus(value: str) -> bool:
        return bool(ways) and ways.isdisjoint(part.partition(":")[0] for part in value.split(","))

    place = places(text)
    for found in _SETTING.finditer(text):
        name, value = found["name"], found["value"]
        line_start = text.rfind("\n", 0, found.start()) + 1
        if text[line_start : found.start()].lstrip().startswith("#"):
            continue
        if name in switches and value.lower() in TRUE - {"1"}:
            what, fix = f"{value} is not 1: the engine reads {name} as off", "give 1"
        elif name in choices and (slip := _unknown_word(value, choices[name])):
            what = f"{slip[0]} is not a value that {name} takes"
            fix = f"did you mean {slip[1]}?"
        elif name == _TRANSPORTS and text[found.start("value") - 1] != "^" and lacks_gpus(value):
            what = f"{value} leaves UCX no way to GPU memory, where the KV cache is that moves"
            fix = "add cuda_copy, cuda_ipc and what the network has, or leave UCX_TLS out"
        else:
            continue
        yield located(place(found.start("value")), name, what, fix, VARIABLE_VALUE)


def _moves_cache(text: str) -> bool:
    """Whether a file sets up the transfer of KV caches between servers."""
    return any(word in text.lower() for word in surroundings()["transports"]["transfer"])


def _unknown_word(value: str, known: Sequence[str]) -> tuple[str, str] | None:
    """The first misspelt word in a list, and the known word that it resembles."""
    lower = [row.lower() for row in known]
    for word in (part.partition(":")[0] for part in value.split(",")):
        if word.lower() in lower:
            continue
        begun = (row for row in known if len(row) > 3 and word.lower().startswith(row.lower()))
        if near := closest(word, known) or next(begun, None):
            return word, near
    return None


def _misspelt_variables(text: str) -> Iterator[Diagnostic]:
    """Reports misspelt engine and library variables, which are ignored."""
    known, libraries = surroundings()["variables"], surroundings()["libraries"]
    for number, line in enumerate(text.splitlines(), 1):
        if "_" not in line or line.lstrip().startswith("#"):
            continue
        rows = []
        for found in _VARIABLE.finditer(line):
            name, near = found.group(), None
            if name not in known:
                near = _of_prefix(name, known) or closest(name, known) or _but_one(name, known)
            rows.append((found, "the engine", near))
        for found in _OF_LIBRARY.finditer(line):
            name, near, own = found.group(), None, libraries[found[1]]
            names = (*own["names"], *own["others"]["names"])
            if (
                name not in names
                and (close := closest(name, names))
                and is_misspelling(name, close)
            ):
                near = close
            rows.append((found, found[1], near))
        for found, reader, near in rows:
            if near:
                place, name = Location(number, found.start() + 1), found.group()
                what, fix = f"{reader} reads no variable {name}", f"did you mean {near}?"
                yield located(place, name, what, fix, MISSPELT_VARIABLE)


def _own_variables(text: str) -> set[str]:
    """Variables that a script sets and reads itself but does not pass to any program."""
    if _ALL_GIVEN.search(text):
        return set()
    given = set(_NAMES.findall(" ".join(_GIVING.findall(text))))
    return set(_SET.findall(text)) & set(_READ.findall(text)) - given


def _of_prefix(name: str, known: Iterable[str]) -> str | None:
    """The only known name that differs in the engine's prefix or in the order of words."""
    rest = sorted(_ENGINE.sub("", name).split("_"))
    is_own = _ENGINE.match(name) is not None
    rows = [row for row in known if is_own and sorted(_ENGINE.sub("", row).split("_")) == rest]
    return rows[0] if len(rows) == 1 else None


def _but_one(name: str, known: Iterable[str]) -> str | None:
    """The only known name with one character more or less at its end."""
    rows = [row for row in known if row == name[:-1] or row[:-1] == name]
    return rows[0] if len(rows) == 1 else None


# A line that sets a variable: `NAME=`, `NAME:`, `name: NAME` (container), `ENV NAME value`.
_SET_HERE = re.compile(
    r"(?<![\w$.{-])(?:(?P<plain>VLLM_[A-Z0-9_]+)(?=[\"']?[ \t]*[:=])"
    r"|(?<=name: )[\"']?(?P<named>VLLM_[A-Z0-9_]+)"
    r"|(?<=ENV )(?P<env>VLLM_[A-Z0-9_]+)(?=[ \t]))"
)


def unread_variables(text: str, release: Release) -> Iterator[Diagnostic]:
    """Reports variables that are misspelt or that only other releases read. An unknown variable
    that resembles none may belong to the file itself, as does one that the file reads."""
    for number, line in enumerate(text.splitlines(), 1):
        if "VLLM_" not in line or line.lstrip().startswith("#"):
            continue
        for found in _SET_HERE.finditer(line):
            kind = str(found.lastgroup)
            name, start = found[kind], found.start(kind)
            if name in release.environment or re.search(rf"\$\{{?{name}\b", text):
                continue
            if remedy := _remedy(name, release):
                place = Location(number, start + 1)
                what = f"{release.engine.title} {release.name} reads no such variable"
                yield located(place, name, what, remedy, UNKNOWN_VARIABLE)


@lru_cache(maxsize=1000)
def _remedy(name: str, release: Release) -> str:
    others = [row for row in releases.of_engine(release.engine) if name in row.environment]
    told = [age(release, others)] if others else []
    if former := formats(release.engine.name).former_variables.get(name):
        told.append(former)
    near = None if told else closest(name, release.environment)
    return "; ".join(told) or (f"did you mean {near}?" if near else "")


@dataclass(frozen=True, slots=True)
class Policy:
    """How to report vulnerable versions: as warnings, or as errors if `refuses`. Products and
    versions in `accepted` are never errors."""

    accepted: Collection[tuple[str, str]] = ()
    refuses: bool = False


def read_images(text: str, policy: Policy) -> tuple[int, list[Diagnostic]]:
    """Counts the publisher's images in a file and reports vulnerable and unknown versions."""
    if "/" not in text:
        return 0, []
    from ...facts import images  # imported late: short option files do not need it

    named = sum(1 for _ in chain(images.untold(text), images.contents(text)))
    return named, list(_vulnerable(text, policy)) if named else []


def _vulnerable(text: str, policy: Policy) -> Iterator[Diagnostic]:
    from ...facts import advisories, images

    place = places(text)
    for content in images.untold(text):
        row = advisories.unknown(content.product, content.version, "", strict=False)
        if (content.product, content.version) not in policy.accepted:
            yield located(place(content.start), "", row.message, row.fix, row.rule, row.severity)
    for content in images.contents(text):
        diagnostic = advisories.diagnostic(content.product, content.version, "")
        if diagnostic:
            taken = any(
                product == content.product and advisories.same(version, content.version)
                for product, version in policy.accepted
            )
            severity = diagnostic.severity if policy.refuses and not taken else "warning"
            here, rule = place(content.start), diagnostic.rule
            yield located(here, "", diagnostic.message, diagnostic.fix, rule, severity)
