"""Tables of releases that do not ship: from an installed engine, or from a release's manifest.

The installed engine is a package written here from a table: real option classes and a real server
command, imported by a Python of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadFacts, BadInput
from builder.facts import release, release_import
from builder.facts.release import Release, support
from builder.facts.release_import.tensorrt_llm import annotated
from builder.rules.constraints import of_release, violations
from builder.rules.context import RuleContext
from builder.rules.options import set_option
from builder.rules.validation import validate
from tests.conftest import ROOT
from tests.tables import by_table

PREAMBLE = """
from __future__ import annotations
from typing import Annotated, Any, Literal, Optional, Union
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
"""

SERVER = """
import click

@click.group()
def main(): ...
"""

BOUNDS = ("ge", "gt", "le", "lt", "min_length")
PLAIN = {"int": "int", "float": "float", "bool": "bool", "str": "str", "any": "Any"}
FLAG_TYPES = {"int": "int", "float": "float", "path": "click.Path()"}


def annotation(table: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The Python annotation of an option."""
    row = spread(row)
    text = plain_annotation(table, row)
    if bounds := [f"{key}={row[key]}" for key in BOUNDS if key in row]:
        text = f"Annotated[{text}, Field({', '.join(bounds)})]"
    return f"Optional[{text}]" if row.get("nullable") else text


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds of alternatives stand at the number among them."""
    bounds = {key: row[key] for key in BOUNDS if key in row}
    if row["type"] != "either" or not bounds:
        return dict(row)
    rest = {key: value for key, value in row.items() if key not in bounds}
    of = [option | (bounds if option["type"] == "int" else {}) for option in row["of"]]
    return {**rest, "of": of}


def plain_annotation(table: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    kind = row["type"]
    if kind == "enum":
        return "str" if row.get("open") else f"Literal[{', '.join(map(repr, row['values']))}]"
    if kind in ("list", "mapping"):
        items = annotation(table, row["items"])
        return f"list[{items}]" if kind == "list" else f"dict[{row.get('keys', 'Any')}, {items}]"
    if kind == "either":
        return f"Union[{', '.join(annotation(table, option) for option in row['of'])}]"
    if kind == "union":
        union = table["unions"][row["of"]]
        arms = ", ".join(union["types"].values())
        chooser = union["discriminator"]
        return f"Annotated[Union[{arms}], Field(discriminator={chooser!r})]"
    if kind == "record":
        return str(row["of"])
    return PLAIN.get(kind, "object")


def option_class(table: Mapping[str, Any], kind: str) -> Iterator[str]:
    yield f"class {kind}(StrictBaseModel):"
    for union in table["unions"].values():
        for value, arm in union["types"].items():
            if arm == kind:
                yield f"    {union['discriminator']}: Literal[{value!r}] = {value!r}"
    if "*" in table["types"][kind].get("open_keys", ()):
        yield "    model_config = ConfigDict(extra='allow')"
    for name, row in table["types"][kind]["fields"].items():
        extra: dict[str, Any] = {}
        if row.get("status"):
            extra["status"] = row["status"]
        if row["type"] == "object":
            extra["type"] = "Optional[tensorrt_llm.Thing]"
        parts = [] if row.get("required") else [f"default={row.get('default')!r}"]
        if "alias" in row:
            parts.append(
                f"validation_alias=AliasChoices({', '.join(map(repr, [name, *row['alias']]))})"
            )
        if extra:
            parts.append(f"json_schema_extra={extra!r}")
        yield f"    {name}: {annotation(table, row)} = Field({', '.join(parts)})"
    yield "    pass"


def server_command(name: str, flags: list[dict[str, Any]]) -> Iterator[str]:
    yield f"@main.command({name!r})"
    for flag in flags:
        if flag.get("positional"):
            yield f"@click.argument({flag['name']!r}, type=str)"
            continue
        spelled = ", ".join(map(repr, [*flag["flags"], flag["name"]]))
        kind = FLAG_TYPES.get(flag["type"], "str")
        if flag["type"] == "enum":
            kind = f"click.Choice({flag.get('values', [])!r})"
        more = "is_flag=True" if flag["type"] == "flag" else f"type={kind}"
        if flag.get("multiple"):
            more += ", multiple=True"
        default = f", default={flag['default']!r}" if flag.get("default") is not None else ""
        yield f"@click.option({spelled}, {more}{default})"
    yield f"def {name}(**given): ..."


def install(folder: Path, table: Mapping[str, Any]) -> None:
    """Write a package `tensorrt_llm` with the options and flags of a table."""
    package = folder / "tensorrt_llm"
    for inner in ("", "llmapi", "commands"):
        (package / inner).mkdir(parents=True, exist_ok=True)
        (package / inner / "__init__.py").write_text("__version__ = '9.9.9'\nprint('banner')\n")
    kinds = [line for kind in table["types"] for line in option_class(table, kind)]
    rebuild = f"{table['root']}.model_rebuild()"
    (package / "llmapi" / "llm_args.py").write_text("\n".join([PREAMBLE, *kinds, rebuild]))
    commands = {"serve": table["serve"]["flags"], **table["subcommands"]}
    lines = [line for name, flags in commands.items() for line in server_command(name, flags)]
    (package / "commands" / "serve.py").write_text("\n".join([SERVER, *lines]))


@pytest.fixture
def imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Mapping[str, Any], str], Release]:
    """Import the table of an engine that is installed from a table."""

    def run(table: Mapping[str, Any], like: str) -> Release:
        install(tmp_path / "site", table)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        found = release_import.from_installed(sys.executable, "mine", release.load(like))
        release_import.write(found, tmp_path / "mine.json")
        return release.load("mine.json", tmp_path)

    return run


# What no class of an engine says, or says in other words.
UNSAID = {
    *("uncertain", "confidence", "default_factory", "internal", "replaced_by", "effect"),
    *("effective_default", "keys", "open", "case_insensitive"),
}


def said(row: Mapping[str, Any]) -> dict[str, Any]:
    """An option as far as the classes of an engine say it."""
    kept = {key: value for key, value in spread(row).items() if key not in UNSAID}
    if "items" in kept:
        kept["items"] = said(kept["items"])
    if kept["type"] == "either":
        kept["of"] = [said(option) for option in kept["of"]]
    if not kept.get("required"):
        kept.setdefault("default", None)
    return kept


@pytest.mark.parametrize("name", [release.known()[0], "1.2.1", release.known()[-1]])
def test_an_installed_engine_gives_back_the_table_it_was_made_from(
    name: str, imported: Callable[[Mapping[str, Any], str], Release]
) -> None:
    source = release.load(name)
    found = imported(source.table, name)
    assert set(found.paths) == set(source.paths)
    compared = 0
    chosen_by = {row["discriminator"] for row in source.table["unions"].values()}
    # For Python, a union of one class is that class.
    alone = [of for of, row in source.table["unions"].items() if len(row["types"]) == 1]
    for kind, record in source.table["types"].items():
        fields = found.table["types"][kind]["fields"]
        assert set(fields) - chosen_by == set(record["fields"]) - chosen_by, kind
        for key, row in record["fields"].items():
            if key in chosen_by or row.get("of") in alone:
                continue
            assert said(fields[key]) == said(row), f"{kind}.{key}"
            compared += 1
    unions = {of: row for of, row in source.table["unions"].items() if of not in alone}
    assert found.table["unions"] == unions
    print(f"{name}: {compared} options equal")
    for mine, other in zip(found.serve_flags, source.serve_flags, strict=True):
        assert (mine.name, mine.spellings, mine.values) == (
            other.name,
            other.spellings,
            other.values,
        )
        assert (mine.positional, mine.yaml_path) == (other.positional, other.yaml_path)
    assert set(found.subcommands) == set(source.subcommands)


def test_what_cannot_be_read_is_carried_and_marked(
    imported: Callable[[Mapping[str, Any], str], Release],
) -> None:
    found, like = imported(release.load("1.2.1").table, "1.2.1"), release.load("1.2.1")
    assert found.rule_ids == like.rule_ids
    assert support.moe_backends(found, "NVFP4", 100) == support.moe_backends(like, "NVFP4", 100)
    assert {"rules", "moe", "containers", "endpoints", "serve.precedence"} <= set(
        found.carried_from
    )
    assert set(found.carried_from.values()) == {"1.2.1"}
    assert "tensorrt_llm 9.9.9 as installed" in found.sources[0]
    assert not list(validate(found, {"kv_cache_config": {"free_gpu_memory_fraction": 0.5}}))
    (typo,) = validate(found, {"kv_cache_config": {"free_gpu_memory_fracton": 0.5}})
    assert typo.severity == "error" and "did you mean free_gpu_memory_fraction?" in typo.fix


def test_options_that_the_engine_changed_are_those_of_the_engine(
    imported: Callable[[Mapping[str, Any], str], Release],
) -> None:
    table = json.loads(json.dumps(release.load("1.2.1").table))
    root = table["types"]["TorchLlmArgs"]["fields"]
    root["brand_new"] = {"type": "int", "default": 3, "ge": 1}
    del root["max_stats_len"]
    table["types"]["MoeConfig"]["fields"]["backend"]["values"] = ["CUTLASS", "NEWEST"]
    found = imported(table, "1.2.1")
    faults = validate(
        found, {"brand_new": 0, "max_stats_len": 3, "moe_config": {"backend": "TRTLLM"}}
    )
    assert [(row.where, row.rule) for row in faults] == [
        ("brand_new", "value-range"),
        ("max_stats_len", "unknown-key"),
        ("moe_config.backend", "unknown-value"),
    ]
    assert not list(validate(found, {"brand_new": 1, "moe_config": {"backend": "NEWEST"}}))


def test_text_that_the_engine_reads_as_a_choice_is_judged_with_a_warning(
    imported: Callable[[Mapping[str, Any], str], Release],
) -> None:
    """Its class takes any text; which words it knows stands in its code."""
    table = json.loads(json.dumps(release.load("1.2.1").table))
    paths = [{"type": "str"}, {"type": "str"}]
    table["types"]["TorchLlmArgs"]["fields"]["load_format"] = {"type": "either", "of": paths}
    found = imported(table, "1.2.1")
    assert not list(validate(found, {"load_format": "dummy"}))
    (fault,) = validate(found, {"load_format": "unheard-of"})
    assert (fault.rule, fault.severity) == ("unknown-value", "warning")


def test_an_engine_without_option_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the reference engine: its options are the table's own, so there is nothing to import."""
    install(tmp_path, release.load("1.2.1").table)
    (tmp_path / "tensorrt_llm/llmapi/llm_args.py").unlink()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BadFacts, match=r"has no engine to read: .*llm_args"):
        release_import.from_installed(sys.executable, "x", release.load("1.2.1"))


