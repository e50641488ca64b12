"""Option tables: what each release accepts, judged as strictly as the engine does."""

from __future__ import annotations

from typing import Any

import pytest

from builder import release
from builder.errors import BadInput

PUBLISHED: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 2, 4]},
    "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.8},
    "moe_config": {"backend": "TRTLLM"},
    "speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3},
}


def rejected(options: dict[str, Any], name: str = "1.2.1") -> list[str]:
    return [str(problem) for problem in release.load(name).check_options(options)]


@pytest.mark.parametrize("name", release.known())
def test_the_published_options_are_valid_for_every_release(name: str) -> None:
    assert rejected(PUBLISHED, name) == []


@pytest.mark.parametrize("name", release.known())
def test_every_type_and_union_of_a_table_resolves(name: str) -> None:
    table = release.load(name).table

    def walk(field: dict[str, Any]) -> None:
        if field["type"] == "record":
            assert field["of"] in table["types"]
        if field["type"] == "union":
            assert set(table["unions"][field["of"]]["types"].values()) <= set(table["types"])
        for inner in field["of"] if field["type"] == "either" else ():
            walk(inner)
        if "items" in field:
            walk(field["items"])

    for record in table["types"].values():
        for field in record["fields"].values():
            walk(field)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tensor_paralel_size": 4}, "tensor_paralel_size: unknown option in 1.2.1; did you mean"),
        ({"kv_cache_config": {"dtyp": "fp8"}}, "kv_cache_config.dtyp: unknown option"),
        ({"max_batch_size": "many"}, "max_batch_size: is many; expected a whole number"),
        ({"max_batch_size": 1.5}, "max_batch_size: is 1.5; expected a whole number"),
        ({"max_batch_size": [64]}, "max_batch_size: is [64]; expected a whole number"),
        ({"enable_attention_dp": "maybe"}, "enable_attention_dp: is maybe; expected true or false"),
        ({"kv_cache_config": "fp8"}, "kv_cache_config: is fp8; expected a mapping"),
        ({"kv_cache_config": None}, "kv_cache_config: is null; expected a mapping"),
        (
            {"moe_config": {"backend": "AUTO"}},
            "moe_config.backend: AUTO is not allowed; Known: CUT",
        ),
        (
            {"kv_cache_config": {"free_gpu_memory_fraction": 1.5}},
            "free_gpu_memory_fraction: 1.5 is out of range; give a value of at most 1",
        ),
        (
            {"speculative_config": {"num_nextn_predict_layers": 3}},
            "speculative_config: decoding_type is required here; one of MTP,",
        ),
        (
            {"speculative_config": {"decoding_type": "Eagle3"}},
            "speculative_config.decoding_type: Eagle3 is unknown in release 1.2.1",
        ),
        (
            {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 0}},
            "num_nextn_predict_layers: 0 is out of range; give a value above 0",
        ),
        (
            {"cuda_graph_config": {"batch_sizes": [1, "two"]}},
            "cuda_graph_config.batch_sizes.1: is two; expected a whole number",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(options: dict[str, Any], expected: str) -> None:
    (problem,) = rejected(options)
    assert expected in problem


def test_all_faults_are_found_at_once() -> None:
    assert len(rejected({"a": 1, "max_batch_size": None, "moe_config": {"backend": "X"}})) == 2


def test_null_turns_graphs_off() -> None:
    assert rejected({"cuda_graph_config": None}) == []


def test_numbers_in_quotes_are_accepted_as_the_engine_accepts_them() -> None:
    """PyYAML reads 1e-05 as text, and the engine's validation turns it into a number."""
    assert rejected({"kv_cache_config": {"free_gpu_memory_fraction": "8e-01"}}) == []
    assert rejected({"max_batch_size": "64"}) == []


@pytest.mark.parametrize(
    ("name", "options", "valid"),
    [
        ("1.1.0", {"sparse_attention_config": {"algorithm": "dsa"}}, False),
        ("1.2.1", {"sparse_attention_config": {"algorithm": "dsa"}}, True),
        ("1.2.1", {"moe_config": {"backend": "WIDEEP"}}, True),
        ("main-00043967", {"moe_config": {"backend": "WIDEEP"}}, False),
        ("1.1.0", {"build_config": {}}, False),
    ],
)
def test_releases_differ(name: str, options: dict[str, Any], valid: bool) -> None:
    assert (rejected(options, name) == []) is valid


def test_the_draft_length_is_spelled_by_release() -> None:
    spelled = [release.load(name).spell("mtp_draft_tokens") for name in ("1.2.1", "main-00043967")]
    assert spelled == [
        "speculative_config.num_nextn_predict_layers",
        "speculative_config.max_draft_len",
    ]


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"1\.2\.2 .* known: 1\.0\.0, 1\.1\.0, 1\.2\.1, main"):
        release.load("1.2.2")


def test_moe_kernels_follow_quantization_and_gpu_generation() -> None:
    table = release.load("1.2.1")
    blackwell, hopper = (
        [backend.name for backend in table.moe_backends(quant_algo, sm)]
        for quant_algo, sm in (("NVFP4", 100), ("FP8_BLOCK_SCALES", 90))
    )
    assert blackwell == ["TRTLLM", "CUTLASS"]
    assert hopper == ["CUTLASS"]
    assert table.moe_backends("NVFP4", 90) == []
