"""The numbers of each preset that decide whether it runs and how fast.

The golden bundles hold them too, among thousands of lines that `--update-golden` rewrites.
"""

from __future__ import annotations

import pytest

from builder import deployment, pipeline

# The parallelism (tensor, expert, attention data), the largest batch in requests and in tokens (`-`
# is the engine's own default), the share of free memory for the KV cache, tokens drafted in a step,
# and GiB of weights on each GPU.
TABLE = """
preset                                tp  ep    adp  requests  tokens    kv  drafts  weights_gib
deepseek-r1-0528-nvfp4-b200            8   8  False        16    8192   0.8       3         51.2
deepseek-r1-0528-nvfp4-gb200           4   4   True       256    8192   0.8       1        109.8
deepseek-r1-0528-nvfp4-gb200x16       16  16   True       256    8192   0.8       1         41.6
deepseek-v3.2-fp8-gb200                4   -      -        64       -   0.8       3        163.1
deepseek-v3.2-fp8-h200                 8   -      -        64       -   0.8       3         83.6
deepseek-v3.2-gb200x32-prefill         8   8   True        32    8192   0.9       -         63.0
deepseek-v3.2-nvfp4-b300               8   8  False        16   10176   0.8       3         53.1
deepseek-v3.2-nvfp4-gb200              4   -      -        64       -   0.8       3        100.4
deepseek-v3.2-nvfp4-gb200x32           8   8   True         8    8192   0.9       -         63.0
deepseek-v3.2-nvfp4-gb300              2   2  False        64    8192   0.8       3        195.1
deepseek-v3.2-nvfp4-gb300-decode       2   2  False        64     256   0.9       3        195.1
deepseek-v3.2-nvfp4-gb300-prefill      2   2   True         8   16512   0.6       3        202.6
deepseek-v4-pro-b200                   8   8   True        16    8192   0.5       -        121.7
glm-5-nvfp4-gb200                      4   4   True       256    8192   0.8       1        132.1
gpt-oss-120b-b200                      4   4   True       640   20000  0.85       -         18.2
gpt-oss-120b-h200                      1   -      -        64   20000  0.85       -         60.8
kimi-k2.5-nvfp4-gb200                  4   4   True        64   12288   0.6       -        151.1
llama-3.3-70b-fp8-h100                 1   -      -         8    8192   0.8       4         70.0
llama-tiny                             1   -      -        16    8192   0.8       -          0.0
minimax-m2.5-nvfp4-b300                4   4  False        32    8192   0.9       3         31.4
nemotron-3-super-nvfp4-b200            1   1      -        64    2048   0.8       6         73.6
nemotron-3-ultra-nvfp4-gb300           4   4   True       256    2048   0.8       -        104.3
qwen3-235b-nvfp4-gb200                 4   4   True       128    8192   0.8       -         35.7
qwen3.5-397b-nvfp4-b300                4   4  False        64    8192   0.9       3         58.4
"""
# The same of vLLM's: tensor parallel size, copies of the attention, requests and tokens of a step,
# the share of all memory, the type of the KV cache, tokens drafted, and GiB of weights on each GPU.
VLLM_TABLE = """
preset                          tp  dp  requests  tokens  memory  kv_dtype  drafts  weights_gib
deepseek-v3.2-nvfp4-b300-vllm    8   -        16    8192     0.9       fp8       3         53.1
deepseek-v3.2-nvfp4-gb300-vllm   2   -        64   20480     0.9      auto       -        184.1
llama-3.3-70b-fp8-h100-vllm      2   -        16    8192     0.9         -       4         35.0
minimax-m2.5-nvfp4-b300-vllm     4   -        32    8192     0.9       fp8       3         31.4
qwen3.5-397b-nvfp4-b300-vllm     4   -        64    8192     0.9       fp8       3         58.4
"""


def rows(table: str) -> dict[str, list[str]]:
    return {row.split()[0]: row.split()[1:] for row in table.strip().splitlines()[1:]}


ROWS, VLLM_ROWS = rows(TABLE), rows(VLLM_TABLE)


def test_the_tables_have_every_preset() -> None:
    assert sorted([*ROWS, *VLLM_ROWS]) == deployment.preset_names()


@pytest.mark.parametrize("preset", ROWS)
def test_a_preset_has_the_numbers_of_the_table(preset: str) -> None:
    planned = pipeline.plan(preset)
    options = planned.engine.options
    drafts = options.get("speculative_config") or {}
    found = (
        options["tensor_parallel_size"],
        options.get("moe_expert_parallel_size"),
        options.get("enable_attention_dp"),
        options["max_batch_size"],
        options.get("max_num_tokens"),
        options["kv_cache_config"]["free_gpu_memory_fraction"],
        drafts.get("num_nextn_predict_layers") or drafts.get("max_draft_len"),
        round(planned.plan.budget.weights_gib, 1),
    )
    assert ["-" if value is None else str(value) for value in found] == ROWS[preset]


@pytest.mark.parametrize("preset", VLLM_ROWS)
def test_a_preset_of_vllm_has_the_numbers_of_its_table(preset: str) -> None:
    planned = pipeline.plan(preset)
    options = planned.engine.options
    found = (
        options["tensor_parallel_size"],
        options.get("data_parallel_size"),
        options["max_num_seqs"],
        options["max_num_batched_tokens"],
        options["gpu_memory_utilization"],
        options.get("kv_cache_dtype"),
        (options.get("speculative_config") or {}).get("num_speculative_tokens"),
        round(planned.plan.budget.weights_gib, 1),
    )
    assert ["-" if value is None else str(value) for value in found] == VLLM_ROWS[preset]
