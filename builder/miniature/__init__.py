"""Writes a tiny checkpoint with random weights and the architecture of a large one.

It keeps the quantization layout and the MTP shape. Weights are drawn in their storage format, so
only the standard library is needed. The model behaves like a small language model in two ways that
rehearsals need: its text consists of whole words, and its MTP layer often predicts the next token,
as does the miniature of a draft that is written with it.
Its tokenizer is a byte-level BPE over a list of common words.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import floor, log2, prod, sqrt
from pathlib import Path
from typing import Any

from ..facts.architecture import Architecture, Tensors
from ..facts.checkpoint import Checkpoint, from_document
from ..facts.checkpoint_files import Stored, write_safetensors
from ..facts.quantization import Quantization
from ..facts.quantization_config import modelopt_name
from ..facts.weight_layouts import NVFP4_GROUP, Groups
from .sizes import BOS, EOS, NOT_DRAFTED, PRODUCER, Vocabulary, shrunk

# RMS of a linear layer's output over its input: small enough that the residual stream, and so the
# last token, decides most of the next token; large enough that the context matters.
LINEAR_GAIN = 0.35
LOGIT_RMS = 8.0
ATTENDED = 16  # dimensions of an embedding that tell it from others
E4M3_TOP = 448.0
_QUANTIZED_BY = ("quantization_config", "compression_config")
E2M1_RMS = sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
E4M3_RMS = 22.0  # of bytes drawn by `_E4M3_BYTES`: magnitudes 8 to 30
_INT4_RMS = 4.6  # of the sixteen codes
# Of drawn weights by their dtype; codes of FP4 have scales that say it otherwise.
_RMS = {"F8_E4M3": E4M3_RMS, "U8": _INT4_RMS, "I32": _INT4_RMS, "I8": 74.0}
_ZERO_POINTS = 0x88  # two zero points of INT4 in the middle of their range


# Embeddings and output heads by their kind and shape.
Ends = dict[tuple[str, tuple[int, ...]], bytes]


def write(
    checkpoint: Checkpoint,
    folder: Path,
    seed: int = 0,
    head_size: int | None = None,
    ends: Ends | None = None,
) -> None:
    """Write the miniature of `checkpoint` into `folder`, which must exist and be empty.

    `head_size` is the smallest that an engine's kernels support. Models of the same `ends`, which
    the first one fills, go on from a word with much the same words.
    """
    vocabulary = Vocabulary.build()
    architecture = checkpoint.architecture
    config = shrunk(checkpoint, vocabulary, head_size)
    quantization = _rewrite_excludes(checkpoint, architecture.text(config))
    if inline := config.get("quantization_config"):
        config["quantization_config"] = _inline(inline, quantization)
    tensors = _tensors(architecture, config, quantization, vocabulary, random.Random(seed), ends)
    write_safetensors(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", config)
    if quantization.quant_algo and quantization.source == "hf_quant_config.json":
        _write_json(folder / "hf_quant_config.json", _hf_quant_config(quantization))
    write_tokenizer(folder)


def write_pair(model: Checkpoint, draft: Checkpoint | None, folder: Path, drafted: Path) -> None:
    """Write the miniatures of a model and of its draft, some of whose guesses are right.

    Of a draft without known facts, `None`, a head as EAGLE-3 has them is written.
    """
    ends: Ends = {}
    write(model, folder, ends=ends)
    if draft is None:
        draft = _eagle3_head(model)
    elif not draft.architecture.draft_head:
        tied = model.text_config.get("tie_word_embeddings", False)
        draft = replace(draft, config={**draft.config, "tie_word_embeddings": tied})
    write(draft, drafted, seed=1, ends=ends)


def _eagle3_head(model: Checkpoint) -> Checkpoint:
    """A draft head of the usual form, for the width of a model."""
    text = model.text_config
    fields = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": 4 * text["hidden_size"],
        "num_key_value_heads": text["num_attention_heads"],
        "draft_vocab_size": text["vocab_size"] - 1,
    }
    for name in ("hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"):
        fields[name] = text[name]
    rest = {"name": "draft", "source": "assumed", "quantization": {}}
    return from_document({"config": fields, **rest})


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer of every miniature and its end-of-text token."""
    vocabulary = Vocabulary.build()
    _write_json(folder / "tokenizer.json", vocabulary.tokenizer_json())
    _write_json(folder / "tokenizer_config.json", vocabulary.tokenizer_config())
    ids = {"bos_token_id": vocabulary.ids[BOS], "eos_token_id": vocabulary.ids[EOS]}
    _write_json(folder / "generation_config.json", ids)


