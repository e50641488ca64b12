"""The memory budget, against figures that engines printed on real GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.facts import checkpoint, hardware
from builder.facts.memory import (
    GIB,
    Budget,
    Load,
    Sharding,
    activations_gib,
    budget,
    cuda_graphs_gib,
    expert_workspace_gib,
    kv_bytes_per_token,
    kv_dtype_bytes,
    other_gib,
    state_bytes_per_request,
    uncertainty_gib,
    weights_bytes,
)
from tests.tables import by_table

R1 = "nvidia/DeepSeek-R1-0528-NVFP4-v2"
V32 = "nvidia/DeepSeek-V3.2-NVFP4"
QWEN3 = "nvidia/Qwen3-235B-A22B-NVFP4"
GPT_OSS = "openai/gpt-oss-120b"
LLAMA_70B = "nvidia/Llama-3.3-70B-Instruct-FP8"
QWEN35 = "nvidia/Qwen3.5-397B-A17B-NVFP4"
KIMI_K3 = "moonshotai/Kimi-K3"


@by_table
def test_kv_bytes_per_token(name: str, tp: int, draft: int, expected: int) -> None:
    facts = checkpoint.gather(name)
    assert kv_bytes_per_token(facts, Sharding(tp), 1, draft) == expected


@pytest.mark.parametrize(("ranks", "heads"), [(1, 6), (2, 3), (4, 2), (6, 1), (12, 1)])
def test_the_fullest_rank_counts_where_heads_are_not_shared_evenly(ranks: int, heads: int) -> None:
    """Of six key-value heads one of four ranks has two; a rank never has less than one."""
    facts = checkpoint.gather(QWEN3)
    six = replace(facts, config={**facts.config, "num_key_value_heads": 6})
    layers, head_dim = 94, 128
    expected = layers * 2 * heads * head_dim  # keys and values of a byte each
    assert kv_bytes_per_token(six, Sharding(ranks), 1, 0) == expected


def test_attention_data_parallelism_keeps_all_heads_on_a_rank() -> None:
    facts = checkpoint.gather(QWEN3)
    split = kv_bytes_per_token(facts, Sharding(4), 1, 0)
    whole = kv_bytes_per_token(facts, Sharding(4, enable_attention_dp=True), 1, 0)
    assert whole == 4 * split == 96_256


def test_linear_attention_keeps_a_state_per_request() -> None:
    facts = checkpoint.gather(QWEN35)
    assert state_bytes_per_request(facts, Sharding(1)) / 1e6 == pytest.approx(192.1, abs=0.1)
    assert state_bytes_per_request(facts, Sharding(4)) / 1e6 == pytest.approx(48.0, abs=0.1)
    assert state_bytes_per_request(checkpoint.gather(V32), Sharding(1)) == 0


@pytest.mark.parametrize(
    ("name", "sharding", "with_mtp", "logged_gib"),
    [
        # "memory after loading weights (inside torch)" of GB200 runs, which holds workspaces too
        (R1, Sharding(4), True, 100.86),
        (V32, Sharding(4), True, 103.03),
        (V32, Sharding(4, enable_attention_dp=True), False, 109.71),
    ],
)
def test_weights_of_a_rank_are_close_to_the_logs(
    name: str, sharding: Sharding, with_mtp: bool, logged_gib: float
) -> None:
    predicted = weights_bytes(checkpoint.gather(name), sharding, with_mtp) / GIB
    assert -0.7 <= logged_gib - predicted <= 7


def test_the_mtp_layer_shares_embedding_and_head() -> None:
    """Its copies in the checkpoint, 3.7 GB of a vocabulary of 129,280, are not loaded."""
    facts, one = checkpoint.gather(V32), Sharding(1)
    extra = weights_bytes(facts, one, True) - weights_bytes(facts, one, False)
    mtp = sum(group.nbytes for group in facts.groups if group.mtp)
    assert mtp - extra == 2 * 129_280 * 7_168 * 2


def test_the_embedding_is_whole_on_every_rank_of_deepseek_only() -> None:
    """151,936 tokens of 4,096 channels in BF16, 1.2 GB, are split by Qwen3 and not by DeepSeek."""
    for name, share in ((QWEN3, 1 / 4), (V32, 1)):
        facts = checkpoint.gather(name)
        rest = replace(facts, stored_groups=tuple(g for g in facts.groups if g.role != "embedding"))
        embedding = facts.config["vocab_size"] * facts.config["hidden_size"] * 2
        split = weights_bytes(facts, Sharding(4), False) - weights_bytes(rest, Sharding(4), False)
        assert split == pytest.approx(embedding * share)


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_engine_keeps_copies_of_latent_attention_beside_the_checkpoint(ranks: int) -> None:
    """Of 62 layers: the key half of kv_b_proj in BF16, split, and the indexer in FP32, whole."""
    keys = 62 * 128 * 128 * 512 * 2 // ranks  # heads x qk_nope_head_dim x kv_lora_rank
    indexer = 62 * (128 + 64) * 7168 * 4  # (index_head_dim + index_n_heads) x hidden_size
    sharding = Sharding(ranks)
    for name, copies in {V32: keys + indexer, R1: keys}.items():
        facts = checkpoint.gather(name)
        plain = replace(facts, architecture=replace(facts.architecture, attention="gqa"))
        without = weights_bytes(replace(plain, stored_groups=facts.groups), sharding, False)
        assert weights_bytes(facts, sharding, False) - without == copies
        if ranks == 1:
            assert without == sum(group.nbytes for group in facts.groups if not group.mtp)


def test_pipeline_parallelism_splits_layers() -> None:
    """The fullest of two stages has 31 of 61 layers and, where it is the last, head and MTP."""
    facts, half = checkpoint.gather(V32), Sharding(2, pipeline_parallel_size=2)
    whole = weights_bytes(facts, Sharding(2), False)
    assert weights_bytes(facts, half, False) == pytest.approx(whole * 31 / 61, rel=0.01)
    mtp = weights_bytes(facts, Sharding(2), True) - whole
    last = mtp + 129_280 * 7_168 * 2 * (1 / 2 - 1)  # it has the split head, not the embedding
    assert weights_bytes(facts, half, True) - weights_bytes(facts, half, False) == last
    assert kv_bytes_per_token(facts, half, 1, 3) == (31 + 3) * 708


def test_a_bf16_cache_is_charged_twice_the_indexer_as_well() -> None:
    assert kv_bytes_per_token(checkpoint.gather(V32), Sharding(4), 2, 0) == 86_376


def test_windows_cap_what_a_request_keeps() -> None:
    """18 of 36 layers of gpt-oss attend to 128 tokens; the engine sizes on all unless told."""
    facts, one, windows = checkpoint.gather(GPT_OSS), Sharding(1), (128, 131_072)
    assert kv_bytes_per_token(facts, one, 1, 0) == 36_864
    assert kv_bytes_per_token(facts, one, 1, 0, max_attention_window=windows) == 18_432
    assert state_bytes_per_request(facts, one, 1, windows) == 18 * 128 * 1024
    assert state_bytes_per_request(facts, one) == 0


def test_layers_of_the_longest_window_keep_every_token_however_many_they_are() -> None:
    """Two of three layers attend to 128 tokens: 24 keep those, 12 keep all."""
    facts, one, windows = checkpoint.gather(GPT_OSS), Sharding(1), (128, 128, 4096)
    layer = 36_864 // 36
    assert kv_bytes_per_token(facts, one, 1, 0, max_attention_window=windows) == 12 * layer
    assert state_bytes_per_request(facts, one, 1, windows) == 24 * 128 * layer


def test_a_part_of_a_byte_counts_as_a_whole_one() -> None:
    """61 layers of 708 values, each of nine sixteenths of a byte."""
    exact = 61 * 708 * 9 / 16
    assert exact % 1
    assert kv_bytes_per_token(checkpoint.gather(V32), Sharding(4), 9 / 16, 0) == int(exact) + 1


@pytest.mark.parametrize(
    ("sharding", "logged_gib"),
    [
        (Sharding(2), 34.08),
        (Sharding(4), 17.11),
        (Sharding(2, enable_attention_dp=True, moe_expert_parallel_size=2), 34.83),
    ],
)
def test_mxfp4_experts_are_padded(sharding: Sharding, logged_gib: float) -> None:
    """2880 channels become 3072, and 720 of a rank 768, as logs of gpt-oss show."""
    facts = checkpoint.gather(GPT_OSS)
    predicted = weights_bytes(facts, sharding, False) / GIB
    assert -0.3 <= logged_gib - predicted <= 0.3


def test_only_kernels_that_want_it_pad_the_experts() -> None:
    facts = checkpoint.gather(GPT_OSS)
    padded, plain = (
        weights_bytes(facts, Sharding(2), False, backend) for backend in ("TRTLLM", "TRITON")
    )
    experts = sum(group.nbytes for group in facts.groups if group.dtype == "U8") / 2
    assert padded - plain == pytest.approx(experts * (3072 / 2880 * 1536 / 1440 - 1))


def plain_budget(name: str = V32, **changes: Any) -> Budget:
    options: dict[str, Any] = {
        "kv_cache_dtype": "fp8",
        "free_gpu_memory_fraction": 0.8,
        "max_num_tokens": 8192,
        "tokens_per_request": 2400,
    }
    gpu, sharding = changes.pop("gpu", "gb200"), changes.pop("sharding", Sharding(4))
    draft, load = changes.pop("draft", None), Load(**options | changes)
    return budget(checkpoint.gather(name), hardware.load(gpu), sharding, load, draft)


def test_a_decode_server_holds_what_it_receives_from_the_other_side() -> None:
    """2.5 GiB over the rest, as logs of decode servers of mixtures of experts show."""
    whole, prefill, decode = (plain_budget(role=role) for role in ("agg", "prefill", "decode"))
    assert prefill.other_gib == whole.other_gib
    assert decode.other_gib == whole.other_gib + 2.5
    assert plain_budget(LLAMA_70B, role="decode").other_gib == plain_budget(LLAMA_70B).other_gib


def test_the_workload_is_set_against_the_cache() -> None:
    """64 requests of 2400 tokens in blocks of 32 need 43,188 bytes a token."""
    result = plain_budget(concurrency=64)
    assert result.needed_gib == pytest.approx(64 * 2400 * 43_188 / GIB)
    assert result.margin_gib == result.kv_cache_gib - result.needed_gib
    assert result.fits
    assert not result.tight
    assert plain_budget(concurrency=result.max_concurrency).tight


def test_the_dry_runs_pool_holds_the_longest_request_and_a_block_for_each_other() -> None:
    result = plain_budget(max_seq_len=4096, max_batch_size=8)
    tokens = 4096 + 8 * 32
    assert result.temporary_kv_gib == pytest.approx(tokens * result.kv_bytes_per_token / GIB)


def test_requests_take_whole_blocks() -> None:
    assert plain_budget(tokens_per_request=2401).request_gib == pytest.approx(2432 * 43_188 / GIB)
    wide = plain_budget(tokens_per_request=2401, tokens_per_block=64)
    assert wide.request_gib == pytest.approx(2432 * 43_188 / GIB)
    assert wide.kv_tokens % 64 == 0


def test_what_is_only_possible_if_the_estimate_is_off_is_not_refused() -> None:
    """A budget refuses what would not fit even if it were off as far as any ever was."""
    impossible = plain_budget(sharding=Sharding(1))
    assert not impossible.fits
    assert impossible.kv_cache_gib == 0
    tokens = plain_budget(GPT_OSS, gpu="h100", sharding=Sharding(1)).kv_tokens + 1000
    close = plain_budget(GPT_OSS, gpu="h100", sharding=Sharding(1), tokens_per_request=tokens)
    assert close.max_concurrency == 0
    assert close.fits


def test_expert_kernels_copy_the_tokens_of_all_attention_dp_ranks() -> None:
    """18 GiB at four times 16384 tokens, seen in logs of prefill servers with MTP."""
    spread = Sharding(4, enable_attention_dp=True, moe_expert_parallel_size=4)
    options: dict[str, Any] = {"sharding": spread, "max_num_tokens": 16384, "moe_backend": "TRTLLM"}
    without, with_mtp = plain_budget(**options), plain_budget(**options, mtp_draft_tokens=1)
    assert with_mtp.activations_gib - without.activations_gib == pytest.approx(14.5)
    capped = plain_budget(**options, mtp_draft_tokens=1, moe_max_num_tokens=16384)
    assert with_mtp.activations_gib - capped.activations_gib == pytest.approx(18 * 3 / 4)


def test_a_draft_model_takes_weights_and_cache() -> None:
    alone = plain_budget("nvidia/Llama-3.3-70B-Instruct-FP8")
    draft = checkpoint.gather("meta-llama/Meta-Llama-3.1-8B")
    with_draft = plain_budget("nvidia/Llama-3.3-70B-Instruct-FP8", draft=draft)
    assert with_draft.weights_gib - alone.weights_gib == pytest.approx(16.06e9 / 4 / GIB, rel=0.01)
    assert with_draft.kv_bytes_per_token == alone.kv_bytes_per_token + 32 * 2 * 2 * 128


def test_a_draft_model_caches_in_its_own_type() -> None:
    """The checkpoint of the target asks for a cache of FP8, that of the draft for none."""
    name, options = "nvidia/Llama-3.3-70B-Instruct-FP8", {"kv_cache_dtype": "auto"}
    draft = checkpoint.gather("meta-llama/Meta-Llama-3.1-8B")
    alone, with_draft = plain_budget(name, **options), plain_budget(name, draft=draft, **options)
    assert alone.kv_bytes_per_token == plain_budget(name).kv_bytes_per_token
    # 32 layers, keys and values of 2 heads of 128, of 2 bytes each.
    assert with_draft.kv_bytes_per_token == alone.kv_bytes_per_token + 32 * 2 * 2 * 128 * 2


def test_a_request_fits_into_exactly_its_size() -> None:
    found = replace(plain_budget(), uncertainty_gib=0.0)
    left = found.total_gib - found.used_gib
    found = replace(found, kv_cache_gib=left, request_gib=left)
    assert found.fits
    assert not replace(found, request_gib=left + 0.01).fits


def test_a_margin_as_large_as_the_largest_error_is_not_tight() -> None:
    found = replace(
        plain_budget(), uncertainty_gib=4.0, free_gpu_memory_fraction=0.5, needed_gib=8.0
    )
    assert not replace(found, kv_cache_gib=10.0).tight
    assert replace(found, kv_cache_gib=9.99).tight


@by_table
def test_bytes_of_a_cached_value(dtype: str, quantized_for: str | None, expected: float) -> None:
    assert kv_dtype_bytes(dtype, quantized_for) == expected


def test_the_cache_is_charged_by_its_dtype() -> None:
    """R1's NVFP4 checkpoint asks for FP8, which `auto` takes over; its FP8 one asks for nothing."""
    elements = 61 * 576
    for name, dtype, expected in (
        (R1, "auto", elements),
        (R1, "nvfp4", elements * 9 / 16),
        ("deepseek-ai/DeepSeek-R1-0528", "auto", 2 * elements),
    ):
        assert plain_budget(name, kv_cache_dtype=dtype).kv_bytes_per_token == expected


