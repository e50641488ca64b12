"""A tiny checkpoint of the same architecture, quantization layout and MTP shape, random weights.

Weights are drawn straight in their storage format, so that only the standard library is needed.
They are drawn so that the model behaves like a small language model in two ways that rehearsals
need: its text is made of whole words, and its MTP layer often guesses the next token right. Its
tokenizer is a byte-level BPE over a list of common words.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import floor, log2, prod, sqrt
from pathlib import Path
from typing import Any

from .documents import DATA
from .facts.architecture import Architecture, Tensors
from .facts.architecture.fields import layer_kinds
from .facts.checkpoint import Checkpoint
from .facts.checkpoint_files import Stored, write_safetensors
from .facts.quantization import NVFP4_GROUP, Quantization

BOS, EOS, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"
SPECIALS = (BOS, EOS, USER, ASSISTANT)
WORDS = DATA / "miniature" / "words.txt"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + ('assistant' if message['role'] == 'assistant' else 'user') + '|>' }}"
    "{{ message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level BPE files (as in GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        characters.setdefault(byte, chr(256 + len(characters) - len(printable)))
    return characters


@dataclass(frozen=True)
class Vocabulary:
    """Token ids, merges in order, and the ids of whole words."""

    ids: dict[str, int]
    merges: tuple[tuple[str, str], ...]
    words: frozenset[int]

    @classmethod
    def build(cls) -> Vocabulary:
        characters = _byte_characters()
        ids = {token: index for index, token in enumerate(SPECIALS)}
        for byte in range(256):
            ids[characters[byte]] = len(ids)
        merges: dict[tuple[str, str], None] = {}
        words = set()
        for word in WORDS.read_text(encoding="utf-8").split():
            spelled = [characters[byte] for byte in f" {word}".encode()]
            left = spelled[0]
            for right in spelled[1:]:
                merges[(left, right)] = None
                left += right
                ids.setdefault(left, len(ids))
            words.add(ids[left])
        return cls(ids, tuple(merges), frozenset(words))

    def tokenizer_json(self) -> dict[str, Any]:
        """The file that the `tokenizers` library reads."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": self.ids[token],
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token in SPECIALS
            ],
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "use_regex": True},
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": self.ids,
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def tokenizer_config(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE,
        }


# The largest value that a miniature takes for a config field; smaller ones stay as they are.
# Linear layers keep input sizes that divide by the NVFP4 group of 16 and the MXFP4 block of 32.
# The indexer keeps enough heads that two of its scores, sums of rectified products, never tie.
LIMITS: dict[str, int] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "sliding_window": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
    "moe_latent_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "dense_intermediate_size": 96,
    "intermediate_size_mlp": 96,
    "routed_expert_hidden_size": 32,
    "o_groups": 2,
    "o_lora_rank": 32,
    "hc_mult": 2,
    "num_hash_layers": 1,
    "qk_head_dim": 32,
}
# The same inside `linear_attn_config` and `sparse_attention_config`.
_PART_LIMITS: dict[str, int] = {
    "num_heads": 4,
    "head_dim": 16,
    "sparse_index_dim": 16,
    "sparse_num_index_heads": 2,
}
# MLA has as many key-value heads as heads.
MLA_LIMITS = {**LIMITS, "num_key_value_heads": 4}

# RMS of a linear layer's output over its input: small enough that the residual stream, and so the
# last token, decides most of the next token; large enough that the context matters.
LINEAR_GAIN = 0.35
LOGIT_RMS = 8.0
E4M3_TOP = 448.0
E2M1_RMS = sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
E4M3_RMS = 22.0  # of bytes drawn by `_E4M3_BYTES`: magnitudes 8 to 30


