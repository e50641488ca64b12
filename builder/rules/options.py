"""Options of a release: their paths, the values of each type, and their normal form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..diagnostics import Diagnostic
from ..facts.release import Field, Release, discriminator
from ..general_rules import UNKNOWN_VALUE, VALUE_RANGE, VALUE_TYPE
from ..schema import BOUNDS

WRONG_VALUES = frozenset({VALUE_TYPE, UNKNOWN_VALUE, VALUE_RANGE})
MAX_DIGITS = 4300  # Python reads no longer number from text

_EXPECTED = {
    **dict.fromkeys(("record", "union", "mapping"), "a mapping"),
    "list": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "object": "a Python object, which no file can hold",
}


ANY_KEY = "*"


@dataclass(frozen=True, slots=True)
class OptionPath:
    """The path of an option in the file, and its path in the table."""

    path: str = ""
    schema: str = ""

    def key(self, key: object) -> OptionPath:
        return OptionPath(*(f"{at}.{key}" if at else str(key) for at in (self.path, self.schema)))

    def item(self, key: object) -> OptionPath:
        return OptionPath(f"{self.path}.{key}", f"{self.schema}.{ANY_KEY}")


def set_option(options: dict[str, Any], path: str, value: Any) -> None:
    """Set an option by its dotted path; a value on the way is replaced by a mapping."""
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(options.get(key), dict):
            options[key] = {}
        options = options[key]
    options[last] = value


def named(fields: Mapping[str, Field], name: str) -> Field | None:
    """The field that a file means by a name."""
    if name in fields:
        return fields[name]
    return next((row for row in fields.values() if name in row.get("alias", ())), None)


def expected(field: Field) -> str:
    if field["type"] == "either":
        return " or ".join(dict.fromkeys(map(expected, field["of"])))
    if field["type"] == "enum":
        return f"one of {', '.join(map(str, field['values']))}"
    return _EXPECTED.get(field["type"], "another value")


def wrong_type(path: str, value: Any, field: Field, what: str = "is") -> Diagnostic:
    remedy = f"expected {expected(field)}"
    kinds = [row["type"] for row in field.get("of", ())] if field["type"] == "either" else ()
    if isinstance(value, str) and (
        meant := _quantity_remedy(value, path.rpartition(".")[2], kinds or [field["type"]])
    ):
        remedy = f"{remedy}: {meant}"
    elif isinstance(value, str) and _FILLED_IN.fullmatch(value):
        remedy = f"{remedy}: nothing fills in {value} here, so write the value itself"
    elif shape := _of_shape(value, kinds or [field["type"]]):
        remedy = f"{remedy}: {shape}"
    return Diagnostic(path, f"{what} {shown(value)}", remedy, rule=VALUE_TYPE)


_FILLED_IN = re.compile(r"\$(?:\w+|\{\w+(?::-\w*)?\})")


def _of_shape(value: Any, kinds: Sequence[str]) -> str:
    """How to write a value whose shape the option does not accept."""
    if "list" in kinds and not isinstance(value, Mapping | list | None):
        return f"write [{str(value).strip('[]()')[:60]}]"
    if not isinstance(value, list) or not value:
        return ""
    if not {"record", "mapping", "union"}.isdisjoint(kinds) and isinstance(value[0], Mapping):
        return f"write {next(iter(value[0]), 'its keys')} without a dash before it"
    return f"write {shown(value[0])} alone" if len(value) == 1 and "str" in kinds else ""


_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d+)?)[ _]?([a-zA-Z%]+)")
_GROUPED = re.compile(r"\d{1,3}(?:[, '_]\d{3})+")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}


def _quantity_remedy(text: str, name: str, kinds: Iterable[str]) -> str:
    """What to write for `8k`, `90 GiB`, `80%` or `9,300` where a number is wanted, or nothing.

    The option's `name` ends with its unit.
    """
    wanted = set(kinds) & {"int", "float"}
    number_text = text.strip()
    if not wanted:
        return ""
    if _GROUPED.fullmatch(number_text):
        return f"write {re.sub(r'[^0-9]', '', number_text)}"
    if re.fullmatch(r"[+-]?\d+,\d{1,2}", number_text) and "float" in wanted:
        return f"write {number_text.replace(',', '.')}"
    if not (found := _QUANTITY.fullmatch(number_text)):
        return ""
    number, unit = float(found[1]), found[2].lower()
    numbers = [each for each in dict.fromkeys(_numbers(number, unit, name)) if math.isfinite(each)]
    if wanted == {"int"}:
        numbers = [each for each in numbers if each.is_integer()]
    return f"write {' or '.join(map(_written, numbers))}" if numbers else ""


def _numbers(number: float, unit: str, name: str) -> list[float]:
    """The meanings of a number with a unit, the more common one first."""
    if unit == "%":
        return [number / 100]
    last = name.rpartition("_")[2]
    if last in _SECONDS or last == "seconds":
        seconds = number * _SECONDS[unit] if unit in _SECONDS else None
        scale = _SECONDS.get(last, 1)
        return [] if seconds is None else [round(seconds / scale, 9)]
    if (power := _POWERS.get(unit[0])) is None:
        return [number] if unit in ("tokens", "bytes", "b") else []
    binary, decimal = number * 1024**power, number * 1000**power
    if unit[1:] in ("ib", "i"):
        return [binary]
    if unit[1:] == "b":
        return [decimal, binary]
    return [binary, decimal] if len(unit) == 1 else []


def _written(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:g}"


def shown(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:60]


def spelled(field: Field, value: Any) -> Any:
    """An allowed value in the release's spelling; `None` for other values."""
    for allowed in field["values"]:
        if value == allowed and isinstance(value, bool) == isinstance(allowed, bool):
            return allowed
        if field.get("case_insensitive") and str(value).lower() == str(allowed).lower():
            return allowed
    return None