def test_windows_reach_the_budget() -> None:
    windows = {"max_attention_window": (128, 131_072)}
    result = plain_budget(GPT_OSS, sharding=Sharding(1), **windows)
    assert result.kv_bytes_per_token == 18_432
    assert result.request_gib == pytest.approx((2400 * 18_432 + 18 * 128 * 1024) / GIB)


def test_a_batch_limits_what_runs_at_once() -> None:
    spread = Sharding(4, enable_attention_dp=True)
    result = plain_budget(sharding=spread, max_batch_size=3)
    assert result.max_concurrency == 3 * 4 < result.cached_requests
    assert plain_budget(sharding=spread).max_concurrency == result.cached_requests


def test_the_ranks_share_requests_rounded_up() -> None:
    """Five requests on four ranks: one rank holds two."""
    result = plain_budget(sharding=Sharding(4, enable_attention_dp=True), concurrency=5)
    assert result.needed_gib == 2 * result.request_gib


def test_linear_attention_state_limits_the_concurrency() -> None:
    result = plain_budget(QWEN35, gpu="b300", sharding=Sharding(8), tokens_per_request=2)
    assert result.max_concurrency < result.kv_tokens / 1000


def test_the_parts_add_up_to_the_total() -> None:
    result = plain_budget(mtp_draft_tokens=3, num_cuda_graphs=100)
    assert result.cuda_graphs_gib > 1
    parts = result.weights_gib + result.activations_gib + result.cuda_graphs_gib + result.other_gib
    assert result.used_gib == parts
    assert result.kv_cache_gib == pytest.approx((result.total_gib - parts) * 0.8)
    assert parts + result.temporary_kv_gib < result.total_gib