def unquantized(checkpoint: Checkpoint) -> Checkpoint:
    """The same model in BF16, for engines without kernels for its format."""

    def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in _QUANTIZED_BY}

    config = plain(checkpoint.config)
    if nested := checkpoint.architecture.nested(config):
        config[nested] = plain(config[nested])
    return replace(checkpoint, config=config, quantization=Quantization())


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(
        json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
        errors="backslashreplace",
    )


def _rewrite_excludes(checkpoint: Checkpoint, text: Mapping[str, Any]) -> Quantization:
    """The exclude list for the smaller layer count, one literal name per layer as exporters write.

    The MTP layer of DeepSeek is numbered after the last decoder layer and moves with it.
    """
    found, old = checkpoint.quantization, checkpoint.text_config["num_hidden_layers"]
    new = text["num_hidden_layers"]
    modules: set[str] = set()
    for tensors in checkpoint.architecture.tensors(text):
        modules.update(re.sub(r"\.(weight|bias)$", "", name) for name in tensors.names())
    names: dict[str, None] = {}
    for pattern in found.exclude_modules:
        if re.match(rf"model\.layers\.{old}\b", pattern):
            names[pattern.replace(f".{old}", f".{new}", 1)] = None
            continue
        general = re.sub(r"layers\.\d+\.", "layers.*.", pattern)
        if re.search(r"layers\.\d+\.\*$", pattern):  # whole layers, which not all may be
            names[pattern] = None
            continue
        if pattern.startswith("mtp") or "layers.*." not in general:
            names[pattern] = None
            continue
        for layer in range(new):
            literal = general.replace("layers.*.", f"layers.{layer}.")
            if any(module.startswith(literal.rstrip("*")) for module in modules):
                names[literal] = None
    return replace(found, exclude_modules=tuple(names))


def _inline(fields: Mapping[str, Any], quantization: Quantization) -> dict[str, Any]:
    """The quantization in `config.json` with the excluded modules of the miniature."""
    excluded = {"ignore": list(quantization.exclude_modules)} if "ignore" in fields else {}
    return {**fields, **excluded}


def _hf_quant_config(quantization: Quantization) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "quant_algo": modelopt_name(quantization),
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        "group_size": NVFP4_GROUP
        if quantization.quant_algo == "NVFP4"
        else quantization.group_size,
        "exclude_modules": list(quantization.exclude_modules),
    }
    if fields["group_size"] is None:
        del fields["group_size"]
    if quantization.parts:
        parts = {
            name: {"quant_algo": part, **_size_of(quantization.groups.get(name))}
            for name, part in quantization.parts.items()
        }
        fields |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": parts}
    return {"producer": {"name": PRODUCER}, "quantization": fields}


def _size_of(groups: Groups | None) -> dict[str, int]:
    return {"group_size": groups.group_size} if groups and groups.group_size else {}


def _tensors(
    architecture: Architecture,
    config: Mapping[str, Any],
    quantization: Quantization,
    vocabulary: Vocabulary,
    rng: random.Random,
    ends: Ends | None,
) -> Iterator[tuple[Stored, bytes]]:
    is_tied = bool(architecture.text(config).get("tie_word_embeddings"))
    draw = _Draw(architecture, vocabulary, rng, is_tied, {} if ends is None else ends)
    for tensors in architecture.tensors(architecture.text(config)):
        for name in tensors.names():
            stored = quantization.stored(tensors, name)
            if len(stored) == 1:
                yield stored[0], draw.plain(tensors, stored[0])
            else:
                yield from draw.quantized(tensors, stored)
            for scale in quantization.kv_scales(architecture, tensors, name):
                yield scale, struct.pack("<f", 1.0)


