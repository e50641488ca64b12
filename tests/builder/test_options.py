"""Options judged against a release, as strictly as the engine does and with the remedy."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from builder.diagnostics import Diagnostic, closest
from builder.facts import release
from builder.facts.release import Release
from builder.rules import options
from builder.rules.validation import validate
from tests.tables import by_table

PUBLISHED: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 2, 4]},
    "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.8},
    "moe_config": {"backend": "TRTLLM"},
}
MTP = {"decoding_type": "MTP", "num_nextn_predict_layers": 3}


def judged(given: dict[str, Any], name: str = "1.2.1") -> list[Diagnostic]:
    return list(validate(release.load(name), given))


def rejected(given: dict[str, Any], name: str = "1.2.1") -> list[str]:
    return [str(problem) for problem in judged(given, name) if problem.severity == "error"]


def warned(given: dict[str, Any], name: str = "1.2.1") -> list[str]:
    return [str(problem) for problem in judged(given, name) if problem.severity == "warning"]


@pytest.mark.parametrize("name", release.known())
def test_the_published_options_are_valid_for_every_release(name: str) -> None:
    assert judged(PUBLISHED, name) == []
    assert rejected({"speculative_config": MTP}, name) == []


@by_table
def test_a_wrong_option_is_named_with_its_remedy(given: dict[str, Any], expected: str) -> None:
    (problem,) = rejected(given)
    assert expected in problem


@by_table
def test_a_misplaced_option_is_told_where_it_belongs(given: dict[str, Any], expected: str) -> None:
    (problem,) = rejected(given)
    assert expected in problem


@by_table
def test_what_another_release_knows_is_told_so(
    name: str, given: dict[str, Any], expected: str
) -> None:
    (problem,) = rejected(given, name)
    assert expected in problem


def test_all_faults_are_found_at_once() -> None:
    faults = rejected({"a": 1, "max_seq_len": "x", "moe_config": {"backend": "X", "b": 1}})
    assert [fault.split(":")[0] for fault in faults] == [
        "a",
        "max_seq_len",
        "moe_config.backend",
        "moe_config.b",
    ]


def test_an_unknown_kind_does_not_hide_other_faults() -> None:
    given = {"speculative_config": {"decoding_type": "Medsua", "num_nextn_predict_layer": 3}}
    kind, key = rejected(given)
    assert "did you mean Medusa?" in kind
    assert "did you mean num_nextn_predict_layers?" in key


def test_a_graph_of_the_encoder_is_known_by_its_options() -> None:
    """The development release infers the kind of graph from the keys that are given."""
    assert rejected({"cuda_graph_config": {"num_tokens": [64]}}, "main-00043967") == []
    assert rejected({"cuda_graph_config": {"mode": "decode", "num_tokens": [64]}}, "main-00043967")


def test_null_turns_graphs_off_and_half_a_character_is_no_value() -> None:
    assert judged({"cuda_graph_config": None}) == []
    (problem,) = rejected({"print_iter_log": "\ud83d"})
    assert "print_iter_log: is" in problem


@pytest.mark.parametrize(
    ("digits", "fix"), [(1, "expected a number: write 0.09"), (400, "expected a number")]
)
def test_a_quantity_is_told_as_a_number_where_that_is_finite(digits: int, fix: str) -> None:
    fraction = "9" * digits + "%"
    (found,) = judged({"kv_cache_config": {"free_gpu_memory_fraction": fraction}})
    assert found.fix == fix


def test_a_number_that_is_none_is_out_of_every_range() -> None:
    (bounded,) = rejected({"kv_cache_config": {"free_gpu_memory_fraction": float("nan")}})
    assert "nan is out of range" in bounded
    assert rejected({"max_seq_len": float("inf")})
    threshold = {"algorithm": "skip_softmax", "threshold_scale_factor": float("inf")}
    (unbounded,) = warned({"sparse_attention_config": threshold})
    assert "inf is not a finite number" in unbounded


@by_table
def test_a_deprecated_option_is_a_warning(name: str, given: dict[str, Any], expected: str) -> None:
    assert rejected(given, name) == []
    (warning,) = warned(given, name)
    assert expected in warning


def test_a_deprecated_option_with_its_own_default_is_none() -> None:
    assert judged({"backend": "pytorch"}) == []


@by_table
def test_what_the_table_is_not_sure_of_is_a_warning(given: dict[str, Any], name: str) -> None:
    assert rejected(given, name) == []
    assert warned(given, name)


@by_table
def test_what_the_table_is_sure_of_is_an_error(given: dict[str, Any], name: str) -> None:
    assert rejected(given, name)


VALUES: tuple[Any, ...] = (
    *(0, 1, 2, -1, 0.0, 1.0, 0.5, 1e300, float("inf"), float("nan"), True, False, None),
    *("", "0", "1", "2", " 3 ", "1.0", "1.", "1.50", "1_000", "+4", "-4", "0x10", "1e3", "1e-5"),
    *("nan", "inf", "-Infinity", "true", "TRUE", "Yes", "off", "t", "maybe", "null", "\u0663"),
    *([], [1], {}, {"a": 1}, 10**30, 10**400, "1" * 5000),
)


@pytest.mark.parametrize(
    ("kind", "annotation"), [("int", int), ("float", float), ("bool", bool), ("str", str)]
)
def test_values_are_judged_as_the_engine_judges_them(kind: str, annotation: type) -> None:
    """The engine validates with pydantic, not in its strict mode."""
    table = {
        "release": "synthetic",
        "root": "Root",
        "types": {"Root": {"fields": {"value": {"type": kind}}}},
        "unions": {},
    }
    judge = Release(table, Path())
    engine: TypeAdapter[Any] = TypeAdapter(annotation)
    for value in VALUES:
        found = [row for row in validate(judge, {"value": value}) if row.severity == "error"]
        try:
            taken = engine.validate_python(value)
        except ValidationError:
            assert found, f"{value!r} is no {kind}"
        else:
            assert not found, f"{value!r} is a {kind}"
            mine = options.normalise(judge, {"value": value})["value"]
            same = mine == taken or (kind == "float" and float(mine) == taken)
            assert same or taken != taken, f"{value!r} is {taken!r}, not {mine!r}"


def test_normalising_gives_every_value_its_own_type_and_name() -> None:
    given = {
        "max_batch_size": "64",
        "enable_attention_dp": "yes",
        "load_format": "dummy",
        "cuda_graph_config": {"batch_sizes": ["1", 2.0]},
        "speculative_config": {
            "decoding_type": "Eagle",
            "speculative_model_dir": "/draft",
            "draft_len_schedule": {"1": "3"},
        },
        "sparse_attention_config": {"algorithm": "DSA", "index_topk": "2048"},
    }
    assert judged(given) == []
    assert options.normalise(release.load("1.2.1"), given) == {
        "max_batch_size": 64,
        "enable_attention_dp": True,
        "load_format": "DUMMY",
        "cuda_graph_config": {"batch_sizes": [1, 2]},
        "speculative_config": {
            "decoding_type": "Eagle",
            "speculative_model": "/draft",
            "draft_len_schedule": {1: 3},
        },
        "sparse_attention_config": {"algorithm": "dsa", "index_topk": 2048},
    }


# Every option of every release, broken in every way.


def records(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    """Where each record stands: its path, its type, and what its union wants beside its options."""
    seen = []

    def walk(
        kind: str, path: tuple[str, ...], beside: dict[str, Any]
    ) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
        if table["types"][kind].get("only_in_python") or (kind, path) in seen:
            return
        seen.append((kind, path))
        yield path, kind, beside
        for name, field in table["types"][kind]["fields"].items():
            for inner in field["of"] if field["type"] == "either" else [field]:
                if inner["type"] == "record":
                    yield from walk(inner["of"], (*path, name), {})
                elif inner["type"] == "union":
                    union = table["unions"][inner["of"]]
                    for value, one in union["types"].items():
                        yield from walk(one, (*path, name), {union["discriminator"]: value})

    yield from walk(table["root"], (), {})


def required(table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    fields = table["types"][kind]["fields"]
    return {name: valid(row) for name, row in fields.items() if row.get("required")}


def valid(field: Mapping[str, Any]) -> Any:
    """Some value that the option accepts."""
    if field["type"] == "list":
        return [valid(field["items"])]
    if field["type"] == "enum":
        return field["values"][0]
    samples = {"int": 4, "float": 0.5, "bool": True, "str": "x", "mapping": {}, "any": 1}
    return samples[field["type"]]


def nested(path: tuple[str, ...], value: Mapping[str, Any]) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def misspellings(key: str, number: random.Random) -> Iterator[str]:
    """One and two letters inserted, deleted, replaced or swapped with a neighbour."""
    for letters in (1, 1, 2, 2):
        word = key
        for _ in range(letters):
            at = number.randrange(len(word))
            letter = number.choice(string.ascii_lowercase + "_")
            word = (
                number.choice(
                    (
                        word[:at] + letter + word[at:],
                        word[:at] + word[at + 1 :],
                        word[:at] + letter + word[at + 1 :],
                        word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :],
                    )
                )
                or word
            )
        yield word


def out_of_bounds(field: Mapping[str, Any]) -> Iterator[Any]:
    for bound, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
        if bound in field:
            yield field[bound] + step


WRONG = {
    **dict.fromkeys(("int", "float", "bool", "enum"), "no such value"),
    **dict.fromkeys(("list", "record", "union", "mapping"), 3),
    "str": [1],
}


def rows(name: str) -> Iterator[str]:
    """Every option of a release, as it is in the table."""
    table = release.load(name).table
    for path, kind, _ in records(table):
        for key, field in table["types"][kind]["fields"].items():
            yield json.dumps([path, key, field])


def mutations(name: str) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Kind, options, the path that must be reported, and what its remedy must name.

    An option that the newest release has too, with the same row, is tried for that release alone.
    """
    table, number = release.load(name).table, random.Random(name)
    newest = release.known()[-1]
    tried = set() if name == newest else set(rows(newest))
    for path, kind, beside in records(table):
        every = table["types"][kind]["fields"]
        fields = {
            key: field
            for key, field in every.items()
            if json.dumps([path, key, field]) not in tried
        }
        base = {**required(table, kind), **beside} if path else {}
        known = {*every, *(a for row in every.values() for a in row.get("alias", ())), *beside}
        for key, field in fields.items():
            where = ".".join((*path, key))
            for word in misspellings(key, number):
                if word not in known:
                    value = {**base, word: base.get(key, 1)}
                    if key in base:
                        del value[key]
                    yield "misspelt", nested(path, value), ".".join((*path, word)), key
            wrong = WRONG.get(field["type"])
            if wrong is not None and not field.get("open"):
                yield "wrong type", nested(path, {**base, key: wrong}), where, ""
            if field["type"] in ("int", "float"):
                for value in out_of_bounds(field):
                    yield "out of bounds", nested(path, {**base, key: value}), where, ""
        for key in beside:
            rest = {word: value for word, value in base.items() if word != key}
            for word in misspellings(key, number):
                if word not in known:
                    given = {**rest, word: beside[key]}
                    yield "misspelt", nested(path, given), ".".join((*path, word)), key
    yield from foreign(name)


