"""Cross-field rules: options that agree with each other, the model, the GPU and the workload."""

from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.diagnostics import Diagnostic
from builder.documents import DATA, load_yaml
from builder.facts import checkpoint, data_file, engines, hardware, release
from builder.facts.architecture import architectures
from builder.facts.checkpoint import gather
from builder.facts.quantization import Quantization
from builder.facts.release import Release, support
from builder.rules import constraints
from builder.rules.constraints import disagreements, violations
from builder.rules.context import RuleContext
from builder.rules.flags import flag_traps, with_flags
from builder.rules.rule_inputs import MISSING, RuleInputs, words
from builder.rules.validation import validate
from tests.conftest import ABSENT, ROOT
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

HERE = Path(__file__).parent
# The cases of another engine stand in a file of its own.
CASES = load_yaml((HERE / "rule_cases.yaml").read_text())
OTHER_CASES = {
    name: load_yaml((HERE / f"rule_cases_{name}.yaml").read_text())
    for name in engines.names()
    if not engines.load(name).default
}
CASES += [
    {**case, "context": {"engine": name, **case.get("context", {})}}
    for name, cases in OTHER_CASES.items()
    for case in cases
]
CORPUS = ROOT.parent / "shared" / "corpus" / "engine-configs.json"

MAIN = [name for name in release.known() if not name[0].isdigit()][-1]
RULES = DATA / engines.default().rules
ALL_RULES = constraints.load(engines.default())
OPTION_RULES = ALL_RULES.rules


def context(facts: Mapping[str, Any]) -> RuleContext:
    """The context that a case of `rule_cases.yaml` describes."""
    known = dict(facts)
    engine = engines.load(known.pop("engine", engines.default().name))
    name = known.pop("release", "1.2.1" if engine.default else release.known(engine)[-1])
    gpu = hardware.load(known.pop("gpu", "h200")) if "gpu" in known or "sm" in known else None
    if gpu and "sm" in known:
        gpu = replace(gpu, name="another GPU", sm=replace(gpu.sm, value=known.pop("sm")))
    if "architecture" in known:
        model = known["architecture"]  # one of another release's support matrix is like Llama
        like = architectures().get(model, architectures()["LlamaForCausalLM"])
        known["architecture"] = replace(like, name=model)
    table = release.load(MAIN if name == "main" else name, engine=engine)
    if "checkpoint" in known:
        model = gather(known.pop("checkpoint"))
        if "quantization" in known:
            model = replace(model, quantization=Quantization(**known.pop("quantization")))
        return RuleContext.of(table, model, gpu=gpu, **known)
    return RuleContext(table, gpu=gpu, **known)


def pipeline_context() -> RuleContext:
    """The context of a whole deployment."""
    planned = pipeline.plan("deepseek-v3.2-nvfp4-gb200").plan
    return planned.facts.rule_context(planned.deployment)


def where_by_rule(found: Iterable[Diagnostic]) -> dict[str, str]:
    return {problem.rule: problem.where for problem in found}


Reported = list[tuple[Mapping[str, Any], list[Diagnostic]]]


@pytest.fixture(scope="module")
def reported() -> Reported:
    """Each case, and what is reported of the options that break its rule."""
    found: Reported = []
    for case in CASES:
        found.append((case, list(violations(case["breaks"], context(case.get("context", {}))))))
    return found


def test_a_broken_rule_is_reported_at_its_path(reported: Reported) -> None:
    for case, found in reported:
        assert where_by_rule(found).get(case["rule"]) == case["where"], case


def test_a_kept_rule_is_not_reported() -> None:
    for case in CASES:
        facts = {**case.get("context", {}), **case.get("holds_in", {})}
        if "gpu" in case.get("holds_in", {}):
            facts.pop("sm", None)
        assert case["rule"] not in where_by_rule(violations(case["holds"], context(facts))), case


def test_every_row_of_the_rules_has_a_case_that_breaks_it() -> None:
    left = {
        (name, rule.id): rule
        for name in engines.names()
        for rule in constraints.load(engines.load(name)).rules
    }
    for case in CASES:
        inputs = RuleInputs(case["breaks"], context(case.get("context", {})))
        table = inputs.context.release
        for (engine, name), rule in list(left.items()):
            listed = rule.everywhere or name in table.rule_ids
            if table.engine.name == engine and listed and rule.broken(inputs):
                del left[engine, name]
    assert not left


