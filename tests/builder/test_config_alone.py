"""Any model by its `config.json` alone: planned, or refused with the next step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.errors import BadFacts, BadInput
from builder.estimates.roofline import shape_of
from builder.facts import checkpoint, model_names
from builder.facts.architecture import Role, Tensors
from builder.facts.memory import (
    Sharding,
    kv_bytes_per_token,
    state_bytes_per_request,
    weights_bytes,
)
from builder.facts.quantization import Quantization
from tests.conftest import ROOT, Run
from tests.tables import by_table

SHAPES = yaml.safe_load((ROOT / "tests/builder/published_shapes.yaml").read_text())
PLANNED = [row for row in SHAPES if row[-1]]
REFUSED = [row for row in SHAPES if not row[-1]]
COMMON = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size"),
)
# Cards round, and count what is tied or lies outside of the language model in one way or the other.
TOLERANCE = 0.02


def folder_of(row: list[Any], folder: Path) -> Path:
    _, architecture, sizes, more, _ = row
    fields = {name: size for name, size in zip(COMMON, sizes, strict=True) if size}
    fields |= {name: value for name, value in more.items() if name != "nested"}
    fields |= {"max_position_embeddings": 32768, "bos_token_id": None, "pad_token_id": None}
    config = {more["nested"]: fields} if "nested" in more else fields
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return folder


def name_of(row: list[Any]) -> str:
    return str(row[0])


def test_there_are_sixty_of_them() -> None:
    assert len(SHAPES) >= 60


@pytest.mark.parametrize("row", PLANNED, ids=name_of)
def test_the_parameters_are_those_of_the_card(row: list[Any], tmp_path: Path) -> None:
    facts = checkpoint.gather(str(folder_of(row, tmp_path)))
    assert facts.parameters / 1e9 == pytest.approx(row[-1], rel=TOLERANCE)
    assert facts.nbytes >= 2 * facts.parameters  # BF16, but for what is kept in FP32


@pytest.mark.parametrize("row", {row[1]: row for row in PLANNED}.values(), ids=name_of)
def test_it_is_planned_and_says_what_is_assumed(row: list[Any], tmp_path: Path) -> None:
    gpus = next(count for count in (1, 2, 4, 8, 16, 72) if row[-1] * 2 < 150 * count)
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "deployment.yaml").write_text(
        f"name: shape\ncheckpoint: {folder_of(row, folder)}\n"
        f"hardware: {{gpu: gb200, num_gpus: {gpus}}}\n"
        "engine: {name: tensorrt_llm, release: main-00043967}\n"
        "workload: {isl: 1000, osl: 500, concurrency: 4}\ntargets: [trtllm_serve, slurm]\n"
    )
    try:
        found = pipeline.plan(str(tmp_path / "deployment.yaml")).plan.warnings
    except BadInput as refusal:  # heads that cannot be shared by so many GPUs, and the like
        assert all(each.fix for each in refusal.diagnostics)
    else:
        assert "its folder holds no weights" in "\n".join(map(str, found))


@by_table
def test_layers_of_two_kinds_are_cached_with_the_heads_of_each(
    ranks: int, windows: tuple[int, ...], per_token: int, per_request: int, tmp_path: Path
) -> None:
    """Gemma 4 of 60 layers: every sixth sees all tokens, with 4 heads of 512 for 16 of 256."""
    row = next(row for row in SHAPES if row[0] == "gemma-4-31b")
    facts, sharding = checkpoint.gather(str(folder_of(row, tmp_path))), Sharding(ranks)
    assert kv_bytes_per_token(facts, sharding, 1, 0, max_attention_window=windows) == per_token
    assert state_bytes_per_request(facts, sharding, 1, windows) == per_request


@by_table
def test_each_layer_keeps_the_heads_that_it_has(name: str, values: int, tmp_path: Path) -> None:
    assert kv_bytes_per_token(changed(name, tmp_path), Sharding(1), 1, 0) == values


def test_a_request_keeps_its_windows_and_its_states(tmp_path: Path) -> None:
    """Inkling: 35 of 42 layers see 512 tokens, and each has four convolutions over four tokens."""
    facts, windows = changed("inkling-small", tmp_path), (512,) * 5 + (8192,)
    states = 4 * 3 * (35 * 2 * (16 * 128 + 4096) + 7 * 2 * (8 * 128 + 4096))
    kept = 35 * 512 * 2 * 16 * 128 + states
    assert state_bytes_per_request(facts, Sharding(1), 1, windows) == pytest.approx(kept, rel=1e-4)


def test_layers_have_the_sizes_that_their_blocks_tell(tmp_path: Path) -> None:
    facts = changed("nemotron-puzzle-75b", tmp_path)
    rows = facts.architecture.tensors(facts.text_config)
    widths = {row.shape[0]: row.count for row in rows if row.pattern.endswith("up_proj.weight")}
    assert widths == {1280: 20 * 512, 1920: 20 * 512, 5376: 20}


def test_layers_are_dense_as_they_are_listed(tmp_path: Path) -> None:
    kinds = ["dense", "sparse"] * 40
    facts = changed("hy3-295b", tmp_path, mlp_layer_types=kinds)
    rows = facts.architecture.tensors(facts.text_config)
    names = {
        name for row in rows if row.pattern.endswith(".mlp.up_proj.weight") for name in row.names()
    }
    assert len(names) == 40 and "model.layers.2.mlp.up_proj.weight" in names


def test_what_shards_are_quantized_by_themselves_has_blocks_of_its_own(tmp_path: Path) -> None:
    """MiMo-V2.6: four shards of 3,392 rows, each padded to 27 blocks; experts are MXFP4."""
    written = {"quant_method": "fp8", "weight_block_size": [128, 128], "store_dtype": "mxfp4"}
    facts = changed("mimo-v2.5", tmp_path, quantization_config=written)
    found = {
        tensor.name: (tensor.dtype, tensor.shape)
        for row in facts.architecture.tensors(facts.text_config)
        for name in list(row.names())[:1]
        for tensor in facts.quantization.stored(row, name)
    }
    assert found["model.layers.0.self_attn.qkv_proj.weight_scale_inv"] == ("F32", (108, 32))
    assert found["model.layers.1.mlp.experts.0.up_proj.weight"] == ("U8", (2048, 2048))
    assert found["model.layers.1.mlp.experts.0.up_proj.weight_scale"] == ("U8", (2048, 128))
    assert found["model.layers.0.mlp.up_proj.weight"][0] == "F8_E4M3"


@pytest.mark.parametrize(
    ("stored", "algorithm"),
    [("MXFP4", "MXFP4"), ("FP8", "FP8_BLOCK_SCALES"), (None, "FP8_BLOCK_SCALES"), ("bf16", None)],
)
def test_how_experts_are_stored_is_known_or_refused(
    tmp_path: Path, stored: str | None, algorithm: str | None
) -> None:
    written = {"quant_method": "fp8", "weight_block_size": [128, 128], "store_dtype": stored}
    if algorithm is None:
        with pytest.raises(BadFacts, match="quant_method fp8 stored as BF16 is not supported"):
            changed("mimo-v2.5", tmp_path, quantization_config=written)
        return
    facts = changed("mimo-v2.5", tmp_path, quantization_config=written)
    assert facts.quantization.quant_algo == algorithm


def changed(name: str, folder: Path, **fields: Any) -> checkpoint.Checkpoint:
    """The facts of a published shape with other fields."""
    name, architecture, sizes, more, billions = next(row for row in SHAPES if row[0] == name)
    row = [name, architecture, sizes, {**more, **fields}, billions]
    return checkpoint.gather(str(folder_of(row, folder)))


@by_table
def test_a_field_that_no_model_can_have_is_named(
    name: str, field: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(BadFacts, match=rf"field {field} is missing or not a plausible count"):
        changed(name, tmp_path, **{field: value})


@pytest.mark.parametrize(
    ("name", "fields", "same_as"),
    [
        ("jamba-52b", {"mamba_dt_rank": "auto"}, {}),
        ("jamba-52b", {"mamba_dt_rank": None}, {}),
        ("lfm2-1.2b", {"block_ff_dim": 6656}, {"block_ff_dim": None, "intermediate_size": 6656}),
        ("lfm2-1.2b", {"tie_embedding": True, "tie_word_embeddings": False}, {}),
        (
            "glm-4.7-flash",
            {"first_k_dense_replace": None, "mlp_layer_types": ["dense"] + ["sparse"] * 46},
            {},
        ),
        (
            "lfm2-1.2b",
            {"block_ff_dim": 6912, "block_ffn_dim_multiplier": None},
            {"block_ff_dim": 4608, "block_auto_adjust_ff_dim": False},
        ),
    ],
)
def test_what_a_publishers_own_field_stands_for(
    name: str, fields: dict[str, Any], same_as: dict[str, Any], tmp_path: Path
) -> None:
    own = changed(name, tmp_path, **fields).parameters
    assert own == changed(name, tmp_path, **same_as).parameters


def test_layers_for_pictures_take_no_memory_of_an_engine_without_them(
    tmp_path: Path, builder: Run
) -> None:
    """Of the 100 layers of Llama 3.2 90B Vision, 20 attend to the picture; the embedding is whole
    on every rank."""
    facts, values = changed("llama-3.2-90b-vision", tmp_path), 128256 * 8192
    layer = 8192 * (2 * 8192 + 2 * 1024 + 3 * 28672 + 2)
    for ranks in (1, 4):
        loaded = weights_bytes(facts, Sharding(ranks), with_mtp=False)
        expected = 2 * (80 * layer + values) / ranks + 2 * (values + 8 * 8192)
        assert loaded == pytest.approx(expected, rel=1e-4)
    assert facts.nbytes > 2 * 100 * layer
    model = tmp_path / "config.json"
    fp8 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    model.write_text(json.dumps({**json.loads(model.read_text()), **fp8}))
    (tmp_path / "deployment.yaml").write_text(
        f"name: pictures\ncheckpoint: {tmp_path}\nhardware: {{gpu: h100, num_gpus: 1}}\n"
        "engine: {name: tensorrt_llm, release: main-00043967}\n"
        "workload: {isl: 1000, osl: 500, concurrency: 1}\ntargets: [trtllm_serve]\n"
    )
    done = builder("plan", "deployment.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_layers_that_use_the_cache_of_others_have_none(tmp_path: Path) -> None:
    """Of 35 layers, 15 keep keys and values: three see all tokens, and an estimate counts those."""
    kinds = ["full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(35)]
    config = {
        "architectures": ["Gemma4ForCausalLM"],
        **dict(zip(COMMON, (35, 1536, 8, 1, 6144, 262144), strict=True)),
        "layer_types": kinds,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 256,
    }
    facts = facts_of(config, tmp_path)
    assert kv_bytes_per_token(facts, Sharding(1), 1, 0) == 12 * 2 * 256 + 3 * 2 * 512
    assert shape_of(facts).kv_values == 3 * 2 * 512


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    **dict(zip(COMMON, (32, 4096, 32, 8, 14336, 128256), strict=True)),
}


def facts_of(config: dict[str, Any], folder: Path, hf_quant: Any = None) -> checkpoint.Checkpoint:
    (folder / "config.json").write_text(json.dumps(config))
    if hf_quant:
        (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": hf_quant}))
    return checkpoint.gather(str(folder))


def compressed(weights: str, inputs: str | None, **more: Any) -> dict[str, Any]:
    """What llm-compressor writes; a scheme is `float4 tensor_group`."""

    def scheme(words: str) -> dict[str, Any]:
        kind, strategy = words.split()
        return {"type": kind[:-1], "num_bits": int(kind[-1]), "strategy": strategy}

    group = {"weights": scheme(weights), "input_activations": scheme(inputs) if inputs else None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


ODD = {"type": "float", "num_bits": [8], "strategy": ["channel"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": None}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
FP8_KV = {"type": "float", "num_bits": 8, "strategy": "tensor"}


@pytest.mark.parametrize(
    ("written", "precision", "kv_cache"),
    [
        (compressed("float4 tensor_group", "float4 tensor_group"), "NVFP4", None),
        (compressed("float8 channel", "float8 token", kv_cache_scheme=FP8_KV), "FP8", "FP8"),
        (compressed("float8 block", "float8 group"), "FP8_BLOCK_SCALES", None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8_BLOCK_SCALES", None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "FP8", None),
        (compressed("float4 tensor_group", None), "W4A16_NVFP4", None),
        (compressed("float8 tensor", "float8 tensor"), "FP8", None),
        (compressed("int4 group", None, format="pack-quantized"), "W4A16", None),
        (compressed("int8 channel", None), "W8A16", None),
        (compressed("int8 channel", "int8 token"), "W8A8_INT8", None),
        (compressed("float8 group", "float8 group"), "MXFP8", None),
        (compressed("float4 group", None), "MXFP4", None),
        ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, "MXFP8", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "W4A16_AWQ", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "W4A16_GPTQ", None),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "W8A16_GPTQ", None),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "FP8_BLOCK_SCALES", None),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ", None),
        ({"quant_method": None}, "BF16", None),
    ],
)
def test_the_format_of_the_weights_is_what_its_writer_says(
    written: dict[str, Any], precision: str, kv_cache: str | None, tmp_path: Path
) -> None:
    facts = facts_of({**LLAMA, "quantization_config": written}, tmp_path)
    assert (facts.precision, facts.quantization.kv_cache_quant_algo) == (precision, kv_cache)


@pytest.mark.parametrize(
    "expression",
    [r".*layers\.(0|1)\.(mlp|self_attn)\.(gate|up)_proj.*", r".*[*+?|()]{1,3}\.(?:q|k)_proj$"],
)
def test_an_expression_for_modules_is_taken(expression: str, tmp_path: Path) -> None:
    written = compressed("float4 tensor_group", "float4 tensor_group", ignore=[f"re:{expression}"])
    assert facts_of({**LLAMA, "quantization_config": written}, tmp_path).precision == "NVFP4"


@pytest.mark.parametrize("expression", [r"(layers\.\d+\.)+mlp", ".*a.*b.*c.*d.*", "(a|b)" * 5])
def test_an_expression_that_could_take_hours_is_refused(expression: str, tmp_path: Path) -> None:
    written = compressed("float4 tensor_group", "float4 tensor_group", ignore=[f"re:{expression}"])
    with pytest.raises(BadFacts, match="could take hours to compare with a name; write at most 4"):
        facts_of({**LLAMA, "quantization_config": written}, tmp_path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (compressed("int4 group", "float8 token"), "weights int4 by group, inputs float8"),
        (compressed("int3 group", None, format="pack-quantized"), "weights int3 by group"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "fp8 in blocks of"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {
                        "weights": {**FP8_KV, "strategy": "group", "group_size": 128},
                        "input_activations": {**FP8_KV, "strategy": "group"},
                    }
                },
            },
            "weights float8 by group of 128",
        ),
        ({**GPTQ, "dynamic": {r"+:.*\.18\..*": {"bits": 8}}}, "groups of their own for"),
        ({"quant_method": "awq", "bits": 3}, "quant_method awq of 3 bits"),
        ({"quant_method": "gptq"}, "quant_method gptq of None bits"),
        ({"load_in_8bit": True, "bits": None}, "load_in_8bit without quant_method"),
        ({"quant_method": "odd", "kv_cache_scheme": {"num_bits": [8]}}, "quant_method odd"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": ODD}}},
            "weights float[8] by ['channel']",
        ),
    ],
)
def test_another_format_is_refused_by_the_file_that_says_it(
    written: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFacts) as caught:
        facts_of({**LLAMA, "quantization_config": written}, tmp_path)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/config.json: quantization_config: ")
    assert said in text
    assert "export it so with ModelOpt" in text


def test_the_language_model_inside_may_be_the_one_that_is_quantized(tmp_path: Path) -> None:
    inner = {**LLAMA, "quantization_config": {"quant_method": "odd"}}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": inner}
    with pytest.raises(BadFacts, match=r"text_config.quantization_config: quant_method odd"):
        facts_of(config, tmp_path)


def test_a_mixture_of_formats_needs_the_gpu_of_its_narrowest(tmp_path: Path) -> None:
    layers = {"model.layers.0.self_attn.q_proj": "FP8", "model.layers.0.self_attn.k_proj": "FP8"}
    layers |= {"model.layers.0.mlp.up_proj": "NVFP4"}
    formats = {name: {"quant_algo": algorithm} for name, algorithm in layers.items()}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": formats}
    assert facts_of(LLAMA, tmp_path, mixed).precision == "NVFP4"


QWEN25_32B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    **dict(zip(COMMON, (64, 5120, 40, 8, 27648, 152064), strict=True)),
}


QWEN2_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    **dict(zip(COMMON, (28, 3584, 28, 4, 18944, 152064), strict=True)),
}


@pytest.mark.parametrize(
    ("model", "written", "published_gb"),
    [
        (QWEN25_32B, AWQ, 19.33),
        (QWEN25_32B, GPTQ, 19.34),
        (QWEN25_32B, {**GPTQ, "bits": 8}, 35.04),
        (QWEN2_7B, AWQ, 5.57),
    ],
)
def test_sizes_are_those_of_published_checkpoints(
    model: dict[str, Any], written: dict[str, Any], published_gb: float, tmp_path: Path
) -> None:
    """Qwen2.5-32B-Instruct-AWQ, -GPTQ-Int4 and -GPTQ-Int8, Qwen2-7B-Instruct-AWQ: the sums of the
    files that the hub lists."""
    facts = facts_of({**model, "quantization_config": written}, tmp_path)
    assert facts.nbytes / 1e9 == pytest.approx(published_gb, rel=2e-3)


def test_what_awq_and_gptq_leave_as_it_is_is_named_by_parts_or_patterns(tmp_path: Path) -> None:
    ruled = {**GPTQ, "dynamic": {"-:.*down_proj": {}}}
    for written, name in (({**AWQ, "modules_to_not_convert": ["down"]}, "awq"), (ruled, "gptq")):
        folder = tmp_path / name
        folder.mkdir()
        quantization = facts_of({**LLAMA, "quantization_config": written}, folder).quantization
        assert quantization.format_of("model.layers.0.mlp.down_proj") is None
        assert quantization.format_of("lm_head") is None
        assert quantization.format_of("model.layers.0.mlp.up_proj") == quantization.quant_algo


def bits_of(found: Quantization, module: str, role: Role = "attention") -> dict[str, Any]:
    """The shapes of what stands for a linear layer of 512 x 512."""
    weight = Tensors(f"{module}.weight", (512, 512), role, linear=True)
    stored = found.stored(weight, f"{module}.weight")
    return {row.name.removeprefix(f"{module}."): row.shape for row in stored}


DIGITS = (r"\d+", "[0-9]+")
ATTENTION, MLP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"


def packed(target: str, **weights: Any) -> dict[str, Any]:
    scheme = {"type": "int", "num_bits": 4, "strategy": "group", "symmetric": True, **weights}
    return {"targets": [target], "weights": scheme}


def of_groups(*groups: dict[str, Any]) -> dict[str, Any]:
    rows = {f"group_{index}": group for index, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": rows}


def quantization_of(written: dict[str, Any], folder: Path, **more: Any) -> Quantization:
    return facts_of({**LLAMA, "quantization_config": written, **more}, folder).quantization


def test_a_channel_is_one_group(tmp_path: Path) -> None:
    written = of_groups(packed("Linear", strategy="channel", group_size=None))
    found = bits_of(quantization_of(written, tmp_path), MLP)
    assert found["weight_scale"] == (512, 1)


def test_each_group_of_modules_has_its_own_size_and_zero_points(tmp_path: Path) -> None:
    own = packed("re:.*self_attn.*", group_size=32, symmetric=False)
    found = quantization_of(of_groups(own, packed("Linear", group_size=64)), tmp_path)
    document = json.loads(json.dumps(checkpoint.to_document(checkpoint.gather(str(tmp_path)))))
    for known in (found, checkpoint.from_document(document).quantization):
        assert bits_of(known, ATTENTION)["weight_scale"] == (512, 16)
        assert "weight_zero_point" in bits_of(known, ATTENTION)
        assert bits_of(known, MLP)["weight_scale"] == (512, 8)
        assert "weight_zero_point" not in bits_of(known, MLP)


def test_modules_of_a_mixture_are_written_in_the_words_of_modelopt(tmp_path: Path) -> None:
    layers = {
        MLP: {"quant_algo": "W4A16_AWQ", "group_size": 64},
        ATTENTION: {"quant_algo": "FP8_PB_WO"},
    }
    written = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    found = facts_of(LLAMA, tmp_path, written).quantization
    assert bits_of(found, MLP)["weight_scale"] == (512, 8)
    assert bits_of(found, ATTENTION)["weight_scale"] == (4, 1, 4, 1)


@pytest.mark.parametrize(
    ("written", "plain", "quantized"),
    [
        ({"quant_method": "fp8", "ignored_layers": [ATTENTION]}, ATTENTION, MLP),
        ({**GPTQ, "modules_in_block_to_quantize": [["mlp.up_proj"]]}, ATTENTION, MLP),
        ({**GPTQ, "dynamic": {r"-:.*\.\d+\..*self_attn.*": {}}}, ATTENTION, MLP),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "lm_head", MLP),
    ],
)
def test_what_is_listed_in_the_words_of_its_writer_is_read(
    written: dict[str, Any], plain: str, quantized: str, tmp_path: Path
) -> None:
    found = quantization_of(written, tmp_path)
    assert list(bits_of(found, plain)) == ["weight"]
    assert len(bits_of(found, quantized)) > 1


def test_gptq_and_awq_leave_routers_whatever_their_names(tmp_path: Path) -> None:
    found = quantization_of(GPTQ, tmp_path)
    assert list(bits_of(found, "model.layers.0.router.proj", "router")) == ["weight"]


def test_the_main_format_is_that_of_the_experts(tmp_path: Path) -> None:
    fp4 = compressed("float4 tensor_group", "float4 tensor_group")["config_groups"]["group_0"]
    fp8 = compressed("float8 channel", "float8 token")["config_groups"]["group_0"]
    written = of_groups({**fp4, "targets": ["re:.*self_attn.*"]}, {**fp8, "targets": ["Linear"]})
    row = next(row for row in PLANNED if row[1] == "Qwen3MoeForCausalLM")
    config = json.loads((folder_of(row, tmp_path) / "config.json").read_text())
    facts = facts_of({**config, "quantization_config": written}, tmp_path)
    assert facts.precision == "FP8"
    assert facts.quantization.arithmetics == ("FP8", "NVFP4")


def test_the_older_key_of_llm_compressor_is_read(tmp_path: Path) -> None:
    written = of_groups(packed("Linear", group_size=128))
    assert facts_of({**LLAMA, "compression_config": written}, tmp_path).precision == "W4A16"


def test_many_expressions_that_are_slow_together_are_refused(tmp_path: Path) -> None:
    quick = [rf"re:.*layers\.{number}\.self_attn.*{n}" for n in range(40) for number in DIGITS]
    written = compressed("float4 tensor_group", "float4 tensor_group", ignore=quick)
    assert quantization_of(written, tmp_path).quant_algo == "NVFP4"
    written["ignore"] = [f"re:.*.*.*.*!{n}" for n in range(17)]
    with pytest.raises(BadFacts, match="write at most 16 with three repetitions"):
        quantization_of(written, tmp_path)


def test_parts_of_a_bundle_of_another_type_are_told(tmp_path: Path) -> None:
    quantization_of(AWQ, tmp_path)
    document = checkpoint.to_document(checkpoint.gather(str(tmp_path)))
    document["quantization"]["parts"] = ["x"]
    with pytest.raises(BadFacts, match=r"checkpoint.json: quantization.parts"):
        checkpoint.from_document(document)


def test_groups_of_modules_have_the_first_pattern_that_fits_them(tmp_path: Path) -> None:
    """As compressed-tensors orders them: names, then patterns by their letters."""
    fp8 = compressed("float8 channel", "float8 token")["config_groups"]["group_0"]
    fp4 = compressed("float4 tensor_group", "float4 tensor_group")["config_groups"]["group_0"]
    late = r"re:.*layers\.(30|31)\.mlp\.(gate|up|down)_proj$"
    fp8["targets"], fp4["targets"] = ["re:.*self_attn.*", late], ["re:.*mlp.*_proj$"]
    written = {
        "quant_method": "compressed-tensors",
        "config_groups": {"a": fp8, "b": fp4},
        "ignore": ["lm_head", "model.layers.0.self_attn.q_proj"],
    }
    facts = facts_of({**LLAMA, "quantization_config": written}, tmp_path)
    found = facts.quantization.format_of
    assert facts.precision == "NVFP4"
    assert found("model.layers.1.self_attn.q_proj") == "FP8"
    assert found("model.layers.1.mlp.up_proj") == "NVFP4"
    assert found("model.layers.31.mlp.up_proj") == "FP8"
    assert found("model.layers.0.self_attn.q_proj") is None
    assert found("lm_head") is None


def test_the_exporters_word_for_the_kv_cache_is_taken_as_its_scheme(tmp_path: Path) -> None:
    both = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}
    inline = {"quant_algo": "NVFP4", "kv_cache_scheme": "NVFP4", "quant_method": "modelopt"}
    facts = facts_of({**LLAMA, "quantization_config": inline}, tmp_path, both)
    assert facts.quantization.kv_cache_quant_algo == "NVFP4"


def test_names_that_the_exporter_spoiled_are_to_be_cut(tmp_path: Path) -> None:
    spoiled = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head.\0backbone.pt_name_sentinel"]}
    with pytest.raises(BadFacts, match=r"after a NUL.*cut them off.*the first is lm_head"):
        facts_of(LLAMA, tmp_path, spoiled)


def test_a_kv_cache_that_no_engine_keeps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match="a KV cache in INT8 is not supported"):
        facts_of(LLAMA, tmp_path, {"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"})


@pytest.mark.parametrize(("algorithm", "share"), [("NVFP4", 0.33), ("FP8", 0.55)])
def test_experts_in_one_tensor_are_as_small_as_their_format(
    algorithm: str, share: float, tmp_path: Path
) -> None:
    row = next(row for row in PLANNED if row[1] == "Llama4ForConditionalGeneration")
    folder_of(row, tmp_path)
    plain = checkpoint.gather(str(tmp_path)).nbytes
    quantization = {"quant_algo": algorithm, "exclude_modules": ["*self_attn*", "*lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    assert checkpoint.gather(str(tmp_path)).nbytes < share * plain


def test_layers_that_a_search_left_out_have_no_weights_and_no_kv_cache(tmp_path: Path) -> None:
    whole = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 5.25}}
    bare = {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3125}}
    config = {**LLAMA, "architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 2}
    config |= {"block_configs": [whole, bare], "num_key_value_heads": None}
    facts = facts_of(config, tmp_path)
    assert facts.architecture.attention_layers(facts.text_config) == 1
    assert facts.text_config["num_key_value_heads"] == 8
    widths = [row.shape[0] for row in facts.architecture.tensors(facts.text_config)]
    assert (14336 in widths, 3584 in widths) == (True, True)


def test_kinds_of_layers_are_known_by_the_names_that_transformers_writes(tmp_path: Path) -> None:
    row = next(row for row in PLANNED if row[0] == "nemotron-3-nano-30b")
    published = checkpoint.gather(str(folder_of(row, tmp_path)))
    config = json.loads((tmp_path / "config.json").read_text())
    words = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}
    config["layers_block_type"] = [words[one] for one in config.pop("hybrid_override_pattern")]
    written = facts_of(config, tmp_path)
    assert written.parameters == published.parameters
    assert written.architecture.attention_layers(written.text_config) == 6


@by_table
def test_tensors_are_called_as_in_the_published_files(
    model: str, tensor: str, shape: list[int], tmp_path: Path
) -> None:
    facts = checkpoint.gather(str(folder_of(next(r for r in PLANNED if r[0] == model), tmp_path)))
    tensors = facts.architecture.tensors(facts.text_config)
    found = {name: row.shape for row in tensors for name in row.names()}
    assert found[tensor] == tuple(shape)


def test_of_a_multimodal_model_the_language_model_is_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match=r"its language model is a LlamaForCausalLM.*llm_config"):
        facts_of({"architectures": ["InternVLChatModel"], "llm_config": LLAMA}, tmp_path)


def test_without_an_architecture_the_type_of_the_model_tells_which(tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match=r'add "architectures": \["LlamaForCausalLM"\]'):
        facts_of({**LLAMA, "architectures": None, "model_type": "llama"}, tmp_path)


@by_table
def test_a_folder_without_a_config_is_told_for_what_it_is(
    file: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(BadFacts, match=said):
        checkpoint.gather(str(tmp_path))


def test_the_cache_of_the_hub_and_the_file_itself_mean_the_folder(tmp_path: Path) -> None:
    cached = tmp_path / "models--acme--Tiny-1B"
    snapshot = cached / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abcd\n")
    facts_of(LLAMA, snapshot)
    assert checkpoint.gather(str(cached)).name == "acme/Tiny-1B"
    assert checkpoint.gather(str(snapshot / "config.json")).name == "acme/Tiny-1B"


@by_table
def test_clients_call_the_model_by_the_last_part_of_its_name(reference: str, name: str) -> None:
    assert model_names.served_name(reference) == name


def test_a_folder_whose_reference_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "refs").mkdir()
    os.mkfifo(tmp_path / "refs" / "main")
    for name in (str(tmp_path), "x" * 300):
        with pytest.raises(BadFacts, match=r"config\.json"):
            checkpoint.gather(name)
    with pytest.raises(BadInput, match="there is no such folder"):
        checkpoint.gather("x/" * 5000)


@pytest.mark.parametrize("row", REFUSED, ids=name_of)
def test_another_architecture_is_refused_with_the_next_step(row: list[Any], tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match=r"is not supported; .*\d+ others are.*builder check"):
        checkpoint.gather(str(folder_of(row, tmp_path)))