def test_a_python_without_the_engine_is_refused() -> None:
    with pytest.raises(BadFacts, match="No module named 'tensorrt_llm'"):
        release_import.from_installed(sys.executable, "x", release.load("1.2.1"))
    with pytest.raises(BadFacts, match="/no/such/python: cannot be asked"):
        release_import.from_installed("/no/such/python", "x", release.load("1.2.1"))


@by_table
def test_annotations_are_read(text: str, row: dict[str, Any] | None) -> None:
    assert annotated(text) == row


# Two ways in which releases have written their manifests.
ANNOTATED = {
    "int": {"annotation": "<class 'int'>", "kind": "value", "converter": "", "allowed_values": []},
    "enum": {"annotation": "Literal['CUTLASS', 'NEWEST']", "kind": "categorical", "converter": ""},
}
RECORDED = {
    "int": {"capture_policy": "int", "kind": "value"},
    "enum": {"capture_policy": "literal", "kind": "categorical"},
}


@pytest.mark.parametrize("words", [ANNOTATED, RECORDED])
def test_a_manifest_brings_a_table_up_to_date(words: dict[str, Any], tmp_path: Path) -> None:
    values = {"allowed_values": ["CUTLASS", "NEWEST"]}
    kinds = ["dsa", "rocket", "brand_new"]
    rows = [
        {"path": "max_batch_size", **words["int"]},
        {"path": "brand_new", **words["int"]},
        {"path": "new_config.depth", **words["int"]},
        {"path": "moe_config.backend", **words["enum"], **values},
        {"path": "kv_cache_config.max_tokens", **words["int"]},
        {"path": "sparse_attention_config.algorithm", **words["enum"], "allowed_values": kinds},
        {"path": "sparse_attention_config.index_topk", **words["int"]},
    ]
    path = tmp_path / "llm_args_golden_manifest.json"
    path.write_text(json.dumps({"TorchLlmArgs": rows}))
    table = release_import.from_manifest(path, "9.9.9", release.load("1.2.1"))
    release_import.write(table, tmp_path / "9.9.9.json")
    found = release.load("9.9.9.json", tmp_path)
    good = {
        "brand_new": 3,
        "new_config": {"depth": 1},
        "max_batch_size": 8,
        "tokenizer": "/text/is/carried",
        "moe_config": {"backend": "NEWEST"},
        "sparse_attention_config": {"algorithm": "brand_new", "index_topk": 8},
    }
    assert not list(validate(found, good))
    bad = {
        "brand_new": "x",
        "new_config": {"dept": 1},
        "moe_config": {"backend": "WIDEEP"},
        "sparse_attention_config": {"algorithm": "skip_softmax"},
    }
    errors = [row.where for row in validate(found, bad) if row.severity == "error"]
    assert errors == [
        "brand_new",
        "new_config.dept",
        "moe_config.backend",
        "sparse_attention_config.algorithm",
    ]
    (gone,) = validate(found, {"enable_chunked_prefill": True})
    assert (gone.rule, gone.severity) == ("uncertain-key", "warning")
    (unheard,) = validate(found, {"wholly_unheard_of_text": "x"})
    assert unheard.severity == "warning"
    assert found.carried_from["free-form options"] == "1.2.1"