def test_a_problem_says_numbers_and_remedy_in_one_line(reported: Reported) -> None:
    for _, found in reported:
        for problem in found:
            text = str(problem)
            assert problem.message and problem.fix, text
            assert "\n" not in text and not re.search(r"[{}]|\bMISSING\b|object at", text), text


def test_the_rules_that_can_blame_a_path_say_all_that_is_said_of_it(reported: Reported) -> None:
    for case, every in reported:
        for path in {row.where for row in every}:
            few = violations(case["breaks"], context(case.get("context", {})), blamed=path)
            here = [row for row in every if row.where == path]
            assert [row for row in few if row.where == path] == here, case


def test_every_rule_that_a_release_lists_is_defined() -> None:
    defined = {rule.id for rule in constraints.every(engines.default())} | set(
        ALL_RULES.option_table
    )
    defined |= set(ALL_RULES.engine_conduct)
    for name in release.known():
        assert set(release.load(name).rule_ids) <= defined


def test_a_rule_is_of_all_releases_or_listed_by_some() -> None:
    listed = {rule for name in release.known() for rule in release.load(name).rule_ids}
    for rule in (*OPTION_RULES, *ALL_RULES.agreements):
        assert rule.everywhere is (rule.id not in listed), rule.id


def test_every_word_of_a_rule_is_a_fact_or_an_option() -> None:
    assert data_file.validate(RULES, constraints.RulesFile) == []


def test_no_word_is_also_the_name_of_an_option() -> None:
    options = {name for known in release.known() for name in release.load(known).top_level}
    assert words().isdisjoint(options)


@by_table
def test_a_mistake_in_the_rules_is_refused_with_line_and_nearest_name(
    line: str, changed: str, fault: str, tmp_path: Path
) -> None:
    text = RULES.read_text()
    before, found, after = text.partition(line)
    assert found, line
    path = tmp_path / "rules.yaml"
    path.write_text(before + changed + after)
    faults = data_file.validate(path, constraints.RulesFile)
    number = before.count("\n") + 1
    assert any(fault in str(row) for row in faults), faults
    assert any(abs(int(row.where.split(":")[1]) - number) <= 7 for row in faults), faults


def test_the_code_knows_no_release_by_name() -> None:
    for path in (ROOT / "builder" / "rules").glob("*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\d+\.\d+\.\d+", code), path.name


def test_a_checkpoint_gives_its_facts() -> None:
    facts = checkpoint.gather("nvidia/DeepSeek-V3.2-NVFP4")
    known = RuleContext.of(release.load("1.2.1"), facts, role="decode", isl=1000)
    inputs = RuleInputs({}, known)
    values = {
        "attention": "mla_dsa",
        "precision": "NVFP4",
        "quantized": True,
        "moe": True,
        "mtp_layers": 1,
        "num_experts": 256,
        "model_type": "deepseek_v32",
        "role": "decode",
        "isl": 1000,
    }
    assert {word: inputs.value(word) for word in values} == values
    assert inputs.value("request_tokens") is inputs.value("sm") is MISSING


def test_every_word_has_a_value_or_is_unknown() -> None:
    for known in (RuleContext(release.load("1.2.1")), pipeline_context()):
        inputs = RuleInputs({}, known)
        assert {word for word in words() if inputs.value(word) is None} == set()


@pytest.mark.parametrize(("drafts", "tokens"), [(1, 16), (3, 32)])
def test_a_step_holds_a_token_and_the_drafts_of_every_request(drafts: int, tokens: int) -> None:
    """Of a full batch of 8 requests, to the token."""
    mtp = {"decoding_type": "MTP", "num_nextn_predict_layers": drafts}

    def fixes(max_num_tokens: int) -> list[str]:
        options = {"max_batch_size": 8, "max_num_tokens": max_num_tokens, "speculative_config": mtp}
        found = violations(options, context({"role": "decode"}))
        return [row.fix for row in found if row.rule == "num-tokens-cover-batch"]

    assert fixes(tokens) == []
    assert fixes(tokens - 1) == [f"give at least {tokens}"]


@by_table
def test_draft_tokens_are_those_that_the_engine_will_use(
    name: str, speculation: object, tokens: int
) -> None:
    inputs = RuleInputs({"speculative_config": speculation}, context({"release": name}))
    assert inputs.value("draft_tokens") == tokens


