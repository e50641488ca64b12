"""What a diagnostic suggests: the name that was misspelt, and nothing for another name."""

from __future__ import annotations

import pytest

from builder.diagnostics import closest, nearest
from builder.facts import hardware, model_names, release

OPTIONS = list(release.load("1.2.1").top_level)
MODELS = list(model_names.known_names())
GPUS = hardware.known()
FLAGS = ["--tp_size", "--pp_size", "--ep_size", "--max_batch_size", "--max_num_tokens", "--host"]

# As people mistype: letters that changed places, are lost, doubled or wrong, separators, capitals,
# a part of a name for the whole.
TYPOS = [
    ("tensor_paralel_size", "tensor_parallel_size", OPTIONS),
    ("tensor_parallel_szie", "tensor_parallel_size", OPTIONS),
    ("tensor-parallel-size", "tensor_parallel_size", OPTIONS),
    ("tensorParallelSize", "tensor_parallel_size", OPTIONS),
    ("tensor_parallel", "tensor_parallel_size", OPTIONS),
    ("max_num_token", "max_num_tokens", OPTIONS),
    ("max_num_tokns", "max_num_tokens", OPTIONS),
    ("max_bacth_size", "max_batch_size", OPTIONS),
    ("max_batchsize", "max_batch_size", OPTIONS),
    ("max_batch_sice", "max_batch_size", OPTIONS),
    ("max_seq_length", "max_seq_len", ["max_seq_len", "max_seq_lens_beside"]),
    ("MAX_SEQ_LEN", "max_seq_len", OPTIONS),
    ("kv_cache_confg", "kv_cache_config", OPTIONS),
    ("kvcache_config", "kv_cache_config", OPTIONS),
    ("kv_cache_configs", "kv_cache_config", OPTIONS),
    ("kv_cache", "kv_cache_config", OPTIONS),
    ("cuda_graph", "cuda_graph_config", OPTIONS),
    ("cudagraph_config", "cuda_graph_config", OPTIONS),
    ("speculative_conifg", "speculative_config", OPTIONS),
    ("moe_conifg", "moe_config", OPTIONS),
    ("enable_attention_db", "enable_attention_dp", OPTIONS),
    ("enable_attn_dp", None, OPTIONS),
    ("disable_overlap_schedular", "disable_overlap_scheduler", OPTIONS),
    ("stream_intervall", "stream_interval", OPTIONS),
    ("ax_batch_size", "max_batch_size", OPTIONS),
    ("free_gpu_memory_fracton", "free_gpu_memory_fraction", ["free_gpu_memory_fraction", "dtype"]),
    ("gpu_memory_fraction", "free_gpu_memory_fraction", ["free_gpu_memory_fraction", "dtype"]),
    ("tokens_per_blok", "tokens_per_block", ["tokens_per_block", "dtype"]),
    ("decod", "decode", ["prefill", "decode", "agg"]),
    ("prefil", "prefill", ["prefill", "decode", "agg"]),
    ("aggregate", "aggregated", ["prefill", "decode", "aggregated"]),
    ("MPT", "MTP", ["MTP", "Eagle", "NGram"]),
    ("mtp", "MTP", ["MTP", "Eagle", "NGram"]),
    ("CUTLAS", "CUTLASS", ["CUTLASS", "TRTLLM", "WIDEEP"]),
    ("TRTLM", "TRTLLM", ["CUTLASS", "TRTLLM", "WIDEEP"]),
    ("GUARANTED_NO_EVICT", "GUARANTEED_NO_EVICT", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]),
    ("--tpsize", "--tp_size", FLAGS),
    ("--tp-size", "--tp_size", FLAGS),
    ("--max_num_token", "--max_num_tokens", FLAGS),
    ("--hots", "--host", FLAGS),
    ("TRTLLM_ENABLE_PDLL", "TRTLLM_ENABLE_PDL", ["TRTLLM_ENABLE_PDL", "TLLM_LOG_LEVEL"]),
    ("TRTLM_ENABLE_PDL", "TRTLLM_ENABLE_PDL", ["TRTLLM_ENABLE_PDL", "TLLM_LOG_LEVEL"]),
    ("bg200", "gb200", GPUS),
    ("GB-200", "gb200", GPUS),
    ("h1000", "h100", GPUS),
    ("B200", "b200", GPUS),
    ("rtx_pro6000", "rtx_pro_6000", GPUS),
    ("nvidia/DeepSek-V3.2-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4", MODELS),
    ("nvidia/DeepSeek-V3.2-NVPF4", "nvidia/DeepSeek-V3.2-NVFP4", MODELS),
    ("nvidia/deepseek-v3.2-nvfp4", "nvidia/DeepSeek-V3.2-NVFP4", MODELS),
    ("nvidia/DeepSeek_V3.2_NVFP4", "nvidia/DeepSeek-V3.2-NVFP4", MODELS),
]

