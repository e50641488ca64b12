"""What a plan says, word for word: refusals, warnings, reasons, sources, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder import pipeline
from builder.deployment import Choice
from builder.facts import release
from builder.planning import Decision, engine_default, plan
from tests.builder.test_requirements import LLAMA, V32, refused
from tests.tables import by_table

# --- Refusals and warnings ------------------------------------------------------------------------

TARGETS = "targets={triton: {}, kubernetes: {}}"
DRAFT = "draft={{checkpoint: {}, tokens: 4, method: {}}}"
UNMEASURED = "compare the budget with the engine's log of its first start"


@by_table
def test_a_refusal_names_the_place_what_is_wrong_and_the_remedy(
    preset: str, overrides: tuple[str, ...], expected: str
) -> None:
    assert refused(preset, *overrides) == [f"--set {expected}"]


def unknown(model: str, gpu: str, side: str = "") -> str:
    return (
        f"checkpoint: no published configuration of {model} on {gpu} is known for this kind of "
        f"{side}server: values marked assumed follow other models; measure before production; "
        "set what you know in engine_config"
    )


@by_table
def test_a_warning_names_the_place_what_to_expect_and_what_to_do(
    preset: str, overrides: tuple[str, ...], expected: list[str]
) -> None:
    assert [str(row) for row in pipeline.plan(preset, overrides).plan.warnings] == expected


@by_table
def test_the_layers_are_split_for_a_reason_that_holds(
    overrides: tuple[str, ...], value: int, reason: str, source: str
) -> None:
    rows = pipeline.plan(LLAMA, overrides).plan.decisions
    [size] = [row for row in rows if row.path == "tensor_parallel_size"]
    assert size == Decision("tensor_parallel_size", value, reason, "derived", source)


@by_table
def test_copies_of_the_attention_are_not_called_whole_models(copies: int, reason: str) -> None:
    settings = ["hardware.num_gpus=4", "instances=1", f"engine_config.data_parallel_size={copies}"]
    rows = pipeline.plan("llama-3.3-70b-fp8-h100-vllm", settings).plan.decisions
    [size] = [row for row in rows if row.path == "tensor_parallel_size"]
    assert (size.value, size.reason) == (4 // copies, reason)


def test_what_the_deployment_sets_is_its_own_and_says_what_the_rule_would_give() -> None:
    file = "engine_config.env_overrides={TRTLLM_ENABLE_PDL: '0', WORDS: file}"
    found = pipeline.plan(
        V32,
        [file, "environment.DO_NOT_TRACK=0", "environment.X=y", "engine_config.stream_interval=4"],
    ).plan
    rows = {row.path: row for row in (*found.decisions, *found.environment)}
    over = "Set in engine_config.env_overrides, which the engine puts over this"
    expected = {
        "stream_interval": (4, "Set in engine_config; no rule decides it."),
        "environment.X": ("y", "Set in the deployment; no rule decides it."),
        "environment.DO_NOT_TRACK": (
            "0",
            "Set in the deployment. The rule would give 1: The same for libraries that keep to "
            "the common variable.",
        ),
        "environment.TRTLLM_ENABLE_PDL": ("0", f"{over}. The rule would give 1: "),
    }
    for path, (value, reason) in expected.items():
        row = rows[path]
        assert row.reason.startswith(reason)
        assert (row.value, row.evidence, row.source) == (value, "override", "deployment")
    assert "environment.WORDS" not in rows, "nothing outside of the option file names it"


def test_what_the_engine_does_by_itself_is_said_with_its_source() -> None:
    rows = {row.path: row for row in pipeline.plan(V32).plan.engine_defaults}
    table = "option table of release 1.2.1"
    assert rows["kv_cache_config.tokens_per_block"] == Decision(
        "kv_cache_config.tokens_per_block",
        32,
        "Not set: the engine's own value.",
        "engine default",
        table,
    )
    unset = engine_default(release.load("1.2.1"), "max_seq_len")
    assert (unset.value, unset.source) == (None, table)
    assert unset.reason == "Not set: off, or found by the engine when it starts."


def test_an_uncertain_row_of_the_table_is_told_once() -> None:
    for path, name, sure in (
        ("speculative_config.max_total_draft_tokens", "1.1.0", "uncertain"),
        ("sparse_attention_config.seq_len_threshold", "1.2.1", "inferred"),
    ):
        found = engine_default(release.load(name), path)
        assert found.source == f"option table of release {name}; {sure}"


def test_what_nobody_decides_is_not_said_twice() -> None:
    found = pipeline.plan(V32).plan
    rows = [row.path for row in (*found.decisions, *found.engine_defaults)]
    assert len(rows) == len({*rows})


def test_experts_results_travel_in_low_precision_where_a_backend_is_planned_for_them() -> None:
    path = "moe_config.use_low_precision_moe_combine"

    def decided(preset: str, *overrides: str) -> dict[str, Any]:
        rows = pipeline.plan(preset, overrides).plan.decisions
        return {row.path: row.value for row in rows if row.path.startswith("moe_config.")}

    decode = "deepseek-v3.2-nvfp4-gb300-decode"
    assert decided(decode) == {"moe_config.backend": "TRTLLM", path: True}
    assert decided(decode, f"engine_config.{path}=false")[path] is False
    assert decided(V32) == {"moe_config.backend": "TRTLLM"}


def test_nothing_is_drafted_where_a_publication_of_this_shape_drafts_nothing() -> None:
    preset, method = "deepseek-v3.2-fp8-gb200", "speculative_config.decoding_type"
    planned = pipeline.plan(preset).plan
    [row] = planned.facts.published
    without = {
        path: value
        for path, value in row.options.items()
        if not path.startswith("speculative_config.")
    }
    for options, drafts in ((row.options, method in row.options), (without, False)):
        facts = replace(planned.facts, published=(replace(row, options=options),))
        found = plan(planned.deployment, facts)
        assert (method in {one.path for one in found.decisions}) is drafts
        if not drafts:
            [why] = [one for one in found.engine_defaults if one.path == method]
            assert why.reason == (
                "Not set: the published deployment of this shape drafts no tokens."
            )
            assert (why.evidence, why.source) == ("engine default", row.source)


@pytest.mark.parametrize(
    ("concurrency", "gpus", "drafts"),
    [(4095, 8, True), (4096, 8, False), (8191, 16, True), (8192, 16, False)],
)
def test_drafts_cost_others_time_from_so_many_requests_on(
    concurrency: int, gpus: int, drafts: bool
) -> None:
    """4096, or 512 for each GPU where that is more."""
    load = f"workload={{isl: 64, osl: 64, concurrency: {concurrency}}}"
    several = (f"hardware.num_gpus={gpus}", "targets={trtllm_serve: {}, kubernetes: {}}")
    found = pipeline.plan("deepseek-r1-0528-nvfp4-b200", [load, *several]).plan
    method = "speculative_config.decoding_type"
    assert (method in {row.path for row in found.decisions}) is drafts
    if not drafts:
        [why] = [row for row in found.engine_defaults if row.path == method]
        assert why.reason == (
            f"Not set: with {concurrency:,} requests at once every step is full, and the time "
            "for rejected drafts would be that of other requests."
        )


def test_a_draft_models_options_say_what_they_are_for() -> None:
    draft = "draft={checkpoint: /models/draft, tokens: 4, method: eagle3}"
    rows = {row.path: row for row in pipeline.plan("llama-tiny", [draft]).plan.decisions}
    of_draft = "draft.checkpoint /models/draft"
    expected = {
        "speculative_config.decoding_type": (
            "Eagle",
            "The deployment names a draft model, whose tokens this model checks several at once.",
            of_draft,
        ),
        "speculative_config.max_draft_len": (
            4,
            "Tokens that the draft proposes per step; the deployment sets them.",
            "draft.tokens 4",
        ),
        "draft_model": (
            "/models/draft",
            "Where the draft model lies; DRAFT_CHECKPOINT names another place at start.",
            of_draft,
        ),
    }
    for path, (value, reason, source) in expected.items():
        assert rows[path] == Decision(path, value, reason, "derived", source)


def test_differences_from_a_publication_say_why() -> None:
    planned = pipeline.plan(V32, ["engine_config.max_batch_size=32", "workload.concurrency=32"])
    rows = {row.path: row for row in planned.plan.differences}
    assert rows["max_batch_size"].published == 64
    assert rows["max_batch_size"].planned == 32
    assert rows["max_batch_size"].reason.startswith("Set in engine_config. The rule would give 32:")
    assert rows["max_batch_size"].reason.endswith(" (deployment)")
    assert rows["trust_remote_code"].planned is None
    assert rows["trust_remote_code"].reason == (
        "Off unless engine_config asks for it: it runs Python code from the checkpoint on the "
        "server, and the engine has this architecture built in."
    )
    asked = pipeline.plan(V32, ["engine_config.trust_remote_code=true"]).plan.differences
    assert "trust_remote_code" not in {row.path for row in asked}


def test_a_servers_flags_have_their_reasons_and_sources() -> None:
    preset = "qwen3.5-397b-nvfp4-b300"
    rows = {row.path: row for row in pipeline.plan(preset).plan.flags}
    issue = (
        "NVIDIA/TensorRT-LLM#18084: qwen3, which the deployment guide @904707f names, "
        "reads none of its calls"
    )
    name = "The name by which clients ask for the model, wherever its weights lie."
    assert rows["--served_model_name"] == Decision(
        "--served_model_name",
        "Qwen3.5-397B-A17B-NVFP4",
        name,
        "derived",
        "checkpoint nvidia/Qwen3.5-397B-A17B-NVFP4",
    )
    assert rows["--tool_parser"] == Decision(
        "--tool_parser",
        "qwen3_coder",
        "The server takes tool calls out of the text, in fields of their own.",
        "documented",
        issue,
    )
    assert rows["--reasoning_parser"].reason == (
        "The server takes thoughts out of the text, in fields of their own."
    )
    [own] = [
        row
        for row in pipeline.plan(preset, ["served_model_name=chat"]).plan.flags
        if row.path == "--served_model_name"
    ]
    assert own == Decision("--served_model_name", "chat", name, "override", "deployment")


# --- What was chosen ------------------------------------------------------------------------------


def test_a_choice_is_told_as_long_as_its_values_stand() -> None:
    """The others of `engine_config` are the user's own."""
    settings = {"max_batch_size": 16, "kv_cache_config.free_gpu_memory_fraction": 0.7}
    given = [f"engine_config.{path}={value}" for path, value in settings.items()]
    found = pipeline.plan("llama-tiny", [*given, "engine_config.stream_interval=4"]).plan
    choice = Choice(
        objective="latency",
        reason="It was the fastest.",
        source="estimate",
        settings={**settings, "max_batch_size": 32},
        estimate={},
    )
    chosen = found.deployment.replaced(choice=choice)
    rows = {row.path: row for row in plan(chosen, found.facts).decisions}
    fraction = rows["kv_cache_config.free_gpu_memory_fraction"]
    assert fraction == Decision(fraction.path, 0.7, "It was the fastest.", "estimated", "estimate")
    for path in ("max_batch_size", "stream_interval"):
        assert (rows[path].evidence, rows[path].source) == ("override", "deployment")