@by_table
def test_the_list_of_graphs_that_the_engine_makes(
    largest: int, padding: bool, sizes: list[int]
) -> None:
    graphs = {"max_batch_size": largest, "enable_padding": padding}
    inputs = RuleInputs({"cuda_graph_config": graphs}, context({}))
    assert inputs.value("generated_graph_list") == sizes
    found = violations({"cuda_graph_config": {**graphs, "batch_sizes": sizes}}, context({}))
    assert "graph-batches-and-max-equal-list" not in where_by_rule(found)


def test_a_rule_gives_way_to_one_that_says_it_better() -> None:
    nvfp4 = {"kv_cache_config": {"dtype": "nvfp4"}}
    old, new = (context({"gpu": "h200", "release": name}) for name in ("1.0.0", "main"))
    assert "kv-nvfp4-hardware" not in where_by_rule(violations(nvfp4, old))
    assert "kv-nvfp4-hardware" in where_by_rule(violations(nvfp4, new))


def test_the_draft_length_trap_names_the_key_to_write() -> None:
    options = {"speculative_config": {"decoding_type": "MTP", "max_draft_len": 3}}
    (problem,) = violations(options, context({}))
    assert "drafts 1 token" in problem.message
    assert "num_nextn_predict_layers: 3" in problem.fix
    assert not list(violations(options, context({"release": "main"})))


V32 = "nvidia/DeepSeek-V3.2-NVFP4"
MINIMAX_M3 = {"checkpoint": "nvidia/MiniMax-M3-NVFP4", "gpu": "b200"}


def of_version(version: str, known: Mapping[str, Any]) -> RuleContext:
    """The context of a release that has no own table here."""
    found = context(dict(known))
    table = {**found.release.table, "release": version}
    return replace(found, release=Release(table, found.release.path))


@by_table
def test_a_known_issue_is_said_of_its_version_and_of_no_other(
    version: str, known: dict[str, Any], options: dict[str, Any]
) -> None:
    def issues(name: str, model: str) -> list[str]:
        place = of_version(name, {**known, "checkpoint": model, "release": "main"})
        found = (row for row in violations(options, place) if row.rule == "known-issue")
        return [row.message for row in found]

    assert any(text.startswith(f"{version} ") for text in issues(version, known["checkpoint"]))
    assert not issues("1.3.0rc23", known["checkpoint"])
    assert not issues(version, "llama-tiny")


@by_table
def test_a_model_is_served_since_its_release(model: str, too_old: str, first: str) -> None:
    def is_refused(version: str) -> bool:
        found = violations({}, RuleContext.of(release.load(version).judges[0], gather(model)))
        return any(row.rule == "model-needs-release" for row in found)

    assert is_refused(too_old)
    assert not is_refused(first)


def test_a_known_issue_of_a_release_without_a_table_is_said_by_each_of_its_neighbours() -> None:
    judges = release.load("1.3.0rc20").judges
    assert len(judges) == 2
    for table in judges:
        found = violations({}, RuleContext.of(table, gather(V32)))
        assert any(row.rule == "known-issue" for row in found), table.name


AGREED = TABLES["AGREED"]

DISAGREEMENTS = TABLES["DISAGREEMENTS"]


def test_every_agreement_has_a_case() -> None:
    cases = {*DISAGREEMENTS, "disagg-drafts-of-decode"}
    assert {rule.id for rule in ALL_RULES.agreements} == cases


@pytest.mark.parametrize("rule", DISAGREEMENTS)
def test_workers_that_differ_are_reported_at_the_decode_workers_path(rule: str) -> None:
    path, value = DISAGREEMENTS[rule]
    decode = json.loads(json.dumps(AGREED))
    *parents, last = path.split(".")
    inner = decode
    for key in parents:
        inner = inner[key]
    inner[last] = value
    found = where_by_rule(disagreements(AGREED, decode, context({})))
    assert found == {rule: path}


@by_table
def test_decode_workers_may_draft_alone_where_the_release_knows_it(
    name: str, drafting: str, found: list[list[str]]
) -> None:
    both = {"prefill": dict(AGREED), "decode": dict(AGREED)}
    for side, options in both.items():
        if side != drafting:
            del options["speculative_config"]
    rows = list(disagreements(both["prefill"], both["decode"], context({"release": name})))
    assert [[row.rule, row.severity] for row in rows] == found