@pytest.mark.parametrize("name", ["1.2.1", "main-00043967"])
def test_the_manifest_of_the_same_release_changes_no_option(name: str, tmp_path: Path) -> None:
    like = release.load(name)
    rows = []
    for option, (field, *_) in like.paths.items():
        plain = {"list", "int", "float", "bool", "enum", "either"}
        if "*" not in option and field["type"] in plain and not field.get("open"):
            values = [str(value) for value in field.get("values", ())]
            words = annotation(like.table, field)
            rows.append({"path": option, "annotation": words, "allowed_values": values})
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"TorchLlmArgs": rows}))
    table = release_import.from_manifest(path, "same", like)
    assert table["unions"] == like.table["unions"]
    for kind, record in table["types"].items():
        for key, row in record["fields"].items():
            before = like.table["types"][kind]["fields"][key]
            assert said(row) == said(before)
            # What the manifest names exists; in which kinds of a union it does not say.
            settled = {"existence": (None, "kind"), "value": (None,)}
            doubt = before.get("uncertain")
            assert row.get("uncertain") in (doubt, *settled.get(doubt, ()))


def whole_manifest(known: release.Release) -> list[dict[str, Any]]:
    """The rows of a release's whole manifest, as releases write them: every option of a type that
    they record, lists of allowed values that are only checked in code, and kinds of unions."""
    rows: list[dict[str, Any]] = []
    for option, (field, *_) in known.paths.items():
        if "*" in option or field["type"] not in {"list", "int", "float", "bool", "enum", "either"}:
            continue
        values = [str(value) for value in field.get("values", ())]
        row = {"path": option, "annotation": annotation(known.table, field), "converter": ""}
        if field.get("open"):
            row |= {"annotation": "<class 'str'>", "converter": "allowlist"}
        kind = "categorical" if values else "value"
        rows.append({**row, "allowed_values": values, "kind": kind})
    return rows


