"""Weights become the numbers that their bytes mean, and none is missing or left over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builder import miniature
from builder.errors import BadFacts
from builder.facts import checkpoint
from tensorrt_llm import weights
from tests.reference.conftest import DEEPSEEK


def e4m3(*values: float) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn)


def test_nvfp4_codes_are_e2m1_with_the_low_nibble_first() -> None:
    # One row of 16: every byte holds two codes, the even index in its low nibble.
    packed = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=torch.uint8)
    plain = weights.dequantize_nvfp4(packed, e4m3(1.0).reshape(1, 1), torch.tensor(1.0))
    expected = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert plain.tolist() == [expected]


def test_nvfp4_values_are_scaled_by_their_block_and_by_the_tensor() -> None:
    # Two rows of two blocks. 0x22 is 1.0 twice, 0xB3 is 1.5 and -1.5, 0x07 is 6.0 and 0.0.
    rows = [[0x22] * 8 + [0xB3] * 8, [0x07] * 8 + [0x22] * 8]
    packed = torch.tensor(rows, dtype=torch.uint8)
    scales = torch.stack((e4m3(2.0, 448.0), e4m3(0.5, 0.001953125)))
    plain = weights.dequantize_nvfp4(packed, scales, torch.tensor(0.25))
    assert plain.shape == (2, 32)
    assert plain[0, :16].tolist() == [0.5] * 16
    assert plain[0, 16:].tolist() == [168.0, -168.0] * 8
    assert plain[1, :16].tolist() == [0.75, 0.0] * 8
    assert plain[1, 16:].tolist() == [0.00048828125] * 16


def test_fp8_bytes_are_e4m3_times_one_scale() -> None:
    # 0x38 is 1.0, 0xC4 is -3.0, 0x7E is 448, 0x01 is the smallest subnormal, 2^-9.
    raw = torch.tensor([[0x38, 0xC4], [0x7E, 0x01]], dtype=torch.uint8).view(torch.float8_e4m3fn)
    plain = weights.dequantize_fp8(raw, torch.tensor(0.5))
    assert plain.tolist() == [[0.5, -1.5], [224.0, 0.0009765625]]


def test_fp8_blocks_of_128_have_a_scale_each_also_where_they_are_cut_off() -> None:
    raw = torch.full((130, 200), 0x40, dtype=torch.uint8).view(torch.float8_e4m3fn)  # 2.0
    plain = weights.dequantize_fp8_block(raw, torch.tensor([[1.0, 10.0], [100.0, 1000.0]]))
    assert plain.shape == (130, 200)
    assert set(plain[:128, :128].flatten().tolist()) == {2.0}
    assert set(plain[:128, 128:].flatten().tolist()) == {20.0}
    assert set(plain[128:, :128].flatten().tolist()) == {200.0}
    assert set(plain[128:, 128:].flatten().tolist()) == {2000.0}


def test_mxfp4_blocks_of_32_have_a_power_of_two_each_and_turn_to_in_by_out() -> None:
    # One expert, one output, 64 inputs: 0x21 is 0.5 and 1.0, 0xF7 is 6.0 and -6.0.
    blocks = torch.tensor([[[[0x21] * 16, [0xF7] * 16]]], dtype=torch.uint8)
    scales = torch.tensor([[[128, 126]]], dtype=torch.uint8)  # 2 and 1/2
    plain = weights.dequantize_mxfp4(blocks, scales)
    assert plain.shape == (1, 64, 1)
    assert plain[0, :, 0].tolist() == [1.0, 2.0] * 16 + [3.0, -3.0] * 16


def test_mxfp4_means_what_transformers_reads(make_miniature: Callable[[str], Path]) -> None:
    stored = load_file(make_miniature("openai/gpt-oss-120b") / "model.safetensors")
    mxfp4 = import_module("transformers.integrations.mxfp4")  # a second, only here
    module = "model.layers.1.mlp.experts.gate_up_proj"
    parts = (stored[f"{module}_blocks"], stored[f"{module}_scales"])
    theirs = mxfp4.convert_moe_packed_tensors(*parts, dtype=torch.float32)
    assert torch.equal(weights.dequantize_mxfp4(*parts), theirs)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ([0x0F_89_7A_80], [-8.0, 0.0, 2.0, -1.0, 2.0, 0.0, 14.0, -16.0]),
        ([0x00_80_81_FF] * 2, [127.0, 1.0, 0.0, -128.0, 254.0, 2.0, 0.0, -256.0]),
    ],
    ids=["4 bits", "8 bits"],
)
def test_packed_integers_begin_with_the_lowest_bits_and_have_zero_in_the_middle(
    words: list[int], values: list[float]
) -> None:
    packed = torch.tensor([words], dtype=torch.int32)
    scales = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)  # of two groups
    shape = torch.tensor([1, 8])
    assert weights.dequantize_packed_integers(packed, scales, shape).tolist() == [values]


def test_int4_pairs_are_twos_complement_rows_with_a_scale_for_each_group() -> None:
    # Two rows in one of bytes: the even row in the low nibbles. 0x8 is -8, 0xF is -1.
    packed = torch.tensor([[0x81, 0xF2, 0x73, 0x04]], dtype=torch.uint8)
    scales = torch.tensor([[1.0, 10.0], [0.5, 2.0]], dtype=torch.bfloat16)
    plain = weights.dequantize_fp8(packed, scales)
    assert plain.tolist() == [[1.0, 2.0, 30.0, 40.0], [-4.0, -0.5, 14.0, 0.0]]
    with_fp8_inputs = weights.dequantize_nvfp4(packed, scales, torch.tensor(7.0))
    assert torch.equal(plain, with_fp8_inputs)


def test_int8_has_a_scale_for_each_row() -> None:
    raw = torch.tensor([[-128, 127], [1, -1]], dtype=torch.int8)
    assert weights.dequantize_fp8(raw, torch.tensor([1.0, 3.0])).tolist() == [[-128, 127], [3, -3]]


QWEN = "Qwen/Qwen3-32B"
UP = "model.layers.0.mlp.up_proj.weight"
FORMATS = [
    *("W4A16_AWQ", "W4A8_AWQ", "W8A16", "W4A16", "MXFP8", "W4A8_MXFP4_FP8", "W4A8_NVFP4_FP8"),
    *("FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"),
]


def exported(algorithm: str, folder: Path, **fields: Any) -> Path:
    """A miniature in a format of ModelOpt, or else in what `fields` of the configuration say."""
    quantized, written = folder / "quantized", folder / "written"
    for path in (quantized, written):
        path.mkdir()
    config = {**checkpoint.gather(QWEN).config}
    if fields:
        config["quantization_config"] = fields
    else:
        quantization = {"quant_algo": algorithm, "group_size": 32, "exclude_modules": ["lm_head"]}
        document = json.dumps({"quantization": quantization})
        (quantized / "hf_quant_config.json").write_text(document)
    (quantized / "config.json").write_text(json.dumps(config))
    miniature.write(checkpoint.gather(str(quantized)), written)
    return written


@pytest.mark.parametrize("algorithm", FORMATS)
def test_what_modelopt_writes_in_other_formats_is_read(algorithm: str, tmp_path: Path) -> None:
    _, main, _ = weights.load(exported(algorithm, tmp_path))
    assert main[UP].shape == (96, 64)
    assert 0.02 < main[UP].square().mean().sqrt() < 0.4
    assert main[UP].mean().abs() < 0.02


def test_what_comes_in_is_scaled_where_awq_says_so(tmp_path: Path) -> None:
    folder = exported("W4A16_AWQ", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    _, before, _ = weights.load(folder)
    tensors[UP.replace("weight", "pre_quant_scale")] = torch.arange(64, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    _, after, _ = weights.load(folder)
    assert torch.equal(after[UP], before[UP] * torch.arange(64))


def test_mxfp8_of_publishers_has_its_scales_under_another_name(tmp_path: Path) -> None:
    folder = exported("", tmp_path, quant_method="mxfp8", ignored_layers=["lm_head"])
    stored = load_file(folder / "model.safetensors")
    assert stored[f"{UP}_scale_inv"].dtype == torch.uint8
    _, main, _ = weights.load(folder)
    assert 0.02 < main[UP].square().mean().sqrt() < 0.4


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_what_the_engine_does_not_read_is_refused(method: str, tmp_path: Path) -> None:
    folder = exported("", tmp_path, quant_method=method, bits=4, group_size=32)
    with pytest.raises(BadFacts, match="is stored as qweight, qzeros, scales"):
        weights.load(folder)


@pytest.fixture
def own_copy(make_miniature: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_miniature(DEEPSEEK), tmp_path / "checkpoint"))


def test_weights_are_float32_and_those_of_the_mtp_layer_stand_apart(own_copy: Path) -> None:
    _, main, mtp = weights.load(own_copy)
    assert {tensor.dtype for tensor in main.values()} == {torch.float32}
    assert main["model.layers.1.mlp.experts.0.gate_proj.weight"].shape == (32, 64)
    assert {name.split(".")[2] for name in mtp} == {"4"}
    assert not set(main) & set(mtp)


def test_a_missing_tensor_is_named(own_copy: Path) -> None:
    tensors = load_file(own_copy / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.5.up_proj.weight_scale_2"]
    save_file(tensors, own_copy / "model.safetensors")
    with pytest.raises(BadFacts, match=r"missing.*layers\.2\.mlp\.experts\.5\.up_proj"):
        weights.load(own_copy)


def test_an_unexpected_tensor_is_named(own_copy: Path) -> None:
    tensors = load_file(own_copy / "model.safetensors")
    tensors["model.layers.2.self_attn.q_norm.weight"] = torch.ones(64)
    save_file(tensors, own_copy / "model.safetensors")
    with pytest.raises(BadFacts, match=r"does not have: model\.layers\.2\.self_attn\.q_norm"):
        weights.load(own_copy)


def test_the_tensors_of_a_vision_tower_are_left_out(own_copy: Path) -> None:
    tensors = load_file(own_copy / "model.safetensors")
    tensors["model.visual.patch_embed.proj.weight"] = torch.ones(4)
    save_file(tensors, own_copy / "model.safetensors")
    _, main, _ = weights.load(own_copy)
    assert not any("visual" in name for name in main)
