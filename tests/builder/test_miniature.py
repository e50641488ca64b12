"""Miniatures: the layout of the real checkpoint, in a megabyte."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder import miniature
from builder.facts import checkpoint, checkpoint_files, model_names
from builder.facts.architecture.tensors import head_dim
from builder.miniature.sizes import Vocabulary
from tests.tables import by_table

Miniature = Callable[[str], Path]

V32 = "nvidia/DeepSeek-V3.2-NVFP4"


def tensors(folder: Path) -> dict[str, checkpoint_files.Stored]:
    return {row.name: row for row in checkpoint_files.read_header(folder / "model.safetensors")}


@pytest.mark.parametrize("name", model_names.known_names())
def test_it_is_tiny(name: str, make_miniature: Miniature) -> None:
    folder = make_miniature(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    facts = checkpoint.gather(V32)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        (tmp_path / name).mkdir()
        miniature.write(facts, tmp_path / name, seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


@by_table
def test_a_tensor_has_the_layout_of_its_exporter(
    model: str, tensor: str, dtype: str, shape: list[int] | None, make_miniature: Miniature
) -> None:
    found = tensors(make_miniature(model))[f"model.layers.{tensor}"]
    assert (found.dtype, shape) == (dtype, shape and list(found.shape))


def test_the_mtp_layer_follows_the_last_layer_in_bf16(make_miniature: Miniature) -> None:
    folder = make_miniature(V32)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    found = tensors(folder)
    assert found[f"model.layers.{layers}.eh_proj.weight"].shape == (64, 128)
    assert found[f"model.layers.{layers}.mlp.experts.0.up_proj.weight"].dtype == "BF16"
    excluded = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    assert f"model.layers.{layers}*" in excluded["exclude_modules"]


def test_exclude_lists_hold_one_literal_name_per_layer(make_miniature: Miniature) -> None:
    document = json.loads((make_miniature(V32) / "hf_quant_config.json").read_text())
    names = document["quantization"]["exclude_modules"]
    assert [n for n in names if n.endswith("self_attn.q_a_proj")] == [
        f"model.layers.{layer}.self_attn.q_a_proj" for layer in range(4)
    ]


def test_fused_projections_share_their_scale(make_miniature: Miniature) -> None:
    """Engines fuse gate and up: the exporter gives both the same weight_scale_2."""
    folder = make_miniature(V32)
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])

    def scale(name: str) -> float:
        first, last = header[name]["data_offsets"]
        value: float = struct.unpack("<f", raw[8 + length + first : 8 + length + last])[0]
        return value

    gate, up = (
        scale(f"model.layers.1.mlp.experts.0.{name}.weight_scale_2")
        for name in ("gate_proj", "up_proj")
    )
    assert gate == up > 0


def test_a_folder_can_be_made_small_as_well(make_miniature: Miniature, tmp_path: Path) -> None:
    facts = checkpoint.gather(str(make_miniature(V32)))
    miniature.write(facts, tmp_path)
    assert checkpoint.gather(str(tmp_path)).nbytes == facts.nbytes


def test_lists_of_one_entry_per_layer_are_cut_with_the_layers(tmp_path: Path) -> None:
    facts, kinds = checkpoint.gather("openai/gpt-oss-120b"), ["sliding_attention", "full_attention"]
    listed = replace(facts, config={**facts.config, "layer_types": kinds * 18})
    miniature.write(listed, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["layer_types"] == kinds * 2


def test_the_vocabulary_covers_every_byte_and_word() -> None:
    vocabulary = Vocabulary.build()
    assert sorted(vocabulary.ids.values()) == list(range(len(vocabulary.ids)))
    assert len(vocabulary.words) > 300
    for left, right in vocabulary.merges:
        assert left in vocabulary.ids
        assert right in vocabulary.ids
        assert left + right in vocabulary.ids


def test_a_name_with_as_many_letters_as_layers_is_no_list_of_layers(tmp_path: Path) -> None:
    """`llama` has five, as the tiny one has layers and one more."""
    miniature.write(checkpoint.gather("llama-tiny"), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize("name", ["llama-3.2-1b-instruct", "qwen3-30b-a3b", "llama-3.1-8b"])
def test_heads_have_the_size_that_kernels_need(name: str, tmp_path: Path) -> None:
    """Also where the config leaves it to be computed: the tensors say so."""
    config = dict(checkpoint.gather(name).config)
    if name == "llama-3.1-8b":
        config.pop("head_dim", None)
    facts = replace(checkpoint.gather(name), config=config)
    miniature.write(facts, tmp_path, head_size=32)
    made = checkpoint.gather(str(tmp_path))
    assert head_dim(made.text_config) == 32
    assert made.text_config["num_attention_heads"] % made.text_config["num_key_value_heads"] == 0


@pytest.mark.parametrize("name", ["llama-3.3-70b-instruct-fp8", "kimi-k2.5-nvfp4"])
def test_an_unquantized_one_is_in_bf16_and_says_so(name: str, tmp_path: Path) -> None:
    miniature.write(miniature.unquantized(checkpoint.gather(name)), tmp_path)
    made = checkpoint.gather(str(tmp_path))
    assert made.quantization.quant_algo is None
    assert "quantization_config" not in (tmp_path / "config.json").read_text()


def test_a_head_that_is_the_embedding_speaks_whole_words_too(tmp_path: Path) -> None:
    miniature.write(checkpoint.gather("llama-3.2-1b-instruct"), tmp_path)
    stored = tensors(tmp_path)["model.embed_tokens.weight"]
    vocabulary = Vocabulary.build()
    data = (tmp_path / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    start, end = header["model.embed_tokens.weight"]["data_offsets"]
    rows = data[begin + start : begin + end]
    width = stored.shape[1] * 2
    spoken = {row for row in range(stored.shape[0]) if any(rows[row * width : (row + 1) * width])}
    assert spoken == vocabulary.words
