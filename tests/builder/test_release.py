"""Option tables: what each release is known to accept and to do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.cli import releases
from builder.errors import BadFacts, BadInput, ToolkitError
from builder.facts import hardware, release
from builder.facts.release import support
from builder.rules import options
from builder.rules.constraints import violations
from builder.rules.context import RuleContext
from builder.rules.flags import flag_traps
from builder.rules.validation import validate
from tests.conftest import ABSENT, ROOT

SPECIFICATION = ROOT.parent / "shared" / "trtllm-options"

# The specification's word for a type, and ours.
KINDS = {"model": "record", "dict": "mapping", "anyof": "either"}


def fields(table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field of a table, nested ones too."""

    def walk(name: str, field: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield name, field
        for inner in field["of"] if field["type"] == "either" else ():
            yield from walk(name, inner)
        if "items" in field:
            yield from walk(name, field["items"])

    for kind, record in table["types"].items():
        for name, field in record["fields"].items():
            yield from walk(f"{kind}.{name}", field)


@pytest.mark.parametrize("name", release.known())
def test_every_type_and_union_of_a_table_resolves(name: str) -> None:
    table = release.load(name).table
    for _, field in fields(table):
        if field["type"] == "record":
            assert field["of"] in table["types"]
        if field["type"] == "union":
            assert set(table["unions"][field["of"]]["types"].values()) <= set(table["types"])


@pytest.mark.parametrize("name", release.known())
def test_whatever_is_doubtful_says_what_is_doubted_and_why(name: str) -> None:
    for where, field in fields(release.load(name).table):
        doubt = field.get("uncertain")
        assert doubt in (None, "existence", "value"), where
        assert (doubt is None) == ("confidence" not in field), where


@pytest.mark.parametrize("name", release.known())
def test_what_replaces_a_deprecated_option_is_an_option(name: str) -> None:
    table = release.load(name)
    for where, field in fields(table.table):
        assert field.get("replaced_by", "model") in table.paths, where
    assert set(table.aliases.values()) <= set(table.paths)


@pytest.mark.parametrize("name", release.known())
def test_the_facts_that_others_read_are_there(name: str) -> None:
    table = release.load(name)
    assert table.sources and table.confidence and table.rule_ids and table.endpoints
    assert ("GET", "/health") in table.endpoints
    assert table.table["serve"]["precedence"]["confidence"] and table.metrics_confidence
    assert "disaggregated" in table.subcommands
    assert table.moe_engine_default in table.paths["moe_config.backend"][0]["values"]
    assert set(table.moe_load_balancer_backends) <= set(
        table.paths["moe_config.backend"][0]["values"]
    )
    assert table.cuda_graphs_engine_default > 0
    assert table.mtp_kv_layers in ("per_draft_token", "one")
    assert all(name.isupper() and source for name, source in table.environment.items())
    for path in table.injected:
        assert path in table.paths
    for flag in table.serve_flags:
        assert flag.yaml_path is None or flag.yaml_path in table.paths


def test_flags_win_over_the_file_only_in_development_tables() -> None:
    winners = {name: release.load(name).precedence for name in release.known()}
    assert winners.pop("main-00043967") == "cli_when_typed"
    assert set(winners.values()) == {"yaml"}


def test_metrics_of_1_2_1_have_no_prefix_that_anyone_verified() -> None:
    found = release.load("1.2.1")
    assert found.metric_prefix == "" and "time_to_first_token_seconds" in found.metric_names
    assert "unverified" in found.table["metrics"]["prefix_confidence"]


def test_the_draft_length_is_spelled_by_release() -> None:
    spelled = [
        release.load(name).option_path("mtp_draft_tokens") for name in ("1.2.1", "main-00043967")
    ]
    assert spelled == [
        "speculative_config.num_nextn_predict_layers",
        "speculative_config.max_draft_len",
    ]


def test_a_default_is_known_by_path() -> None:
    table = release.load("1.2.1")
    assert table.default("max_batch_size") == 2048
    assert table.default("kv_cache_config.tokens_per_block") == 32
    assert table.default("speculative_config.num_nextn_predict_layers") == 1
    assert table.default("speculative_config.eagle3_layers_to_capture") is None
    assert table.default("no.such.option") is None


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"1\.2\.2 .* known: 1\.0\.0, 1\.1\.0, 1\.2\.1, main"):
        release.load("1.2.2")