@by_table
def test_published_shapes_fit(name: str, gpu: str, ranks: int) -> None:
    result = plain_budget(name, gpu=gpu, sharding=Sharding(ranks))
    assert result.fits
    assert result.max_concurrency


@pytest.mark.parametrize("name", hardware.known())
def test_memory_is_what_cuda_reports_not_what_the_name_says(name: str) -> None:
    gpu = hardware.load(name)
    assert gpu.name == name
    assert 40 * 1024 < gpu.memory_cuda_mib.value < 290 * 1024
    assert gpu.memory_cuda_mib.source


# --- What the engine itself takes, part by part ---------------------------------------------------

ALL_DP: dict[str, Any] = {"enable_attention_dp": True}
ALL_EP: dict[str, Any] = {"moe_expert_parallel_size": 4}
R1_HIDDEN, TOKENS = 7168, 8192
REDUCED = 10 * 2 * R1_HIDDEN * TOKENS / GIB  # ten hidden states of BF16 per token


@pytest.mark.parametrize(
    ("name", "sharding", "with_mtp", "decode", "expected"),
    [
        (LLAMA_70B, Sharding(1), False, False, 2.3),
        (LLAMA_70B, Sharding(2), True, True, 3.3),
        (LLAMA_70B, Sharding(8), False, False, 4.3),
        (R1, Sharding(1), True, False, 2.3),
        (R1, Sharding(4), False, False, 4.3 + REDUCED),
        (R1, Sharding(4, **ALL_DP), False, False, 4.3),
        (R1, Sharding(4, **ALL_DP), True, False, 4.3 + REDUCED),
        (R1, Sharding(4, **ALL_EP), False, False, 4.3 + REDUCED + 1.2),
        (R1, Sharding(4, moe_expert_parallel_size=2), False, False, 4.3 + REDUCED + 1.2),
        (R1, Sharding(4, **ALL_DP, **ALL_EP), False, False, 4.3),
        (V32, Sharding(4), False, False, 4.3 + REDUCED + 1.2),
        (V32, Sharding(4, **ALL_DP), False, False, 4.3),
        (V32, Sharding(2, **ALL_EP), True, True, 3.3 + REDUCED + 1.2 + 1.2 + 2.5),
        (V32, Sharding(4, **ALL_DP), False, True, 4.3 + 2.5),
    ],
)
def test_the_rest_of_the_engine_is_the_sum_of_what_each_kind_adds(
    name: str, sharding: Sharding, with_mtp: bool, decode: bool, expected: float
) -> None:
    found = other_gib(checkpoint.gather(name), sharding, TOKENS, with_mtp, decode)
    assert found == pytest.approx(expected)


