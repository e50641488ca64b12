"""What a deployment must keep to: the GPU, the release, the model's context, the workload."""

from __future__ import annotations

from ..errors import Problem
from .case import Case


def check_request(case: Case) -> None:
    """The GPU has the checkpoint's arithmetic, the release the model, the model the context."""
    facts, workload = case.facts, case.deployment.workload
    precision, gpu = facts.checkpoint.precision, facts.gpu
    if precision not in gpu.precisions:
        what = f"{gpu.name} has no {precision} arithmetic, which {case.deployment.checkpoint} needs"
        remedy = f"use a checkpoint in {', '.join(gpu.precisions)}, or a GPU that has {precision}"
        case.problems.append(Problem("hardware.gpu", what, remedy))
    name, release = facts.checkpoint.architecture.name, facts.release
    if reason := release.unsupported(name):
        what = f"release {release.name} does not serve {name}: {reason}"
        case.problems.append(Problem("engine.release", what, "choose a later release"))
    if "model" in case.overrides:
        remedy = "name the model by checkpoint"
        case.problems.append(Problem("engine_config.model", "is set by the toolkit", remedy))
    length = workload.isl + workload.osl
    longest = facts.checkpoint.text_config.get("max_position_embeddings")
    if longest is not None and length > longest:
        what = f"isl + osl is {length} tokens, the model's longest context is {longest}"
        case.problems.append(Problem("workload", what, "shorten isl or osl"))


def check_batch(case: Case) -> bool:
    """Whether a batch holds a request at all."""
    batch = case.value("max_batch_size")
    if batch is not None and batch < 1:
        _too_small(case, "max_batch_size", batch, "give at least 1")
        return False
    return True


def check_lengths(case: Case) -> None:
    """Limits that the user set must let the workload through."""
    workload = case.deployment.workload
    length = workload.isl + (0 if case.deployment.role == "prefill" else workload.osl)
    tokens, longest = case.value("max_num_tokens"), case.overrides.get("max_seq_len")
    reads_prompts = case.deployment.role != "decode"
    if reads_prompts and tokens < workload.isl and not case.value("enable_chunked_prefill"):
        remedy = f"give at least workload.isl {workload.isl}, or set enable_chunked_prefill"
        _too_small(case, "max_num_tokens", tokens, remedy)
    if longest is not None and longest < length:
        _too_small(case, "max_seq_len", longest, f"give at least isl + osl, {length}")


def _too_small(case: Case, path: str, value: int, remedy: str) -> None:
    what = f"{value} is too small for the workload"
    case.problems.append(Problem(f"engine_config.{path}", what, remedy))