def test_a_release_may_be_the_path_of_a_table(tmp_path: Path) -> None:
    table = {**release.load("1.2.1").table, "release": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(table))
    found = release.load("./mine.json", tmp_path)
    assert found.name == "mine" and not found.ships
    assert release.load("1.2.1").ships


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises((BadInput, BadFacts), match=r"mine\.json"):
        release.load(str(tmp_path / "mine.json"))
    with pytest.raises(BadInput, match=r"absent\.json: cannot be read: no such file"):
        release.load("absent.json", tmp_path)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The table of 1.2.1 after a change."""
    table: dict[str, Any] = json.loads(json.dumps(release.load("1.2.1").table))
    change(table)
    return table


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "nothing but its format": (
        lambda table: [table.pop(key) for key in [*table][1:]],
        "release: is missing",
    ),
    "no type for its root": (
        lambda table: table.update(root="x"),
        "root: x is not among the types",
    ),
    "rules of another type": (
        lambda table: table.update(rules=3),
        "rules: is 3; a list is expected",
    ),
    "an option without a type": (
        lambda table: table["types"]["KvCacheConfig"]["fields"].update(dtype={}),
        "types.KvCacheConfig.fields.dtype.type: is not a type",
    ),
    "a record of nothing": (
        lambda table: table["types"].pop("MoeConfig"),
        "of: MoeConfig is not among the types",
    ),
    "no flag for the option file": (
        lambda table: table["serve"]["flags"].clear(),
        "serve.flags: has no extra_llm_api_options",
    ),
    "no default that planning computes with": (
        lambda table: table["types"]["TorchLlmArgs"]["fields"].pop("max_num_tokens"),
        "max_num_tokens: has no default that is a number",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_a_table_lacks_is_named_when_it_is_read(case: str, tmp_path: Path) -> None:
    change, expected = FAULTS[case]
    (tmp_path / "mine.json").write_text(json.dumps(changed(change)))
    with pytest.raises(BadFacts, match=re.escape(expected)):
        release.load("mine.json", tmp_path)


JUNK: list[Any] = [None, True, 0, -1, 2.5, "", "x", [], {}, [[]], [None], {"": None}, {"a": {}}]


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*above, key)
        if isinstance(item, dict | list):
            yield from places(item, (*above, key))


def test_no_table_that_is_read_stops_what_reads_it(tmp_path: Path) -> None:
    """A table with anything anywhere is refused, or can be listed, planned and checked with."""
    random_ = random.Random(11)
    source = json.dumps(release.load("1.2.1").table)
    every = list(places(json.loads(source)))
    shallow = [place for place in every if len(place) <= 4]
    given = {
        "kv_cache_config": {"dtype": "x", "typo": 1},
        "speculative_config": {"decoding_type": "MTP", "max_draft_len": "1.0"},
        "moe_config": {"backend": "TRTLLM"},
    }
    read = 0
    for turn in range(250):
        table = json.loads(source)
        *parents, last = random_.choice(shallow if turn % 2 else every)
        inner = table
        for key in parents:
            inner = inner[key]
        if turn % 3 == 0:
            del inner[last]
        else:
            inner[last] = random_.choice(JUNK)
        (tmp_path / "mine.json").write_text(json.dumps(table))
        try:
            found = release.load("mine.json", tmp_path)
        except ToolkitError:
            continue
        read += 1
        releases.releases_table(releases.release_rows([found]))
        list(validate(found, given))
        options.normalise(found, given)
        context = RuleContext(found, gpu=hardware.load("gb200"), precision="NVFP4")
        list(violations(given, context))
        list(flag_traps({"--tp_size": "2", "--x": "1"}, given, found))
        assert (
            found.config_flag
            and found.precedence
            and found.metrics_confidence
            and found.subcommands
        )
        for row in found.flags_for("DeepseekV32ForCausalLM"):
            assert found.spelling(row["flag"])
    assert 20 < read < 240


def test_moe_kernels_follow_quantization_and_gpu_generation() -> None:
    table = release.load("1.2.1")
    blackwell, hopper, gpt_oss = (
        [row["backend"] for row in support.moe_backends(table, quant_algo, sm)]
        for quant_algo, sm in (("NVFP4", 100), ("FP8_BLOCK_SCALES", 90), ("W4A16_MXFP4", 90))
    )
    assert blackwell == ["TRTLLM", "CUTLASS", "CUTEDSL"]
    assert hopper == ["CUTLASS", "WIDEEP"]
    assert gpt_oss == ["TRITON", "CUTLASS"]
    assert support.moe_backends(table, "NVFP4", 90) == []


def specified(field: Mapping[str, Any]) -> dict[str, Any]:
    """A field of the specification in the words of our tables."""
    row = {key: field[key] for key in COMPARED if key in field}
    kind = row["type"] = KINDS.get(field["type"], field["type"])
    if "enum" in field:
        row["values"] = field["enum"]
    if kind == "record":
        row["of"] = field["model"]
    elif kind == "union":
        row["of"] = field["union"]
    elif kind == "mapping":
        row["items"] = specified(field.get("values", {"type": "any"}))
    elif kind == "list":
        row["items"] = specified(field["items"])
    return row


COMPARED = (
    *("type", "default", "nullable", "required", "ge", "gt", "le", "lt", "min_length", "alias"),
    *("status", "confidence", "internal", "default_factory"),
)

# Where our tables say more than the specification's rows, or spell a shape that its rows spell
# in several ways; each with what was read.
DIFFERENT = {
    # A mapping, or the path of a file that holds it.
    "MoeConfig.load_balancer": {"type", "of"},
    # Alternatives are written as full rows.
    "EagleDecodingConfig.eagle_choices": {"items"},
    "Eagle3DecodingConfig.eagle_choices": {"items"},
    # Any torch dtype by name.
    "KvCacheConfig.dtype": {"values"},
    # The values of the mapping were not read.
    "MultimodalConfig.encoder_cuda_graph": {"items", "confidence"},
    # The server command takes the mapping and builds the object itself.
    "TorchLlmArgs.build_config": {"type", "items"},
}


@pytest.mark.skipif(not SPECIFICATION.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("name", release.known())
def test_nothing_of_the_specification_is_lost_or_invented(name: str) -> None:
    wanted = json.loads((SPECIFICATION / f"{name}.json").read_text())
    table = release.load(name).table
    ours = {f"{kind}.{key}" for kind, row in table["types"].items() for key in row["fields"]}
    theirs = {f"{kind}.{key}" for kind, row in wanted["models"].items() for key in row["fields"]}
    assert ours == theirs
    compared = 0
    for kind, record in wanted["models"].items():
        for key, field in record["fields"].items():
            mine = table["types"][kind]["fields"][key]
            for part, value in specified(field).items():
                if part in DIFFERENT.get(f"{kind}.{key}", ()):
                    continue
                found = specified_part(mine, part)
                assert found == value, f"{kind}.{key}.{part}"
                compared += 1
    assert {
        union: (row["discriminator"], row["map"]) for union, row in wanted["unions"].items()
    } == {union: (row["discriminator"], row["types"]) for union, row in table["unions"].items()}
    assert {row["id"] for row in wanted["rules"]} <= set(release.load(name).rule_ids)
    print(f"{name}: {len(ours)} options in {len(table['types'])} types, {compared} facts compared")


def specified_part(field: Mapping[str, Any], part: str) -> Any:
    """A part of our row, reduced to what the specification's rows say."""
    value = field.get(part)
    if part == "items" and isinstance(value, Mapping):
        return {key: value[key] for key in value if key in (*COMPARED, "values", "of", "items")}
    return value