def write(checkpoint: Checkpoint, folder: Path, seed: int = 0) -> None:
    """Write the miniature of `checkpoint` into `folder`, which must exist and be empty."""
    vocabulary = Vocabulary.build()
    architecture = checkpoint.architecture
    config = _config(checkpoint, vocabulary)
    quantization = _rewrite_excludes(checkpoint, architecture.text(config))
    tensors = _tensors(architecture, config, quantization, vocabulary, random.Random(seed))
    write_safetensors(folder / "model.safetensors", tensors)
    _write_json(folder / "config.json", config)
    if quantization.quant_algo and quantization.source == "hf_quant_config.json":
        _write_json(folder / "hf_quant_config.json", _hf_quant_config(quantization))
    _write_json(folder / "tokenizer.json", vocabulary.tokenizer_json())
    _write_json(folder / "tokenizer_config.json", vocabulary.tokenizer_config())
    ids = {"bos_token_id": vocabulary.ids[BOS], "eos_token_id": vocabulary.ids[EOS]}
    _write_json(folder / "generation_config.json", ids)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(checkpoint: Checkpoint, vocabulary: Vocabulary) -> dict[str, Any]:
    """The checkpoint's own config with every size cut down to its limit."""
    mla = checkpoint.architecture.attention.startswith("mla")
    limits = MLA_LIMITS if mla else LIMITS

    def shrink(fields: Mapping[str, Any]) -> dict[str, Any]:
        small = _at_most(fields, limits)
        layers = len(layer_kinds(fields)) or fields.get("num_hidden_layers")
        few = min(layers or 0, limits["num_hidden_layers"])
        lists = {  # one entry per layer, or one more for the MTP layer
            name: _cut(value, layers or 0, few)
            for name, value in fields.items()
            if isinstance(value, list | str) and layers and len(value) in (layers, layers + 1)
        }
        parts = {
            name: {**value, **_at_most(value, _PART_LIMITS), **_layer_numbers(value, few)}
            for name, value in fields.items()
            if name in ("linear_attn_config", "sparse_attention_config")
            and isinstance(value, Mapping)
        }
        return {**fields, **small, **lists, **parts, **ids}

    ids = {
        "vocab_size": len(vocabulary.ids),
        "bos_token_id": vocabulary.ids[BOS],
        "eos_token_id": vocabulary.ids[EOS],
        "pad_token_id": vocabulary.ids[EOS],
    }
    config = dict(checkpoint.config)
    nested = checkpoint.architecture.text_config
    if nested in config:
        config[nested] = shrink(config[nested])
    else:
        config = shrink(config)
    if "ignore" in config.get("quantization_config", {}):
        excludes = _rewrite_excludes(checkpoint, checkpoint.architecture.text(config))
        inline = {**config["quantization_config"], "ignore": list(excludes.exclude_modules)}
        config["quantization_config"] = inline
    return config


def _at_most(fields: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    return {
        name: min(value, limits[name])
        for name, value in fields.items()
        if name in limits and isinstance(value, int)
    }


def _cut(entries: Any, layers: int, few: int) -> Any:
    """The entries of as few layers, in order, with one of every kind that fits among them."""
    kinds = list(entries[:layers])
    chosen = {kinds.index(kind) for kind in dict.fromkeys(kinds)}
    chosen = set(sorted(chosen)[:few])
    for index in range(layers):
        if len(chosen) < few:
            chosen.add(index)
    kept = [kinds[index] for index in sorted(chosen)]
    return "".join(kept) if isinstance(entries, str) else [*kept, *entries[layers:]]


def _layer_numbers(fields: Mapping[str, Any], few: int) -> dict[str, list[int]]:
    """Lists of layers, counted from 1, of as few layers."""
    return {
        name: [number for number in value if number <= few]
        for name, value in fields.items()
        if name.endswith("_layers") and isinstance(value, list)
    } | {
        name: value[:few]
        for name, value in fields.items()
        if name.endswith("_freq") and isinstance(value, list)
    }


def _rewrite_excludes(checkpoint: Checkpoint, text: Mapping[str, Any]) -> Quantization:
    """The exclude list for the smaller layer count, one literal name per layer as exporters write.

    The MTP layer of DeepSeek is numbered after the last decoder layer and moves with it.
    """
    found, old = checkpoint.quantization, checkpoint.text_config["num_hidden_layers"]
    new = text["num_hidden_layers"]
    modules = {
        re.sub(r"\.(weight|bias)$", "", name)
        for tensors in checkpoint.architecture.tensors(text)
        for name in tensors.names()
    }
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


def _hf_quant_config(quantization: Quantization) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "quant_algo": quantization.quant_algo,
        "kv_cache_quant_algo": quantization.kv_cache_quant_algo,
        "group_size": NVFP4_GROUP,
        "exclude_modules": list(quantization.exclude_modules),
    }
    if quantization.quant_algo != "NVFP4":
        del fields["group_size"]
    if quantization.parts:
        parts = {name: {"quant_algo": part} for name, part in quantization.parts.items()}
        fields |= {"quant_algo": "MIXED_PRECISION", "quantized_layers": parts}
    return {"producer": {"name": "builder miniature"}, "quantization": fields}