def wrongly_judged(rows: list[dict[str, Any]], found: release.Release) -> list[str]:
    """The paths of rows whose own values are refused, or any others accepted."""
    wrong = []
    for row in rows:
        path, values, words = row["path"], row["allowed_values"], row["annotation"]
        python_only = path == "speculative_config.decoding_type"  # some of its kinds
        good = (
            [] if python_only else [[values[0]] if words.startswith("List") else v for v in values]
        )
        closed = row["converter"] != "allowlist" and "bool" not in words
        bad = [{"not": "a value"}, ["no such"] if "List" in words else "no such"] if closed else []
        wrong += [f"{path}: {value}" for value in good if errors_at(found, path, value)]
        wrong += [f"{path}: {value}" for value in bad if not errors_at(found, path, value)]
    return wrong


def errors_at(found: release.Release, path: str, value: Any) -> list[Any]:
    options: dict[str, Any] = {}
    set_option(options, path, value)
    rows = [row for row in validate(found, options) if row.severity == "error"]
    return [row for row in rows if row.where.startswith(path)]


def test_a_value_of_any_kind_of_a_union_is_in_its_row(tmp_path: Path) -> None:
    """As manifests have it: the annotation is that of the first kind, the values are of all. What
    is only recorded adds values, and what the manifest names exists."""
    named: list[dict[str, Any]] = [
        {
            "path": "sparse_attention_config.algorithm",
            "annotation": "Literal['dsa']",
            "allowed_values": ["dsa", "rocket", "brand_new"],
        },
        {
            "path": "load_format",
            "annotation": "Union[str, engine.LoadFormat]",
            "converter": "allowlist",
            "allowed_values": ["auto", "brand_new"],
        },
        {"path": "sparse_attention_config.depth", "annotation": "Optional[int]"},
        {"path": "kv_cache_config.tokens_per_block", "annotation": "<class 'int'>"},
    ]
    rows = [{"converter": "", "allowed_values": [], **row} for row in named]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"TorchLlmArgs": rows}))
    for like in ("1.0.0", "1.1.0", "1.2.1"):
        found = release.checked(
            release_import.from_manifest(path, "whole", release.load(like)), path
        )
        assert wrongly_judged(rows, found) == []
        assert not list(validate(found, {"load_format": "DUMMY"}))
        assert not list(validate(found, {"kv_cache_config": {"tokens_per_block": 64}}))