@by_table
def test_how_far_a_budget_may_be_off_follows_from_the_kind_of_server(
    name: str, attention_dp: bool, by_role: list[float]
) -> None:
    facts, sharding = checkpoint.gather(name), Sharding(4, enable_attention_dp=attention_dp)
    assert [uncertainty_gib(facts, sharding, r) for r in ("agg", "prefill", "decode")] == by_role


@pytest.mark.parametrize("tokens", [1536, 4096, 16384])
def test_a_steps_peak_grows_with_its_tokens_by_the_kind_of_model(tokens: int) -> None:
    """In BF16 values of the hidden size, as the module says what each was fitted to."""

    def bytes_of(name: str, sharding: Sharding) -> float:
        return activations_gib(checkpoint.gather(name), sharding, tokens) * GIB

    dense = bytes_of(LLAMA_70B, Sharding(2))
    assert dense == pytest.approx(tokens * (6 * 2 * 8192 + 6 * 2 * 28672 / 2))
    assert bytes_of(GPT_OSS, Sharding(4)) == pytest.approx(tokens * 15 * 2 * 2880)
    first = 18 * 2 * R1_HIDDEN * min(tokens, 4096)
    latent = tokens * 15 * 2 * R1_HIDDEN + first
    assert bytes_of(R1, Sharding(4)) == pytest.approx(latent)
    assert bytes_of(V32, Sharding(4)) == pytest.approx(latent + tokens * 128 / 4 * 1600)
    whole = bytes_of(V32, Sharding(4, enable_attention_dp=True))
    assert whole == pytest.approx(latent + tokens * 128 * 1600)


