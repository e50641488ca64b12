"""What the engine has to tell so that it can be watched."""

from __future__ import annotations

from .case import Case

MONITORING = "monitoring"
# Source: NVIDIA/TensorRT-LLM, tensorrt_llm/serve/openai_server.py and metrics/collector.py; the
# toolkit's Triton model, trtllm_model/metrics.py.
_OPTIONS = {
    "return_perf_metrics": (
        "The engine measures each request, which the monitoring's latencies, queue times and "
        "acceptance of draft tokens come from."
    ),
    "enable_iter_perf_stats": (
        "The engine counts each step, which the monitoring's load and KV cache come from."
    ),
}


def decide(case: Case) -> None:
    """Only where somebody watches: it costs the engine a little time."""
    if MONITORING not in case.deployment.targets:
        return
    for option, reason in _OPTIONS.items():
        if case.accepts(option, True):
            case.decide(option, True, reason, "derived", f"targets.{MONITORING}")