@pytest.mark.parametrize(
    ("checkpoint", "severities"),
    [(None, ["warning"]), ("nvidia/DeepSeek-R1-0528-NVFP4-v2", []), ("llama-tiny", ["error"])],
)
def test_an_automatic_kv_cache_is_that_of_the_checkpoint(
    checkpoint: str | None, severities: list[str]
) -> None:
    """Beside fp8 it is wrong, right or, for a checkpoint that is not known, neither for sure."""
    place = context({})
    if checkpoint:
        place = RuleContext.of(place.release, gather(checkpoint))
    pair = {"kv_cache_config": {"dtype": "fp8"}}, {"kv_cache_config": {"dtype": "auto"}}
    for one, two in (pair, pair[::-1]):
        assert [row.severity for row in disagreements(one, two, place)] == severities


def test_a_default_and_the_same_value_agree() -> None:
    as_text = json.loads(json.dumps(AGREED).replace("32", '"32"'))
    assert not list(disagreements(AGREED, as_text, context({})))
    given = {"kv_cache_config": {"dtype": "auto", "tokens_per_block": 32}}
    assert not list(disagreements(given, {}, context({})))


TP8 = {"tensor_parallel_size": 8}
DTYPE_ONLY = {"kv_cache_config": {"dtype": "fp8"}}
FRACTION = "--kv_cache_free_gpu_memory_fraction"


@by_table
def test_flags_that_are_lost_or_unknown(
    name: str, flags: dict[str, Any], options: dict[str, Any], found: dict[str, str]
) -> None:
    table = context({"release": name}).release
    assert where_by_rule(flag_traps(flags, options, table)) == found


def test_every_rule_of_flags_has_a_case_above() -> None:
    _, *cases = tables(Path(__file__).with_suffix(".yaml"))["test_flags_that_are_lost_or_unknown"]
    assert {rule.id for rule in ALL_RULES.flags} == {id for row in cases for id in row[3]}


def test_a_lost_flag_says_who_wins_and_what_it_says() -> None:
    (problem,) = flag_traps({"--tp_size": "4"}, TP8, release.load("1.2.1"))
    assert "4 is lost" in problem.message and "tensor_parallel_size to 8" in problem.message
    (problem,) = flag_traps({"--max_batchsize": "4"}, {}, release.load("1.2.1"))
    assert "--max_batch_size" in problem.fix


@pytest.mark.parametrize(
    ("name", "size", "fraction"), [("1.1.0", 8, None), ("1.2.1", 8, "0.5"), ("main", "4", "0.5")]
)
def test_the_engine_sees_file_and_flags_by_precedence(
    name: str, size: object, fraction: object
) -> None:
    table = context({"release": name}).release
    given = {**TP8, **DTYPE_ONLY}
    seen = with_flags({"--tp_size": "4", FRACTION: "0.5", "--pp_size": "2"}, given, table)
    assert seen["tensor_parallel_size"] == size
    assert seen["pipeline_parallel_size"] == "2"
    assert seen["kv_cache_config"].get("free_gpu_memory_fraction") == fraction
    assert given == {"tensor_parallel_size": 8, "kv_cache_config": {"dtype": "fp8"}}


JUNK: list[Any] = [
    *(None, True, "", "8", "x", "nan", "1e999", "9" * 5000, -1, 0, 3, 2.5, 1e308, 10**400),
    *([], [3, "a"], [None], [2, 1, 1], {}, {1: 2}, {"a": {"b": []}}, {None: None}, "fp8", "MTP"),
    *("NGram", "HELIX", "WIDEEP", [0.5, 10**400], {"1": "x"}, float("inf"), float("nan")),
]