# Bytes whose values have random signs and magnitudes in a narrow range, by `bytes.translate`.
_E4M3_BYTES = bytes((byte & 0x80) | 0x50 | (byte & 0x0F) for byte in range(256))
_E4M3_SCALES = bytes(0x78 | (byte & 0x06) for byte in range(256))  # 256, 320, 384 and 448


def _whole_numbers(stored: Stored, shape: tuple[int, ...]) -> bytes:
    """The integers in INT4 checkpoints: the weight's shape, the group of each input, and zero
    points."""
    if stored.name.endswith("weight_shape"):
        return struct.pack(f"<{len(shape)}q", *shape)
    if stored.name.endswith("g_idx"):
        return bytes(stored.nbytes)  # one group, as miniatures are narrow
    return bytes([_ZERO_POINTS]) * stored.nbytes


@cache
def _of_binade(exponent: int) -> tuple[bytes, bytes]:
    """The same for the low and the high byte of BF16 values with that exponent."""
    low = bytes((byte & 0x7F) | (exponent & 1) << 7 for byte in range(256))
    high = bytes((byte & 0x80) | exponent >> 1 for byte in range(256))
    return low, high


def _one(place: int, width: int, value: float = 1.0) -> bytes:
    """BF16 zeros with a value at one place."""
    zeros, place = bytearray(2 * width), place % width
    zeros[2 * place : 2 * place + 2] = struct.pack("<f", value)[2:]
    return bytes(zeros)