@pytest.mark.parametrize("like", ["1.2.1", "1.3.0rc29"])
def test_a_whole_manifest_makes_the_table_of_its_release(like: str, tmp_path: Path) -> None:
    known = release.load("main-00043967")
    rows = whole_manifest(known)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"TorchLlmArgs": rows}))
    table = release_import.from_manifest(path, "whole", release.load(like))
    release_import.write(table, tmp_path / "whole.json")
    found = release.load("whole.json", tmp_path)
    wrong = []
    for row in rows:
        mine = found.paths.get(row["path"], ())
        values = {str(value) for field in mine for value in field.get("values", ())}
        closed = row["allowed_values"] and row["converter"] != "allowlist"
        if not mine or (closed and not values >= set(row["allowed_values"])):
            wrong.append(row["path"])
    assert not wrong
    # Nothing that the manifest leaves out is refused, and no value that it leaves out is accepted.
    for given in ({"max_batch_size": "many"}, {"moe_config": {"backend": "WIDEEP"}}):
        assert [row.severity for row in validate(found, given)] == ["error"]
    assert len(rows) > 300
    print(f"{len(rows)} rows over {like}: {len(found.paths)} options")


def test_a_file_that_is_no_manifest_is_refused(tmp_path: Path) -> None:
    like, path = release.load("1.2.1"), tmp_path / "manifest.json"
    with pytest.raises(BadInput, match="cannot be read: no such file"):
        release_import.from_manifest(path, "x", like)
    for text in ("[]", '{"TorchLlmArgs": 3}', '{"TorchLlmArgs": []}'):
        path.write_text(text)
        with pytest.raises(BadFacts, match="holds no list of TorchLlmArgs rows"):
            release_import.from_manifest(path, "x", like)
    with pytest.raises(BadInput, match="--name: '' is not a name of a release"):
        release_import.from_manifest(path, "", like)


