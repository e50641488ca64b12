"""The memory of one GPU: weights, KV cache, graphs and the rest, as pure arithmetic.

Everything is counted in GiB of what CUDA reports. Formulas and constants were checked against
published TensorRT-LLM logs of GB200 runs and capacity tables of H100 and GB300: NVIDIA CI logs of
early 2026 (HuiGao-NV/TensorRT-LLM@31d1a1e case_fraction_map.txt), tech blogs 3 and 20, and the
KV-capacity tests of ai-dynamo/aiconfigurator@095f58a. The tests compute and print the errors:

- weights of 28 logs: 0.2 to 6.6 GiB over the computed, as a log holds workspaces and graphs too;
- six outliers hold 8 to 36 GiB more: prefill servers of DeepSeek-R1 (two) and V3.2 (three) with
  attention data parallelism and MTP, explained to 0.6 GiB by the workspace of MTP's BF16 experts,
  and one of Kimi-K2.5, of which only the shape of Kimi-K2 is known;
- whole budgets: within 2 GiB of 15 logs of aggregated and prefill servers that tell
  `max_num_tokens`, but 8.7 GiB short for V3.2 with attention data parallelism, MTP and CUTLASS
  experts; decode servers up to 7.9 GiB short;
- capacities of 72 dense servers: 0.3 percent in the mean, 2.3 at most.
"""

from __future__ import annotations

from .budget import Budget, Load, budget
from .kv_cache import MtpLayers, kv_bytes_per_token, kv_dtype_bytes, state_bytes_per_request
from .weights import Sharding, weights_bytes
from .workspace import GIB

__all__ = [
    "GIB",
    "Budget",
    "Load",
    "MtpLayers",
    "Sharding",
    "budget",
    "kv_bytes_per_token",
    "kv_dtype_bytes",
    "state_bytes_per_request",
    "weights_bytes",
]