class _Draw:
    """Random tensors in their storage format."""

    def __init__(
        self,
        architecture: Architecture,
        vocabulary: Vocabulary,
        rng: random.Random,
        is_tied: bool,
        ends: Ends,
    ) -> None:
        self._is_tied, self._ends = is_tied, ends
        self._vocabulary = vocabulary
        self._rng = rng
        self._is_draft = architecture.draft_head
        # The norms of Qwen3.5 add one to their weight, except that of its linear attention.
        self._zero_centred = architecture.attention == "hybrid" and ("Qwen" in architecture.name)

    def plain(self, tensors: Tensors, stored: Stored) -> bytes:
        name, shape = stored.name, stored.shape
        if tensors.role == "vocabulary_map":
            return struct.pack("<q", NOT_DRAFTED) * prod(shape)
        if self._is_draft and tensors.role == "attention":
            return self._self_attention(name, shape)
        if stored.dtype == "I64":  # of experts, of which there are as few as two
            return b"".join(struct.pack("<q", self._rng.randrange(2)) for _ in range(prod(shape)))
        if stored.dtype == "F32" and tensors.role != "norm":
            return self._constant(stored, 0.0)
        if tensors.role == "norm":
            zero = name.endswith("bias") or (
                self._zero_centred and not name.endswith("linear_attn.norm.weight")
            )
            return self._constant(stored, 0.0 if zero else 1.0)
        if name.endswith(("e_score_correction_bias", "dt_bias", "A_log")):
            return self._constant(stored, 0.0)
        if tensors.role == "embedding":  # a tied one is the output head as well
            return self._head(shape) if self._is_tied else self._embedding(shape)
        if tensors.role == "lm_head":
            absent = NOT_DRAFTED if self._is_draft else 0
            return self._head((absent + shape[0], shape[1]))[2 * absent * shape[1] :]
        if tensors.role == "mtp_projection":
            return self._mtp_projection(shape)
        if tensors.role == "router":
            return self._bf16(prod(shape), 2.0 / sqrt(shape[-1]))
        return self._bf16(prod(shape), LINEAR_GAIN / sqrt(prod(shape[1:])))

    def quantized(self, tensors: Tensors, stored: list[Stored]) -> Iterator[tuple[Stored, bytes]]:
        """The weight of a linear layer, its scales and its input scale if the format has one."""
        rms = LINEAR_GAIN / sqrt(tensors.shape[1])  # the input features, fused experts or not
        weight, rest = stored[0], stored[1:]
        raw = self._rng.randbytes(weight.nbytes)
        yield weight, raw.translate(_E4M3_BYTES) if weight.dtype == "F8_E4M3" else raw
        value = _RMS[weight.dtype]
        for tensor in rest:
            if tensor.dtype in ("I32", "I64"):
                yield tensor, _whole_numbers(tensor, tensors.shape)
                continue
            if tensor.dtype == "F8_E4M3":
                yield tensor, self._rng.randbytes(tensor.nbytes).translate(_E4M3_SCALES)
            elif tensor.dtype == "U8":
                exponent = floor(log2(rms / E2M1_RMS) + 0.5) + 127  # E8M0 bytes, powers of two
                yield tensor, bytes([exponent]) * tensor.nbytes
            elif tensor.name.endswith("weight_scale_2"):
                yield tensor, struct.pack("<f", rms / (E2M1_RMS * 352.0))
            elif tensor.name.endswith("weight_global_scale"):
                yield tensor, struct.pack("<f", E2M1_RMS * 352.0 / rms)
            elif tensor.name.endswith(("input_scale", "input_global_scale", "activation_scale")):
                yield tensor, struct.pack("<f", 1.0 / E4M3_TOP)
            else:
                yield tensor, self._constant(tensor, rms / value)

    def _bf16(self, count: int, rms: float) -> bytes:
        """BF16 values of random sign in one binade, `[2^e, 2^(e+1))`, of about the given RMS.

        The RMS of a uniform draw over a binade is `sqrt(7/3) * 2^e`.
        """
        exponent = floor(log2(rms / sqrt(7 / 3)) + 0.5) + 127
        low, high = _of_binade(exponent)
        values = bytearray(2 * count)
        values[0::2] = self._rng.randbytes(count).translate(low)
        values[1::2] = self._rng.randbytes(count).translate(high)
        return bytes(values)

    def _constant(self, stored: Stored, value: float) -> bytes:
        count = prod(stored.shape)
        if stored.dtype == "F16":
            return struct.pack("<e", value) * count
        single = struct.pack("<f", value)
        return (single if stored.dtype == "F32" else single[2:]) * count

    def _embedding(self, shape: tuple[int, ...]) -> bytes:
        """The MTP layer's embedding is a copy of the main one, as in the published checkpoints."""
        key = "embedding", shape
        if key not in self._ends:
            self._ends[key] = self._bf16(prod(shape), 1.0)
        return self._ends[key]

    def _head(self, shape: tuple[int, ...]) -> bytes:
        """An output head that generates whole words: the rows of all other tokens are zero.

        The MTP layer's head is a copy of the main one, as in the published checkpoints.
        """
        tokens, hidden = shape
        key = "head", shape
        if key not in self._ends:
            rows = []
            for token in range(tokens):
                row = self._bf16(hidden, LOGIT_RMS / sqrt(hidden))
                rows.append(row if token in self._vocabulary.words else bytes(len(row)))
            self._ends[key] = b"".join(rows)
        return self._ends[key]

    def _mtp_projection(self, shape: tuple[int, ...]) -> bytes:
        """`[identity, noise]` over `[embedding, hidden]`: the draft follows the last token."""
        hidden = shape[0]
        rows = [_one(row, hidden) + self._bf16(hidden, 0.1 / sqrt(hidden)) for row in range(hidden)]
        return b"".join(rows)

    def _self_attention(self, name: str, shape: tuple[int, ...]) -> bytes:
        """Attention of a draft head to the token itself, whose embedding it adds to the state.

        Queries and keys are the first dimensions of the embedding, which the input begins with.
        """
        rows, columns = shape
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            return b"".join(_one(row % ATTENDED, columns, 2.0) for row in range(rows))
        return b"".join(_one(row, columns) for row in range(rows))