def test_the_kernels_of_experts_keep_as_many_values_as_their_kind_needs() -> None:
    """Of R1: NVFP4 experts of 2048 channels, eight for a token, and BF16 ones in its MTP layer."""
    facts, one = checkpoint.gather(R1), Sharding(4)

    def bytes_of(with_mtp: bool, backend: str | None, **more: Any) -> float:
        return expert_workspace_gib(facts, one, 1000, with_mtp, backend, **more) * GIB

    four_states = 1000 * 4 * 2 * R1_HIDDEN
    for backend in ("TRTLLM", None):
        assert bytes_of(False, backend) == pytest.approx(four_states)
    copied = 1000 * 8 * ((0.5 + 2) * R1_HIDDEN + 4 * 2048)
    assert bytes_of(False, "CUTLASS") == pytest.approx(copied)
    assert bytes_of(False, "CUTLASS", moe_max_num_tokens=500) == pytest.approx(copied / 2)
    assert bytes_of(False, "CUTLASS", moe_max_num_tokens=5000) == pytest.approx(copied)
    plain = 1000 * 8 * ((2 + 2) * R1_HIDDEN + 4 * 2048)
    for backend in ("TRTLLM", "CUTLASS"):
        assert bytes_of(True, backend) == pytest.approx(plain)
    spread = Sharding(4, enable_attention_dp=True)
    found = expert_workspace_gib(facts, spread, 1000, False, "CUTLASS") * GIB
    assert found == pytest.approx(4 * copied)
    assert expert_workspace_gib(checkpoint.gather(LLAMA_70B), one, 1000, False) == 0


