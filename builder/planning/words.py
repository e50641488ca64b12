"""The words that rows of the practice may ask for: the request, and what is decided so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .case import Case


def of_request(case: Case) -> dict[str, Any]:
    """What a deployment and its facts tell before anything is decided.

    `concurrency` counts the requests of one instance, `workload_concurrency` those of the whole
    service: of these only the second is the same for both sides of disaggregated serving.
    """
    workload, slo = case.deployment.workload, case.deployment.slo
    facts, quantization = case.facts, case.facts.checkpoint.quantization
    return {
        "role": case.deployment.role,
        "model_type": facts.checkpoint.config.get("model_type"),
        "moe": facts.checkpoint.architecture.experts_field is not None,
        "precision": facts.checkpoint.precision,
        "quantized": quantization.quant_algo is not None,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        "gpu": facts.gpu.name,
        "sm": facts.gpu.sm.value,
        "num_gpus": case.num_gpus,
        "concurrency": case.concurrency,
        "workload_concurrency": workload.concurrency,
        "isl": workload.isl,
        "osl": workload.osl,
        "itl_slo": bool(slo and slo.itl_ms),
        "longest_context": facts.checkpoint.text_config.get("max_position_embeddings"),
    }


def of_decisions(case: Case) -> Mapping[str, Any]:
    """What follows from the decisions so far, and from the engine's defaults for the rest."""
    attention_dp = case.value("enable_attention_dp")
    size, batch = case.value("tensor_parallel_size"), case.value("max_batch_size")
    draft = case.deployment.draft
    decoding_type = case.given("speculative_config.decoding_type")
    return {
        "tensor_parallel_size": size,
        "attention_dp": attention_dp,
        "requests_per_rank": -(-case.concurrency // (size if attention_dp else 1)),
        "max_batch_size": batch,
        "chunked_prefill": case.value("enable_chunked_prefill"),
        "speculation": draft.method if draft else decoding_type,
        "batch_tokens": batch * (1 + case.draft_tokens()) if batch else None,
        "prompt_tokens": batch * case.deployment.workload.isl if batch else None,
    }