# Names of their own, for which another one would be wrong help.
OTHERS = [
    ("quant_config", OPTIONS),
    ("build_config", OPTIONS),
    ("model_config", OPTIONS),
    ("enable_lora_x", ["enable_trt_overlap"]),
    ("min_tokens", ["max_tokens"]),
    ("max_input_len", ["max_output_len", "max_seq_len"]),
    ("encode", ["decode", "prefill"]),
    ("enable_prefix", ["disable_prefix"]),
    ("gh200", ["gb200", "h200", "b200"]),
    ("gb10", ["gb200", "b100"]),
    ("a10", ["a100", "h100"]),
    ("h20", ["h200", "h100", "b200"]),
    ("l40", ["l40s"]),
    ("mi300x", GPUS),
    ("fp4", ["fp8", "auto", "nvfp4"]),
    ("float16", ["bfloat16", "auto"]),
    ("int8", ["fp8", "auto"]),
    ("tp_size", ["pp_size", "ep_size"]),
    ("tp", ["pp", "ep", "cp"]),
    ("--dp_size", FLAGS),
    ("--gpus", FLAGS),
    ("nvidia/DeepSeek-R1-FP4", ["nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"]),
    ("deepseek-ai/DeepSeek-V3", ["deepseek-ai/DeepSeek-V3.2", "nvidia/DeepSeek-V3.2-NVFP4"]),
    ("nvidia/DeepSeek-V3.3-NVFP4", ["nvidia/DeepSeek-V3.1-NVFP4", "nvidia/DeepSeek-V3.2-NVFP4"]),
    ("openai/gpt-oss-20b", ["openai/gpt-oss-120b"]),
    ("meta-llama/Llama-3.1-70B", ["meta-llama/Llama-3.1-8B"]),
    ("Qwen/Qwen3-32B", ["Qwen/Qwen3-32B-FP8"]),
    ("zai-org/GLM-5", ["nvidia/Kimi-K2-Thinking-NVFP4"]),
    ("v1.3.0", ["v1.2.0"]),
    ("TRTLLM_MY_OWN_SWITCH", ["TRTLLM_ENABLE_PDL"]),
    ("", GPUS),
    ("x", OPTIONS),
    ("a" * 300, OPTIONS),
]


@pytest.mark.parametrize(("given", "meant", "known"), TYPOS, ids=[row[0] for row in TYPOS])
def test_a_misspelt_name_is_recognised(given: str, meant: str | None, known: list[str]) -> None:
    assert closest(given, known) == meant


@pytest.mark.parametrize(("given", "known"), OTHERS, ids=[row[0][:30] for row in OTHERS])
def test_another_name_is_not_taken_for_a_misspelt_one(given: str, known: list[str]) -> None:
    assert closest(given, known) is None


def test_without_a_suggestion_a_short_list_is_given_whole() -> None:
    assert nearest("fp4", ["auto", "fp8"]) == "Known: auto, fp8"
    many = [f"name_{letter}" for letter in "abcdefghijklmnopqrst"]
    assert nearest("other", many) == "one of 20 known names is expected"
    told = nearest("eagle9", [*many, "eagle", "eagle_3", "beagle"])
    assert told == "one of 23 known names is expected, as eagle or eagle_3"