def bounds(field: Field, value: Any, path: str) -> Iterator[Diagnostic]:
    if field["type"] in ("int", "float", "either") and (_is_number(value) or _is_int(value)):
        number = value if isinstance(value, int) else float(value)
        for bound, sign, holds in BOUNDS:
            if (limit := field.get(bound)) is not None and not holds(number, limit):
                remedy = f"must be {sign} {limit}"
                if bound == "le" and limit == 1 and 10 <= number <= 100:
                    remedy = f"{remedy}: {number / 100:g} for {value} %"
                yield Diagnostic(path, f"{value} is out of range", remedy, rule=VALUE_RANGE)
                return
        if isinstance(number, float) and not math.isfinite(number):
            what, remedy = f"{value} is not a finite number", "give a number"
            yield Diagnostic(path, what, remedy, rule=VALUE_RANGE, severity="warning")
    elif isinstance(value, str) and len(value) < field.get("min_length", 0):
        yield Diagnostic(path, "is empty", "give a value", rule=VALUE_RANGE)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float | str) or (isinstance(value, str) and not value.isascii()):
        return False
    try:
        float(value)
    except (ValueError, OverflowError):
        return False
    return True


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        whole = re.fullmatch(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*", value, re.ASCII)
        return whole is not None and len(value) <= MAX_DIGITS
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**63
    return isinstance(value, int)


TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})
FALSE = frozenset({"false", "no", "off", "n", "f", "0"})


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in TRUE | FALSE
    return isinstance(value, int | float) and value in (0, 1)


# Values that the engine's validation accepts for each type, like pydantic unless it is strict.
SHAPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "bool": _is_bool,
    "str": lambda value: isinstance(value, str),
    "object": lambda value: False,
    "list": lambda value: (
        isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    ),
    **dict.fromkeys(("mapping", "record", "union"), lambda value: isinstance(value, Mapping)),
}


def normalise(release: Release, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that `validate` accepts, with the engine's own names and types."""
    return _normalised_record(release, release.top_level, options)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value.partition(".")[0]) if isinstance(value, str) else int(value),
    "float": lambda value: float(value) if isinstance(value, str) else value,
    "bool": lambda value: str(value).lower() in TRUE | {"1.0"},
}


def kind_fields(release: Release, union: Mapping[str, Any], kind: str | None) -> dict[str, Field]:
    """The options of one kind of a union; of all of them, the first one's first, without `kind`."""
    types, kinds = release.table["types"], union["types"]
    chosen = [kinds[kind]] if kind else reversed(kinds.values())
    found: dict[str, Field] = {}
    for one in chosen:
        found |= types[one]["fields"]
    return found


def of_other_kinds(release: Release, decided: Mapping[str, Any]) -> set[str]:
    """Options that belong to other kinds of a record than the decided one.

    If the kind is undecided, that is every option except the one that selects the kind.
    """
    found: set[str] = set()
    for path, (field, *_) in release.paths.items():
        if field["type"] != "union":
            continue
        union = release.table["unions"][field["of"]]
        chooser = union["discriminator"]
        is_used = any(name.startswith(f"{path}.") for name in decided)
        given = decided.get(f"{path}.{chooser}") or (union.get("default") if is_used else None)
        kind = spelled(discriminator(union), given)
        own = {chooser, *(kind_fields(release, union, kind) if kind else ())}
        below = (name for name in release.paths if name.startswith(f"{path}."))
        found.update(
            name for name in below if name.removeprefix(f"{path}.").split(".")[0] not in own
        )
    return found


def _normalised_record(
    release: Release, fields: Mapping[str, Field], value: Mapping[str, Any]
) -> dict[str, Any]:
    own: dict[str, str] = {}
    for name, row in fields.items():
        own |= dict.fromkeys(row.get("alias", ()), name)
    renamed = {own.get(key, key): item for key, item in value.items()}
    return {
        key: _normalised(release, fields[key], item) if key in fields else item
        for key, item in renamed.items()
    }


def _normalised(release: Release, field: Field, value: Any) -> Any:
    kind = field["type"]
    if value is None:
        return None
    if kind in ("record", "union", "mapping") and not isinstance(value, Mapping):
        return value
    if kind == "record":
        return _normalised_record(release, release.table["types"][field["of"]]["fields"], value)
    if kind == "union":
        union = release.table["unions"][field["of"]]
        chooser = discriminator(union)
        name = spelled(chooser, value.get(union["discriminator"], union.get("default")))
        fields = kind_fields(release, union, name) | {union["discriminator"]: chooser}
        return _normalised_record(release, fields, value)
    if kind == "mapping":
        convert = _CONVERT.get(field.get("keys", "any"), lambda key: key)
        return {
            convert(key): _normalised(release, field["items"], item) for key, item in value.items()
        }
    if kind == "list" and SHAPES["list"](value):
        return [_normalised(release, field["items"], item) for item in value]
    if kind == "enum":
        own = spelled(field, value)
        return value if own is None else own
    if kind in _CONVERT and SHAPES[kind](value):
        return _CONVERT[kind](value)
    return value