def _tensors(
    architecture: Architecture,
    config: Mapping[str, Any],
    quantization: Quantization,
    vocabulary: Vocabulary,
    rng: random.Random,
) -> Iterator[tuple[Stored, bytes]]:
    draw = _Draw(architecture, vocabulary, rng)
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


class _Draw:
    """Random tensors in their storage format."""

    def __init__(
        self, architecture: Architecture, vocabulary: Vocabulary, rng: random.Random
    ) -> None:
        self._vocabulary = vocabulary
        self._rng = rng
        self._embeddings: dict[tuple[int, ...], bytes] = {}
        self._heads: dict[tuple[int, ...], bytes] = {}
        # The norms of Qwen3.5 add one to their weight, except that of its linear attention.
        self._zero_centred = architecture.attention == "hybrid" and ("Qwen" in architecture.name)

    def plain(self, tensors: Tensors, stored: Stored) -> bytes:
        """An unquantized tensor."""
        name, shape = stored.name, stored.shape
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
        if tensors.role == "embedding":
            return self._embedding(shape)
        if tensors.role == "lm_head":
            return self._head(shape)
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
        yield weight, raw if weight.dtype == "U8" else raw.translate(_E4M3_BYTES)
        for tensor in rest:
            if tensor.dtype == "F8_E4M3":
                yield tensor, self._rng.randbytes(tensor.nbytes).translate(_E4M3_SCALES)
            elif tensor.dtype == "U8":
                exponent = floor(log2(rms / E2M1_RMS) + 0.5) + 127  # E8M0 bytes, powers of two
                yield tensor, bytes([exponent]) * tensor.nbytes
            elif tensor.name.endswith("weight_scale_2"):
                yield tensor, struct.pack("<f", rms / (E2M1_RMS * 352.0))
            elif tensor.name.endswith("input_scale"):
                yield tensor, struct.pack("<f", 1.0 / E4M3_TOP)
            else:
                yield tensor, struct.pack("<f", rms / E4M3_RMS) * prod(tensor.shape)

    def _bf16(self, count: int, rms: float) -> bytes:
        """BF16 values of random sign in one binade, `[2^e, 2^(e+1))`, of about the given RMS.

        The RMS of a uniform draw over a binade is `sqrt(7/3) * 2^e`.
        """
        exponent = floor(log2(rms / sqrt(7 / 3)) + 0.5) + 127
        low = bytes((byte & 0x7F) | (exponent & 1) << 7 for byte in range(256))
        high = bytes((byte & 0x80) | exponent >> 1 for byte in range(256))
        values = bytearray(2 * count)
        values[0::2] = self._rng.randbytes(count).translate(low)
        values[1::2] = self._rng.randbytes(count).translate(high)
        return bytes(values)

    def _constant(self, stored: Stored, value: float) -> bytes:
        count = prod(stored.shape)
        single = struct.pack("<f", value)
        return (single if stored.dtype == "F32" else single[2:]) * count

    def _embedding(self, shape: tuple[int, ...]) -> bytes:
        """The MTP layer's embedding is a copy of the main one, as in the published checkpoints."""
        if shape not in self._embeddings:
            self._embeddings[shape] = self._bf16(prod(shape), 1.0)
        return self._embeddings[shape]

    def _head(self, shape: tuple[int, ...]) -> bytes:
        """An output head that speaks whole words: the rows of all other tokens are zero.

        The MTP layer's head is a copy of the main one, as in the published checkpoints.
        """
        if shape not in self._heads:
            _, hidden = shape
            rows = []
            for token in range(shape[0]):
                row = self._bf16(hidden, LOGIT_RMS / sqrt(hidden))
                rows.append(row if token in self._vocabulary.words else bytes(len(row)))
            self._heads[shape] = b"".join(rows)
        return self._heads[shape]

    def _mtp_projection(self, shape: tuple[int, ...]) -> bytes:
        """`[identity, noise]` over `[embedding, hidden]`: the draft follows the last token."""
        hidden = shape[0]
        one = struct.pack("<f", 1.0)[2:]
        rows = []
        for row in range(hidden):
            identity = bytearray(2 * hidden)
            identity[2 * row : 2 * row + 2] = one
            rows.append(bytes(identity) + self._bf16(hidden, 0.1 / sqrt(hidden)))
        return b"".join(rows)