def test_a_graph_takes_what_it_took_on_models_of_its_attention() -> None:
    assert cuda_graphs_gib(checkpoint.gather(V32), 10) == pytest.approx(10 * 23.1e6 / GIB)
    assert cuda_graphs_gib(checkpoint.gather(R1), 10) == pytest.approx(10 * 11e6 / GIB)
    assert cuda_graphs_gib(checkpoint.gather(R1), 0) == 0


def test_a_share_of_the_whole_gpu_holds_all_else_as_well() -> None:
    left, total = (plain_budget(share_of=share) for share in ("left", "total"))
    assert left.kv_cache_gib == pytest.approx(0.8 * (left.total_gib - left.used_gib))
    assert total.kv_cache_gib == pytest.approx(0.8 * total.total_gib - total.used_gib)
    none = plain_budget(share_of="total", free_gpu_memory_fraction=0.1)
    assert (none.kv_cache_gib, none.kv_tokens, none.cached_requests) == (0.0, 0, 0)


def test_the_dry_runs_pool_is_that_of_the_context_where_nothing_is_set() -> None:
    result = plain_budget()
    assert result.temporary_kv_gib == pytest.approx(
        (163_840 + 32) * result.kv_bytes_per_token / GIB
    )


def test_drafts_of_a_model_without_a_layer_for_them_take_no_weights() -> None:
    plain, drafting = (plain_budget(GPT_OSS, mtp_draft_tokens=tokens) for tokens in (0, 1))
    assert drafting.weights_gib == plain.weights_gib
    assert plain_budget(R1, mtp_draft_tokens=1).weights_gib > plain_budget(R1).weights_gib