def junk_options(random_: random.Random, paths: list[str]) -> dict[str, Any]:
    """Options that real rules look at, each with a value that may be anything."""
    made: dict[str, Any] = {}
    for path in random_.sample(paths, 25):
        *parents, last = path.split(".")
        inner = made
        for key in parents:
            inner = inner.setdefault(key, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[last] = deepcopy(random_.choice(JUNK))
    return made


@pytest.mark.parametrize("name", [release.known()[0], release.known()[-1]])
def test_no_value_of_any_kind_stops_a_rule(name: str) -> None:
    random_ = random.Random(name)
    paths = sorted({path for rule in OPTION_RULES for path in rule.options()})
    facts = {"release": name, "gpu": "gb200", "architecture": "DeepseekV32ForCausalLM"}
    place = context({**facts, "isl": 1000, "osl": 10, "precision": "NVFP4", "num_experts": 256})
    for _ in range(150):
        one, two = junk_options(random_, paths), junk_options(random_, paths)
        for problem in [*violations(one, place), *disagreements(one, two, place)]:
            assert len(str(problem)) < 600
        flags = {f"--{key}": random_.choice(JUNK) for key in [*one][:3]} | {"--tp_size": [], "": 1}
        list(flag_traps(flags, two, place.release))
        with_flags(flags, two, place.release)


@pytest.mark.parametrize("value", [*(v for v in JUNK if not isinstance(v, dict)), {}])
def test_options_that_are_no_mapping_break_nothing(value: Any) -> None:
    assert not [row for row in violations(value, context({})) if row.severity == "error"]


def test_unknown_words_break_nothing_that_asks_for_known_ones() -> None:
    word = "".join(random.Random(1).choices(string.ascii_letters, k=8))
    found = violations({"moe_config": {"backend": word}, word: {word: word}}, context({}))
    assert not [row for row in found if row.severity == "error"]


FAMILIES = {
    "DeepSeek-R1": "DeepseekV3ForCausalLM",
    "DeepSeek-V3.2": "DeepseekV32ForCausalLM",
    "Llama-3.3-70B": "LlamaForCausalLM",
    "Qwen3": "Qwen3MoeForCausalLM",
    "Qwen3.5": "Qwen3_5MoeForConditionalGeneration",
}
PRECISIONS = {"nvfp4": "NVFP4", "fp8": "FP8_BLOCK_SCALES", "mxfp4": "MXFP4"}

# Upstream's own mistakes, and the rule that finds each.
MISTAKES = TABLES["MISTAKES"]


def place_of(section: Mapping[str, Any], name: str) -> RuleContext:
    gpu = str(section["gpu"]).lower()
    return RuleContext(
        release.load(name),
        section["role"],
        hardware.load(gpu) if gpu in hardware.known() else None,
        architectures().get(FAMILIES.get(section["family"], "")),
        PRECISIONS.get(section["precision"]),
        isl=section["isl"],
        osl=section["osl"],
    )


def accepted(section: Mapping[str, Any]) -> list[str]:
    """Releases whose option table takes a section, and that serve its model."""
    architecture = FAMILIES.get(section["family"], "")
    tables = map(release.load, release.known())
    return [
        table.name
        for table in tables
        if support.architecture(table, architecture).state != "unsupported"
        and ("DeepseekV32" not in architecture or "sparse-absent" not in table.rule_ids)
        and not any(p.severity == "error" for p in validate(table, section["config"]))
    ]


@pytest.fixture(scope="module")
def corpus() -> list[dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip(ABSENT)
    sections: list[dict[str, Any]] = json.loads(CORPUS.read_text())
    return sections


def test_real_configurations_break_no_rule_of_severity_error(
    corpus: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    judged: Counter[str] = Counter()
    warned: Counter[str] = Counter()
    errors, mistakes = [], {}
    for section in corpus:
        releases = accepted(section)
        judged[section["source"]] += bool(releases)
        for name in releases:
            found = list(violations(section["config"], place_of(section, name)))
            errors += [f"{section['id']}: {p}" for p in found if p.severity == "error"]
            warned.update({p.rule for p in found})
            rules = {p.rule for p in found}
            if MISTAKES.get(section["id"]) in rules:
                mistakes[section["id"]] = MISTAKES[section["id"]]
    with capsys.disabled():
        print(f"\nengine sections without error: {dict(judged)}; warnings: {dict(warned)}")
        print("upstream mistakes found:", *(f"{rule} in {id}" for id, rule in mistakes.items()))
    assert not errors
    assert mistakes == MISTAKES
    assert judged.total() >= 550


def test_real_prefill_and_decode_workers_agree(corpus: list[dict[str, Any]]) -> None:
    by_file: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for section in corpus:
        by_file.setdefault(section["file"], {}).setdefault(section["role"], []).append(section)
    pairs = [
        (prefill, decode)
        for roles in by_file.values()
        for prefill in roles.get("prefill", [])
        for decode in roles.get("decode", [])
    ]
    found: Counter[str] = Counter()
    for prefill, decode in pairs:
        name = (accepted(decode) or [MAIN])[-1]
        rows = disagreements(prefill["config"], decode["config"], context({"release": name}))
        found.update(row.rule for row in rows)
    assert len(pairs) > 200
    assert set(found) <= {"disagg-buffer-size"} and found.total() < 20
