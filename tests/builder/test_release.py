"""Option tables: what each release is known to accept and to do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.cli import releases
from builder.documents import DATA
from builder.errors import BadFacts, BadInput, ToolkitError
from builder.facts import data_file, engines, hardware, release
from builder.facts.release import published, support
from builder.facts.release.table import RELEASE_TABLE, lacking
from builder.facts.release.version import is_version, oldest_first
from builder.rules import options
from builder.rules.constraints import violations
from builder.rules.context import RuleContext
from builder.rules.flags import flag_traps
from builder.rules.validation import validate
from builder.schema import build
from tests.conftest import Run
from tests.tables import by_table

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


def test_typed_flags_win_over_the_file_from_1_3_on() -> None:
    winners = {name: release.load(name).precedence for name in release.known()}
    later = {name for name in winners if name.startswith(("1.3", "main"))}
    assert {name for name, who in winners.items() if who == "cli_when_typed"} == later


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


@pytest.mark.parametrize("name", ["0.20.0", "main-ffffffff", "newest", ""])
def test_a_release_older_than_all_tables_and_an_unknown_name_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=rf"release {name} .* known: 1\.0\.0, 1\.1\.0, 1\.2\.1, 1"):
        release.load(name)


@by_table
def test_a_release_without_a_table_stands_between_its_neighbours(
    name: str, names: list[str], words: str
) -> None:
    found = release.load(name)
    assert found.name == name and [row.name for row in found.judges] == names
    assert found.statement.startswith(name) and words in found.statement
    assert "has no option table: it is checked against" in found.statement
    is_known = name not in ("1.3.0rc24.post1", "1.3.0")
    assert ("is not a known release" in found.statement) != is_known
    assert not list(lacking(found.engine, found.paths, found.default))


@by_table
def test_a_release_may_be_written_as_a_tag(engine: str, written: str, meant: str) -> None:
    """In a deployment, in a bundle and for `check`, it has one name."""
    record = engines.load(engine)
    assert release.load(written, engine=record).name == meant
    settings = [f"engine.name={engine}", f"engine.release='{written}'"]
    targets = "targets=[trtllm_serve]" if record.default else "targets=[vllm_serve]"
    planned = pipeline.plan("llama-tiny", [*settings, targets])
    assert planned.plan.deployment.engine.release == meant
    assert planned.plan.facts.release.name == meant


@by_table
def test_a_release_that_nobody_published_is_refused_unless_it_is_assumed(
    engine: str, name: str, remedy: str
) -> None:
    server = "trtllm_serve" if engine == "tensorrt_llm" else "vllm_serve"
    settings = [f"engine.name={engine}", f"engine.release={name}", f"targets=[{server}]"]
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", settings)
    (found,) = caught.value.diagnostics
    assert (found.path, found.rule) == ("engine.release", published.RULE)
    assert "is not a known release" in found.message and found.fix.startswith(remedy)
    assert "--assume-release" in found.fix
    planned = pipeline.plan("llama-tiny", [*settings, "engine.assume_release=true"])
    assert any("is not a known release" in row.message for row in planned.warnings)


# Beginnings of releases, as YAML reads them or as text -> what is asked.
BEGINNINGS = [
    ("tensorrt_llm", "1.2", "is 1.2.1 meant?"),
    ("tensorrt_llm", "'1.2'", "is 1.2.1 meant?"),
    ("tensorrt_llm", "v1.2", "is 1.2.1 meant?"),
    ("tensorrt_llm", "1", "is 1.2.1 meant?"),
    ("tensorrt_llm", "1.0", "is 1.0.0 meant?"),
    ("tensorrt_llm", "1.3", "is 1.3.0rc29 meant?"),
    ("tensorrt_llm", "1.4", "is 1.4.0rc1 meant?"),
    ("vllm", "0.20", "is 0.20.0 meant?"),  # a number to YAML: 0.2
    ("vllm", "0.33", "is 0.33.0 meant?"),
]


@pytest.mark.parametrize(("engine", "written", "question"), BEGINNINGS)
@pytest.mark.parametrize("assume", [(), ("engine.assume_release=true",)])
def test_the_beginning_of_a_release_asks_which_is_meant(
    engine: str, written: str, question: str, assume: tuple[str, ...]
) -> None:
    """It is no release that could be assumed. Every one that is offered can be planned for."""
    server = "trtllm_serve" if engine == "tensorrt_llm" else "vllm_serve"
    settings = [f"engine.name={engine}", f"targets=[{server}]", *assume]
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [*settings, f"engine.release={written}"])
    (found,) = caught.value.diagnostics
    assert found.path == "engine.release" and found.fix == question
    assert release.load(question.split()[1], engine=engines.load(engine)).judges


@pytest.mark.parametrize("engine", engines.names())
def test_a_published_release_goes_on_without_being_assumed(engine: str) -> None:
    """Whether or not it has a table, if it is not older than all of them."""
    record = engines.load(engine)
    tables = release.known(record)
    for name in published.names(record):
        if oldest_first(name) >= oldest_first(tables[0]):
            found = release.load_published(name, Path(), record, assume=False)
            assert found.name == name and found.paths
    numbered = [name for name in tables if is_version(name)]
    assert [name for name in numbered if not published.day(name, record)] == []


@by_table
def test_a_list_of_releases_with_a_slip_is_refused(
    edit: tuple[str, str], words: str, tmp_path: Path
) -> None:
    text = (DATA / "published_releases/tensorrt_llm.yaml").read_text()
    (tmp_path / "list.yaml").write_text(text.replace(*edit, 1))
    found = data_file.validate(tmp_path / "list.yaml", published.PublishedReleases)
    assert any(words in str(row) for row in found), found


def test_check_takes_releases_as_a_deployment_does(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("kv_cache_config: {enable_block_reuse: true}\n")
    given = "name: x\ncheckpoint: llama-tiny\nhardware: {gpu: h100, num_gpus: 1}\n"
    given += "engine: {release: 9.9.9}\nworkload: {isl: 8, osl: 8, concurrency: 1}\n"
    (tmp_path / "deployment.yaml").write_text(given + "targets: [trtllm_serve]\n")
    for words, code, said in (
        (("config.yaml", "--release", "v1.2.1"), 0, "release 1.2.1"),
        (("config.yaml", "--release", "1.3.0rc17"), 0, "checked against its neighbours"),
        (("config.yaml", "--release", "1.2"), 2, "--release: 1.2 is not a release"),
        (("config.yaml", "--release", "9.9.9"), 2, "--release: 9.9.9 is not a known release"),
        (("config.yaml", "--release", "9.9.9", "--assume-release"), 0, "is not a known release"),
        (("deployment.yaml",), 2, "deployment.yaml:4:10: error[unpublished-release]"),
        (("deployment.yaml", "--assume-release"), 0, "warning[release-without-table]"),
    ):
        done = builder("check", *words)
        assert done.returncode == code and said in done.stdout + done.stderr, words


def test_an_assumed_release_stays_assumed_in_its_bundle(builder: Run, tmp_path: Path) -> None:
    """So that the bundle can be verified and planned again."""
    words = ("llama-tiny", "--set", "engine.release=v9.9.9", "--target", "handoff")
    assert builder("render", *words, "-o", "b").returncode == 2
    assert not (tmp_path / "b").exists()
    done = builder("render", *words, "--assume-release", "-o", "b")
    assert done.returncode == 0, done.stderr
    engine = yaml.safe_load((tmp_path / "b/deployment.yaml").read_text())["engine"]
    assert engine == {"name": "tensorrt_llm", "release": "9.9.9", "assume_release": True}
    assert builder("verify", "b").returncode == 0
    assert builder("plan", "b/deployment.yaml").returncode == 0


def test_the_table_between_two_holds_what_both_accept() -> None:
    found = release.load("1.3.0rc17")
    older, newer = found.judges
    assert 200 < len(found.paths) < len(newer.paths) and older.name == "1.2.1"
    backends = found.paths["moe_config.backend"][0]["values"]
    assert "WIDEEP" in backends and "MARLIN" not in backends
    assert found.default("max_batch_size") == 2048
    assert found.default("moe_config.backend") is None  # the two differ
    assert found.paths["cuda_graph_config.max_batch_size"]  # a record before, a union now


@pytest.mark.parametrize("name", ["1.3.0rc17", "1.2.0rc6", "1.3.0rc25"])
def test_what_a_table_between_two_accepts_both_accept(name: str) -> None:
    found = release.load(name)
    for path, rows in found.paths.items():
        for table in found.judges:
            above = [path.rsplit(".", depth)[0] for depth in range(path.count(".") + 1)]
            assert any(map(table.has, above[:-1] or above)), (path, table.name)
            theirs = [row for row in table.paths.get(path, ()) if row["type"] == "enum"]
            if rows[0]["type"] == "enum" and theirs and not theirs[0].get("open"):
                able = {str(value).lower() for row in theirs for value in row["values"]}
                assert {str(value).lower() for value in rows[0]["values"]} <= able, path


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
        "rules: 3 is not a list; write [ITEM, ...]",
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
    for turn in range(40):
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
    assert 10 < read < 30


def test_moe_kernels_follow_quantization_and_gpu_generation() -> None:
    table = release.load("1.2.1")
    blackwell, hopper, gpt_oss = (
        [row["backend"] for row in support.moe_backends(table, quant_algo, sm)]
        for quant_algo, sm in (("NVFP4", 100), ("FP8_BLOCK_SCALES", 90), ("W4A16_MXFP4", 90))
    )
    assert blackwell == ["TRTLLM", "CUTLASS", "CUTEDSL", "WIDEEP"]
    assert hopper == ["CUTLASS", "WIDEEP"]
    assert gpt_oss == ["TRITON", "CUTLASS"]
    assert support.moe_backends(table, "NVFP4", 90) == []


# Options by path in a table of changes; how many more its newer neighbour has.
@pytest.mark.parametrize(
    ("name", "options", "flags"),
    [("1.3.0rc23", 393, 51), ("1.3.0rc24", 424, 51), ("1.3.0rc29", 446, 51)],
)
def test_a_table_of_changes_has_as_many_options_as_its_release(
    name: str, options: int, flags: int
) -> None:
    table = release.load(name)
    assert (len(table.paths), len(table.serve_flags)) == (options, flags)
    assert not list(build(RELEASE_TABLE, table.table)[1])
    assert table.name == name and "nearest" not in table.table


@by_table
def test_a_wrong_change_is_named(text: str, changed: str, fault: str, tmp_path: Path) -> None:
    source = (release.load("1.3.0rc24").path).read_text()
    assert text in source
    file = tmp_path / "1.3.0rc24.yaml"
    file.write_text(source.replace(text, changed, 1))
    found = data_file.validate(file, release.CHANGED_TABLE)
    assert any(fault in f"{row.message} {row.fix}" and row.location.line for row in found), found