def test_experts_of_a_rank_that_holds_them_whole_are_padded_less() -> None:
    """Of 2880 channels, four ranks that split experts hold 720 each, padded to 768."""
    facts = checkpoint.gather(GPT_OSS)
    experts = sum(g.nbytes for g in facts.groups if g.role == "routed_expert" and g.dtype == "U8")

    def padding(sharding: Sharding) -> float:
        padded, plain = (weights_bytes(facts, sharding, False, b) for b in (None, "CUTLASS"))
        return (padded - plain) * sharding.tensor_parallel_size / experts + 1

    hidden = 3072 / 2880
    assert padding(Sharding(4)) == pytest.approx(hidden * 768 / 720)
    assert padding(Sharding(4, **ALL_EP)) == pytest.approx(hidden * 2944 / 2880)
    assert padding(Sharding(4, moe_expert_parallel_size=2)) == pytest.approx(hidden * 1536 / 1440)


def test_a_cache_of_an_unknown_kind_counts_as_the_most_that_a_model_has() -> None:
    assert kv_dtype_bytes("fp6", "FP8") == kv_dtype_bytes("auto", "fp6") == 2


def test_a_window_of_its_own_for_every_layer_is_that_layers() -> None:
    facts, one = checkpoint.gather(GPT_OSS), Sharding(1)
    layer = 36_864 // 36
    assert kv_bytes_per_token(facts, one, 1, 0, max_attention_window=(64,)) == 36 * layer
    assert state_bytes_per_request(facts, one, 1, (64,)) == 0
    windows = (64, *(8192,) * 35)
    assert kv_bytes_per_token(facts, one, 1, 0, max_attention_window=windows) == 35 * layer
    assert state_bytes_per_request(facts, one, 2, windows) == 64 * layer * 2


def test_stages_share_layers_rounded_up_and_drafts_are_kept_by_the_last() -> None:
    facts = checkpoint.gather(V32)
    for stages, layers in {2: 31, 3: 21, 61: 1}.items():
        sharding = Sharding(1, pipeline_parallel_size=stages)
        assert kv_bytes_per_token(facts, sharding, 1, 2) == (layers + 2) * 708
        assert kv_bytes_per_token(facts, sharding, 1, 2, "one") == (layers + 1) * 708
        assert kv_bytes_per_token(facts, sharding, 1, 0, "one") == layers * 708