@pytest.mark.parametrize(
    "row",
    [
        {},
        3,
        {"path": 5},
        {"path": ""},
        {"path": "a..b"},
        {"path": ".".join("a" * 50)},
        {"path": "a", "allowed_values": 5},
        {"path": "a", "allowed_values": [[]]},
        {"path": "a", "annotation": 5},
        {"path": "a", "capture_policy": []},
    ],
)
def test_a_row_that_is_none_is_named(row: object, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"TorchLlmArgs": [{"path": "a"}, row]}))
    with pytest.raises(BadFacts, match=r"TorchLlmArgs\.1 is not a row of a manifest"):
        release_import.from_manifest(path, "x", release.load("1.2.1"))


ANNOTATIONS = [
    *("Annotated[int, Ge(ge=1.)]", "Annotated[]", "Optional[", "Literal[]", "list[]", "Union[,]"),
    *(
        "Optional[" * 3000,
        "Dict[str, int]",
        "Annotated[float, Gt(gt=.5)]",
        "]",
        "[",
        "",
        "x" * 9999,
    ),
]
POLICIES = [*("int|none", "literal", "enum|none", "allowlist", "no_such", "list[", "|", "", "none")]


def test_no_manifest_stops_its_reader(tmp_path: Path) -> None:
    """Rows of any words make a table that can be used, or are refused."""
    random_ = random.Random(7)
    like = release.load("1.2.1")
    options_known = [*like.paths, "brand_new", "new.block.depth", "moe_config.new", "model.x"]
    keys: dict[str, list[Any]] = {
        "path": [option for option in options_known if "*" not in option],
        "annotation": [*ANNOTATIONS, None],
        "capture_policy": [*POLICIES, None],
        "converter": ["", "allowlist", None],
        "allowed_values": [[], ["a", 1], None],
    }
    path = tmp_path / "manifest.json"
    usable = refused = 0
    for turn in range(20):
        rows = [
            {"path": random_.choice(keys["path"])}
            | {key: random_.choice(keys[key]) for key in random_.sample([*keys], 3)}
            for _ in range(8)
        ]
        path.write_text(json.dumps({"TorchLlmArgs": rows}))
        try:
            table = release_import.from_manifest(path, "9.9.9", like)
            release_import.write(table, tmp_path / f"{turn}.json")
        except BadFacts:
            refused += 1
            continue
        found = release.load(f"{turn}.json", tmp_path)
        assert list(validate(found, {"no_such_option": 1}))
        list(validate(found, {"moe_config": {"backend": "x"}, "brand_new": [1]}))
        usable += 1
    assert usable and refused


def test_carried_names_of_what_the_engine_lacks_are_left_out() -> None:
    table = json.loads(json.dumps(release.load("1.2.1").table))
    flag = next(flag for flag in table["serve"]["flags"] if "yaml_path" in flag)
    flag["yaml_path"] = "kv_cache_config.gone"
    table["aliases"]["sleep"] = "gone"
    needed = table["serve"]["flags_by_architecture"][0]
    table["serve"]["flags"] = [f for f in table["serve"]["flags"] if f["name"] != needed["flag"]]
    found = Release(release_import.without_dead_names(table), Path())
    (same,) = (each for each in found.serve_flags if each.name == flag["name"])
    assert same.yaml_path is None
    assert "sleep" not in found.aliases and "sampler" in found.aliases
    assert not found.flags_for(needed["architecture"])