@pytest.mark.skipif(not SPECIFICATION.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("name", release.known())
def test_flags_and_interfaces_are_those_of_the_specification(name: str) -> None:
    wanted = json.loads((SPECIFICATION / f"{name}.json").read_text())
    table = release.load(name).table
    for key, row in (
        ("precedence", table["serve"]["precedence"]),
        ("endpoints", table["endpoints"]),
        ("prometheus_metrics", table["metrics"]),
        ("support_matrix", table.get("support_matrix")),
    ):
        assert wanted.get(key) == row, key
    commands = {"serve": table["serve"]["flags"], **table["subcommands"]}
    theirs = wanted["cli"]["subcommands"]
    assert set(commands) == set(theirs)
    for command, flags in commands.items():
        assert [row["name"] for row in flags] == [row["name"] for row in theirs[command]]
        for mine, other in zip(flags, theirs[command], strict=True):
            for part in ("flags", "type", "default", "positional", "multiple", "yaml_path"):
                assert mine.get(part) == other.get(part), (command, mine["name"], part)
            assert mine.get("values", []) == other.get("enum", []), (command, mine["name"])
    assert wanted["cli"]["launch"] == table["llmapi_launch"]
    assert wanted["cli"]["serve_injected"] == table["serve"]["injected"]
    tags = wanted["triton_llmapi"]["containers"]
    assert set(table["containers"]["triton"]) == {tag for tag in tags if tags[tag] == name}
