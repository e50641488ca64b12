"""Facts of checkpoints: shipped ones, folders, and folders with faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import checkpoint
from builder.errors import BadFacts

V32 = "nvidia/DeepSeek-V3.2-NVFP4"


@pytest.mark.parametrize(
    ("name", "published_gb"),
    [(V32, 415), ("deepseek-ai/DeepSeek-V3.2", 690), ("nvidia/DeepSeek-R1-0528-NVFP4-v2", 413.3)],
)
def test_computed_size_matches_the_published_one(name: str, published_gb: float) -> None:
    facts = checkpoint.gather(name)
    assert facts.nbytes / 1e9 == pytest.approx(published_gb, rel=0.001)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        (V32, 685.4),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.55),
        ("nvidia/Qwen3-235B-A22B-NVFP4", 235.09),
        ("Qwen/Qwen3.5-397B-A17B", 402.94),  # 397 without the MTP layer
        ("nvidia/MiniMax-M2.5-NVFP4", 228.69),
    ],
)
def test_parameter_count_matches_the_model_card(name: str, billions: float) -> None:
    assert checkpoint.gather(name).parameters / 1e9 == pytest.approx(billions, rel=0.001)


def test_mtp_layers_are_those_with_weights() -> None:
    """MiniMax-M2.5 names three MTP modules in its config, whose weights nobody published."""
    minimax = checkpoint.gather("nvidia/MiniMax-M2.5-NVFP4")
    assert minimax.config["num_mtp_modules"] == 3
    assert minimax.mtp_layers == 0
    assert checkpoint.gather(V32).mtp_layers == 1


@pytest.mark.parametrize("name", checkpoint.known_names())
def test_a_folder_tells_what_the_shipped_facts_tell(
    name: str, make_miniature: Callable[[str], Path]
) -> None:
    shipped, folder = checkpoint.gather(name), checkpoint.gather(str(make_miniature(name)))
    assert folder.architecture is shipped.architecture
    assert folder.precision == shipped.precision
    assert folder.quantization.kv_cache_quant_algo == shipped.quantization.kv_cache_quant_algo
    assert folder.mtp_layers == shipped.mtp_layers


def test_bytes_are_counted_in_headers_not_in_the_index(
    make_miniature: Callable[[str], Path],
) -> None:
    folder = make_miniature(V32)
    facts = checkpoint.gather(str(folder))
    size = (folder / "model.safetensors").stat().st_size
    header = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert facts.nbytes == size - 8 - header
    assert {group.dtype for group in facts.groups} >= {"U8", "F8_E4M3", "BF16"}


@pytest.fixture
def folder(make_miniature: Callable[[str], Path], tmp_path: Path) -> Path:
    """A checkpoint folder to damage."""
    return shutil.copytree(make_miniature(V32), tmp_path / "checkpoint")


def faults(folder: Path) -> str:
    with pytest.raises(BadFacts) as caught:
        checkpoint.gather(str(folder))
    assert caught.value.exit_code == 3
    return str(caught.value)


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_truncated_weights_are_named_with_both_ends(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors: truncated: its tensors end at byte" in faults(folder)


def test_weights_cut_inside_the_header_are_truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    assert "truncated: the header ends at byte" in faults(folder)


def test_a_file_that_is_not_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_text("<!doctype html>")
    assert "not a safetensors file" in faults(folder)


def test_missing_files_are_all_listed(folder: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    text = faults(folder)
    assert "no *.safetensors files" in text
    assert "no tokenizer" in text


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors: is named in the index, but missing" in faults(folder)


def test_a_missing_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json: cannot be read: no such file" in faults(folder)


def test_a_config_that_is_a_list_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    assert "config.json: holds a list, not an object" in faults(folder)


def test_missing_config_fields_are_all_listed(folder: Path) -> None:
    change(folder / "config.json", lambda c: (c.pop("q_lora_rank"), c.pop("vocab_size")))
    text = faults(folder)
    assert "field q_lora_rank is missing" in text
    assert "field vocab_size is missing" in text


def test_an_unsupported_architecture_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda c: c.update(architectures=["LlamaForCausaLM"]))
    assert "LlamaForCausaLM is not supported; did you mean LlamaForCausalLM?" in faults(folder)


def test_contradictory_quantization_is_reported(folder: Path) -> None:
    inline = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8}}
    change(folder / "config.json", lambda c: c.update(quantization_config=inline))
    assert "quant_algo is NVFP4, but config.json: quantization_config says FP8" in faults(folder)


def test_tensors_that_contradict_the_exclude_list_are_reported(folder: Path) -> None:
    def quantize_everything(document: dict[str, Any]) -> None:
        document["quantization"]["exclude_modules"] = ["lm_head", "model.layers.4*"]

    change(folder / "hf_quant_config.json", quantize_everything)
    text = faults(folder)
    assert "q_a_proj.weight is BF16 [32, 64], expected U8 [32, 32]" in text
    assert "q_a_proj.weight_scale" in text


def test_fewer_layers_than_the_config_says_are_missing_tensors(folder: Path) -> None:
    change(folder / "config.json", lambda c: c.update(num_hidden_layers=5))
    assert "tensors missing, first model.layers.5." in faults(folder)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(BadFacts, match=r"did you mean nvidia/DeepSeek-V3\.2-NVFP4\?"):
        checkpoint.gather("nvidia/DeepSeek-V3.2-NVFP5")
