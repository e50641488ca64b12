"""Names: how sources write models, GPUs, precisions, engines, releases and layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from ..errors import BadFacts, BadInput
from ..facts import checkpoint, data_file, engines, hardware, model_names
from ..facts.checkpoint import Checkpoint
from ..schema import Text
from .measurements import MEASUREMENTS, Row, layout_text
from .question import Question

MODELS = MEASUREMENTS / "models.yaml"

# How publishers mark the precision of a copy of a checkpoint at the end of its name.
_PRECISION = re.compile(
    r"([-_.](?:nvfp4|mxfp4|fp4|fp8|bf16|int[48]|w4a16|w8a8|awq|gptq|quantized|dynamic|block|kv))+"
    r"(?:-v\d+)?$",
    re.I,
)
# What surrounds the name of a GPU; a board of PCIe or NVL is slower, and another GPU.
_VENDOR = re.compile(r"^nvidia_")
_BOARD = re.compile(r"(?:_(?:sxm\d?|ac|nvl\d+|hgx|\d+gb|hbm\d?e?|tensor_core_gpu))+$")
_MEMORY = re.compile(r"_(\d+)gb")
MEMORY_APART = 0.1  # 180, 183 and 192 GB are one board's; H100 has 80 GB, and 94 GB with NVL
_PRECISIONS = {
    **dict.fromkeys(("nvfp4", "mxfp4", "mixed_nvfp4"), "fp4"),
    **dict.fromkeys(("fp8_block", "fp8_block_scales", "fp8_pb_wo", "fp8_e4m3", "mxfp8"), "fp8"),
    **dict.fromkeys(("float8", "fp8_dynamic", "fp8_static", "fp8_per_tensor", "fp8_kv"), "fp8"),
    **dict.fromkeys(("bfloat16", "float16", "fp16"), "bf16"),
    **dict.fromkeys(("w4a16", "w4a16_awq", "awq", "int4_wo"), "int4"),
    **dict.fromkeys(("w4a16_gptq", "gptq", "w4a16_nvfp4"), "int4"),  # 4 bits, 16-bit arithmetic
    **dict.fromkeys(("w4a8_awq", "w4a8_nvfp4_fp8", "w4a8_mxfp4_fp8"), "w4a8"),
    "w8a16_gptq": "w8a16",
    "w8a8_int8": "int8",
}
# A version in a text: of an image it is in the tag, behind the registry and the repository.
_VERSION = re.compile(r"(?<![a-z0-9.])v?(\d+(?:\.\d+)+(?:[.+-]?[a-z0-9]+)*)", re.I)
_SAID = ("bf16", "fp8", "fp4", "int4")  # what sources call weights that are of one precision
_ENGINES = dict.fromkeys(("trt", "trtllm", "trt_llm", "tensorrtllm"), engines.default().name)
# Options of an engine that make the layout of a server.
LAYOUT_SIZES = ("tensor_parallel_size", "data_parallel_size", "moe_expert_parallel_size")
STAGES = "pipeline_parallel_size"
LAYOUT_SWITCHES = ("enable_attention_dp", "enable_expert_parallel")
# Where the number of draft tokens is: a plan's name of it, and those of releases.
DRAFTS = (
    "mtp_draft_tokens",
    *(
        f"speculative_config.{name}"
        for name in ("num_nextn_predict_layers", "max_draft_len", "num_speculative_tokens")
    ),
)


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model of the rows: a checkpoint with its shape, and its names without vendor and precision.
    Checkpoints of one shape have one speed. `precision` is that of its weights if there is only
    one, whatever a source calls it."""

    shape: Text
    names: tuple[Text, ...]
    precision: Text | None = None


MEASURED_MODELS = dict[Literal["models"], Mapping[str, MeasuredModel]]


def measured_models() -> Mapping[str, MeasuredModel]:
    found: Mapping[str, MeasuredModel] = data_file.load(MODELS, MEASURED_MODELS)["models"]
    return found


def listed(name: str) -> str | None:
    """The name in the rows of a checkpoint, if its own name is listed."""
    return _by_name().get(plain_name(name))


def plain_name(name: str) -> str:
    """A checkpoint's name without vendor and precision, in lower case and with hyphens."""
    name = re.sub(r"[\s_]+", "-", name.strip("/ ").rpartition("/")[2])
    return _PRECISION.sub("", name).casefold()


@cache
def _by_name() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for model, row in measured_models().items():
        found |= dict.fromkeys(map(plain_name, (model, *row.names)), model)
    return found


@cache
def model_name(reference: str) -> str:
    """The name in the rows of a checkpoint, found by its name or its shape; else its own name."""
    if found := listed(reference):
        return found
    facts = facts_of(reference)
    return plain_name(reference) if facts is None else of_checkpoint(facts)


def of_checkpoint(facts: Checkpoint) -> str:
    """The same for a checkpoint with known facts, whatever the name of its folder."""
    if found := listed(facts.name):
        return found
    identity = facts.architecture.name, facts.parameters
    for model, row in measured_models().items():
        other = checkpoint.gather(row.shape)
        if (other.architecture.name, other.parameters) == identity:
            return model
    return plain_name(facts.name)


@cache
def facts_of(reference: str) -> Checkpoint | None:
    """The facts of a measured model or of a checkpoint; `None` if they are unknown."""
    models = measured_models()
    try:
        if reference in models:
            return checkpoint.gather(models[reference].shape)
        return checkpoint.gather(_shipped(reference) or reference)
    except (BadFacts, BadInput):
        return None