def foreign(name: str) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Options and values that only another release has, where that release has them."""
    here = release.load(name)

    def holds(path: tuple[str, ...]) -> bool:
        """Whether this release has a block of options there, too."""
        rows = here.paths.get(".".join(path), ())
        return not path or (bool(rows) and all(row["type"] in ("record", "union") for row in rows))

    for other in (release.load(one) for one in release.known() if one != name):
        for path, kind, beside in records(other.table):
            if not all(holds(path[: depth + 1]) for depth in range(len(path))):
                continue
            base = {**required(other.table, kind), **beside} if path else {}
            for key, field in other.table["types"][kind]["fields"].items():
                where = ".".join((*path, key))
                mine = here.paths.get(where, ())
                if not mine:
                    yield "other release", nested(path, {**base, key: 1}), where, "release"
                elif field["type"] == "enum" and all(row["type"] == "enum" for row in mine):
                    allowed = {str(value).lower() for row in mine for value in row["values"]}
                    strange = [value for value in field["values"] if value.lower() not in allowed]
                    for value in () if any(row.get("open") for row in mine) else strange:
                        given = nested(path, {**base, key: value})
                        yield "other value", given, where, "release"


@pytest.mark.parametrize("name", release.known())
def test_every_mutation_is_reported_with_its_path_and_fix(name: str) -> None:
    table = release.load(name)
    tried, found, fixed, fixable = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    missed: list[tuple[object, ...]] = []
    for kind, given, where, fix in mutations(name):
        tried[kind] += 1
        here = [row for row in validate(table, given) if row.where == where]
        found[kind] += bool(here)
        if fix:
            fixable[kind] += 1
            named = any(fix in row.fix for row in here)
            fixed[kind] += named
            if not named:
                missed.append((kind, where, fix, [row.fix for row in here]))
        elif not here:
            missed.append((kind, where, given, list(validate(table, given))))
    for kind, count in tried.items():
        rate = f", fix named {fixed[kind]}/{fixable[kind]}" if fixable[kind] else ""
        print(f"{name} {kind}: reported {found[kind]}/{count}{rate}")
    for row in missed[:40]:
        print("   missed", row)
    for kind, count in tried.items():
        assert found[kind] >= 0.99 * count, kind
        assert fixed[kind] >= 0.95 * fixable[kind], kind


def test_the_nearest_of_short_names_is_the_one_that_was_meant() -> None:
    assert closest("mdoe", ["mode", "model", "node"]) == "mode"
    assert closest("topq", ["topk", "topr", "page_size"]) in ("topk", "topr")
    assert closest("MAX_batch_size", ["max_batch_size", "max_seq_len"]) == "max_batch_size"
    assert closest("xyz", ["mode", "model"]) is None


def test_a_good_file_costs_one_table(tmp_path: Path) -> None:
    """The other tables are read only to explain a fault."""
    code = (
        "import json, sys\n"
        "from builder.facts import release\nfrom builder.rules.validation import validate\n"
        f"given = json.loads({json.dumps(json.dumps(PUBLISHED))})\n"
        "assert not list(validate(release.load('1.2.1'), given))\n"
        "sys.exit(release._shipped.cache_info().misses - 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("given", "found"),
    [(0.5, []), ({"prefill": 0.5}, []), (1.5, ["must be <= 1"]), (-1, ["must be >= 0"])],
)
def test_bounds_hold_for_the_number_among_several_types(given: object, found: list[str]) -> None:
    sparse = {"algorithm": "skip_softmax", "target_sparsity": given}
    problems = validate(release.load("main-00043967"), {"sparse_attention_config": sparse})
    assert [row.fix for row in problems if row.rule == "value-range"] == found


@pytest.mark.parametrize("name", release.known())
def test_a_number_as_text_is_a_number_where_the_kind_is_not_given(name: str) -> None:
    table = release.load(name)
    given = {"speculative_config": {"num_nextn_predict_layers": "1.0", "max_draft_len": "3"}}
    assert options.normalise(table, given)["speculative_config"] == {
        "num_nextn_predict_layers": 1,
        "max_draft_len": 3,
    }