def test_a_class_that_takes_any_key_has_no_unknown_ones(
    imported: Callable[[Mapping[str, Any], str], Release],
) -> None:
    table = json.loads(json.dumps(release.load("1.2.1").table))
    table["types"]["KvCacheConfig"]["open_keys"] = ["*"]
    found = imported(table, "1.2.1")
    given = {"kv_cache_config": {"wholly_unheard_of": 1}, "moe_config": {"wholly_unheard_of": 1}}
    assert [(row.where, row.severity) for row in validate(found, given)] == [
        ("kv_cache_config.wholly_unheard_of", "warning"),
        ("moe_config.wholly_unheard_of", "error"),
    ]


def test_rules_of_the_other_release_hold_as_far_as_the_engine_has_their_options(
    imported: Callable[[Mapping[str, Any], str], Release],
) -> None:
    table = json.loads(json.dumps(release.load("1.2.1").table))
    mtp = table["types"]["MTPDecodingConfig"]["fields"]
    mtp["max_draft_tokens"] = mtp.pop("num_nextn_predict_layers")
    found = imported(table, "1.2.1")
    given = {
        "max_batch_size": 16,
        "max_num_tokens": 8,
        "speculative_config": {"decoding_type": "MTP", "max_draft_len": 3},
    }
    here = {row.rule.id: row.message for row in violations(given, RuleContext(found))}
    there = {
        row.rule.id: row.message for row in violations(given, RuleContext(release.load("1.2.1")))
    }
    assert "mtp-len-old" in there and "mtp-len-old" not in here
    assert here["batch-gt-tokens"] == f"{there['batch-gt-tokens']} (a rule of 1.2.1, taken over)"
    assert "size-above-zero" in {rule.id for rule in of_release(found)}


@pytest.mark.parametrize(
    ("kind", "option", "rule"),
    [
        ("KvCacheConfig", "tokens_per_block", "flashmla"),  # what is tested
        ("TorchLlmArgs", "max_num_tokens", "mla-chunk-sm"),  # what the remedy names
    ],
)
def test_a_carried_rule_speaks_of_no_option_that_is_gone(kind: str, option: str, rule: str) -> None:
    table = json.loads(json.dumps(release.load("1.2.1").table)) | {"carried_from": {"rules": "x"}}
    assert rule in {row.id for row in of_release(Release(table, Path()))}
    del table["types"][kind]["fields"][option]
    assert rule not in {row.id for row in of_release(Release(table, Path()))}


def builder(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "builder", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_table_is_imported_listed_and_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", release.load("1.2.1").table)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    table, bundle = tmp_path / "mine.json", tmp_path / "bundle"
    done = builder("release", "import", "--name", "mine", "--like", "1.2.1", "-o", str(table))
    assert done.returncode == 0, done.stderr
    assert "inherited from 1.2.1: rules" in done.stderr
    again = builder("release", "import", "--name", "mine", "--like", "1.2.1", "-o", str(table))
    assert again.returncode == 2 and "mine.json: cannot be written: file exists" in again.stderr

    rows = json.loads(builder("release", "list", "--json", str(table)).stdout)
    shipped = [(row.engine.name, row.name) for row in release.of_all_engines()]
    assert [(row["engine"], row["name"]) for row in rows] == [*shipped, ("tensorrt_llm", "mine")]
    assert rows[-1]["carried_from"]["moe"] == "1.2.1"

    chosen = f"engine.release={table}"
    done = builder("render", "llama-tiny", "--set", chosen, "-o", str(bundle))
    assert done.returncode == 0, done.stderr
    assert (bundle / "release.json").read_bytes() == table.read_bytes()
    launch = json.loads((bundle / "launch.json").read_text())
    assert launch["engine"]["release"] == "release.json"
    again = builder("render", str(bundle / "deployment.yaml"), "-o", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr


def test_an_unknown_release_to_be_like_is_refused(tmp_path: Path) -> None:
    done = builder(
        "release", "import", "--name", "x", "--like", "1.3", "-o", str(tmp_path / "x.json")
    )
    assert done.returncode == 2
    assert "release 1.3 has no option table to inherit from; name 1.3.0rc29" in done.stderr
    assert not (tmp_path / "x.json").exists()