def _shipped(reference: str) -> str | None:
    """The name of shipped facts of the same checkpoint from any vendor, in any precision."""
    names = {**model_names.known_aliases(), **model_names.known_names()}
    if reference in names:
        return reference
    same = (name for name in sorted(names) if plain_name(name) == plain_name(reference))
    return next(same, None)


@cache
def gpu_name(name: str) -> str:
    """The GPU by its name in `builder/data/hardware`: h100 for h100_sxm."""
    whole = _VENDOR.sub("", _words(name))
    if whole in hardware.known():
        return whole
    if product := _products().get(whole):
        return product
    found = _BOARD.sub("", whole)
    sizes = [int(size) for size in _MEMORY.findall(whole.removeprefix(found))]
    return found if all(_has_memory(found, size) for size in sizes) else whole


@cache
def _products() -> Mapping[str, str]:
    """GPUs by their names in the driver."""
    products = ((hardware.load(name).kubernetes_product.value, name) for name in hardware.known())
    return {_VENDOR.sub("", _words(product)): name for product, name in products}


def _has_memory(gpu: str, gb: int) -> bool:
    """Whether a GPU has about so much memory; other boards of the same name have more or less."""
    if gpu not in hardware.known():
        return True
    return abs(gb / hardware.load(gpu).memory_nominal_gb.value - 1) <= MEMORY_APART


def _words(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def weight_precision(name: str) -> str:
    """The precision of weights as in the rows: fp4 for NVFP4 and MXFP4.

    Formats with the same size and arithmetic have the same speed.
    """
    return _PRECISIONS.get(_words(name), name.strip().lower())


def named_precision(reference: str) -> str | None:
    """The precision at the end of a checkpoint's name, if there is one."""
    found = _PRECISION.search(re.sub(r"[\s_]+", "-", reference.strip("/ ")))
    marks = re.split(r"[-_.]", found[0].casefold()) if found else ()
    said = (weight_precision(mark) for mark in marks)
    return next((precision for precision in said if precision in _SAID), None)


def precision_of(model: str, name: str) -> str:
    """The same for a model of the rows, which may have one precision only."""
    known, found = measured_models().get(model), weight_precision(name)
    return known.precision if known and known.precision and found in _SAID else found


def engine_name(name: str) -> str:
    """tensorrt_llm for tensorrt-llm, trtllm, TensorRT-LLM and TensorRT LLM."""
    name = _words(name)
    return _ENGINES.get(name, name)


def release_name(name: str | None) -> str | None:
    """1.2.1 for v1.2.1, and for an image, a package or a sentence with it as the first version."""
    if not name:
        return None
    found = _VERSION.search(re.sub(r"\S*/|@sha256:\S*", "", name))
    return found[1] if found else name


def in_row_names(question: Question) -> Question:
    model = model_name(question.model)
    return replace(
        question,
        model=model,
        gpu=gpu_name(question.gpu),
        precision=precision_of(model, question.precision),
        engine=engine_name(question.engine),
        release=release_name(question.release),
    )


def layout_of(values: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """TP, attention DP, EP and draft tokens of the options of an engine."""
    copies = int(values.get("data_parallel_size") or 1)
    gpus = int(values.get("tensor_parallel_size") or 1) * copies
    attention_dp = gpus if values.get("enable_attention_dp") else copies
    experts = gpus if values.get("enable_expert_parallel") else 1
    drafts = [value for path in DRAFTS if isinstance(value := values.get(path), int)]
    ep = int(values.get("moe_expert_parallel_size") or experts)
    return gpus // attention_dp, attention_dp, ep, max(drafts, default=0)


def as_run(question: Question, rows: Sequence[Row]) -> tuple[Question, str]:
    """The question with the layout that was run, and a note if it differs.

    Public listings write TP64/EP8 for 8 GPUs with EP 8, and similar products; repaired rows keep
    that text. A question is read in the same way if no node has so many GPUs, the rows of one
    layout of the model and engine have that text, and no row of its GPU and precision has that
    layout.
    """
    facts = facts_of(question.model)
    if question.ep > 1 and facts and not experts_of(facts):
        note = f"ep {question.ep} is read as 1: the model has no experts"
        return replace(question, ep=1), note
    model, engine = model_name(question.model), engine_name(question.engine)
    kind = gpu_name(question.gpu), precision_of(model, question.precision), engine
    asked = question.layout
    text = layout_text(*asked)
    listed = {row.layout for row in rows if row.published == text and row.engine == engine}
    own = (row.layout for row in rows if (row.gpu, row.precision, row.engine) == kind)
    if len(listed) != 1 or asked in own or _fits_a_node(question.num_gpus, kind[0]):
        return question, ""
    tp, attention_dp, ep = listed.pop()
    note = f"{text} is read as {layout_text(tp, attention_dp, ep)}: so public listings write it"
    return replace(question, tp=tp, attention_dp=attention_dp, ep=ep), note


def _fits_a_node(num_gpus: int, gpu: str) -> bool:
    return gpu in hardware.known() and num_gpus <= hardware.load(gpu).gpus_per_node.value


def experts_of(facts: Checkpoint) -> int:
    """The experts of a layer; 0 in a dense model."""
    field = facts.architecture.experts_field
    return int(facts.text_config[field]) if field else 0
