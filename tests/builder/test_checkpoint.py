"""Facts of checkpoints: shipped ones, folders, and folders with faults."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadFacts, BadInput
from builder.facts import checkpoint, checkpoint_files, model_names
from builder.facts.architecture import architectures
from tests.builder.conftest import Say
from tests.conftest import Run
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

V32 = "nvidia/DeepSeek-V3.2-NVFP4"
GPT_OSS = "openai/gpt-oss-120b"


# Estimated by their source, not read off files: about 1.68 TB.
ESTIMATED = {"moonshotai/Kimi-K3"}


def test_computed_sizes_match_all_published_ones(say: Say) -> None:
    for name in model_names.known_names():
        facts = checkpoint.gather(name)
        if facts.published_bytes is None:
            continue
        error = facts.nbytes / facts.published_bytes - 1
        say(f"{name}: {facts.nbytes / 1e9:.2f} GB computed, {error:+.2%} of what is published")
        assert abs(error) < (0.1 if name in ESTIMATED else 0.01)


@by_table
def test_parameter_count_matches_the_model_card(name: str, billions: float) -> None:
    assert checkpoint.gather(name).parameters / 1e9 == pytest.approx(billions, rel=0.001)


def test_mtp_layers_are_those_with_weights() -> None:
    """MiniMax-M2.5 names three MTP modules in its config, whose weights nobody published."""
    minimax = checkpoint.gather("nvidia/MiniMax-M2.5-NVFP4")
    assert minimax.config["num_mtp_modules"] == 3
    assert minimax.mtp_layers == 0
    assert checkpoint.gather(V32).mtp_layers == 1


@pytest.mark.parametrize("name", model_names.known_names())
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


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer" in faults(folder)


def only_configuration(folder: Path) -> Path:
    for path in folder.iterdir():
        if path.name not in ("config.json", "hf_quant_config.json"):
            path.unlink()
    return folder


def test_the_configuration_alone_tells_what_the_whole_folder_does(folder: Path) -> None:
    whole = checkpoint.gather(str(folder))
    alone = checkpoint.gather(str(only_configuration(folder)))
    assert alone.groups == whole.groups
    assert (whole.verified, alone.verified) == (True, False)
    assert "weights are computed from the architecture" in alone.source
    assert "copy the weights" in alone.notes[0]


def test_the_index_tells_the_published_size_where_there_are_no_weights(folder: Path) -> None:
    only_configuration(folder)
    index = {"metadata": {"total_size": 123_456}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert checkpoint.gather(str(folder)).published_bytes == 123_456


@by_table
def test_a_model_is_known_by_all_its_published_spellings(reference: str, name: str) -> None:
    assert checkpoint.gather(reference).name == name


@by_table
def test_an_address_on_the_hub_means_the_name(spelling: str) -> None:
    for name in model_names.known_names():
        assert checkpoint.gather(spelling.format(name)).name == name
        nvfp4_as_before = spelling.format(name.replace("-NVFP4", "-FP4"))
        assert checkpoint.gather(nvfp4_as_before).name == name
        cached = f"models--{name.replace('/', '--', 1)}"
        assert checkpoint.gather(cached).name == name or "/" not in name


@by_table
def test_a_sibling_is_no_model_that_is_known_but_its_series_is_named(
    name: str, nearest: str | None
) -> None:
    with pytest.raises(BadFacts) as caught:
        checkpoint.gather(name)
    said, _, rest = str(caught.value).partition("Known: ")
    assert rest
    assert "did you mean" not in said
    assert (nearest in said) if nearest else ("of the same series" not in said)


def test_every_name_is_one_models_alone_in_every_spelling() -> None:
    names = {**model_names.known_aliases(), **model_names.known_names()}
    for whole, path in names.items():
        for spelling in (whole, whole.upper(), whole.rpartition("/")[2], whole.lower()):
            assert model_names.shipped_file(spelling) == path, spelling


def test_a_folder_goes_before_a_loose_spelling_and_after_the_name(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "gpt-oss-120b")
    assert checkpoint.gather("gpt-oss-120b", tmp_path).architecture.name == "DeepseekV32ForCausalLM"
    assert checkpoint.gather("GPT-OSS-120b", tmp_path).name == GPT_OSS


def test_an_unknown_model_lists_the_known_ones_and_the_next_step() -> None:
    with pytest.raises(BadFacts) as caught:
        checkpoint.gather("acme/Unheard-Of-7B")
    text = str(caught.value)
    assert "did you mean" not in text
    assert "download config.json" in text
    assert all(name in text for name in model_names.known_names())


@by_table
def test_a_path_that_is_no_folder_is_bad_input_and_names_its_nearest_parent(
    given: str, said: str, builder: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a model without facts: for those there are other words, and exit status 3."""
    (tmp_path / "models/llama").mkdir(parents=True)
    (tmp_path / "models/llama/weights.gguf").touch()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    given, said = given.format(tmp_path), said.format(tmp_path)
    with pytest.raises(BadInput, match=re.escape(said)):
        checkpoint.gather(given)
    for words in (["inspect", given], ["plan", "llama-tiny", "--set", f"checkpoint={given}"]):
        done = builder(*words)
        assert done.returncode == 2, words
        assert said in done.stderr


def test_a_shard_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors: is named in the index, but missing" in faults(folder)


def test_a_missing_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "has no config.json; download config.json" in faults(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", "holds a list, not an object"), ("{", "is not JSON"), ("{}", "names no architecture")],
)
def test_a_config_that_is_none_is_refused(text: str, said: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert f"config.json: {said}" in faults(folder)


def test_missing_config_fields_are_all_listed(folder: Path) -> None:
    change(folder / "config.json", lambda c: (c.pop("q_lora_rank"), c.pop("vocab_size")))
    text = faults(folder)
    assert "field q_lora_rank is missing" in text
    assert "field vocab_size is missing" in text


def test_an_unsupported_architecture_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda c: c.update(architectures=["LlamaForCausaLM"]))
    assert "LlamaForCausaLM is not supported; did you mean LlamaForCausalLM?" in faults(folder)


def test_another_architecture_is_not_taken_for_a_misspelt_one(folder: Path) -> None:
    change(folder / "config.json", lambda c: c.update(architectures=["MambaForCausalLM"]))
    text = faults(folder)
    assert "MambaForCausalLM is not supported; " in text
    assert f"{len(architectures())} others are, each a row of" in text
    assert text.endswith("; it is served by vLLM 0.14.1, 0.20.0 or 0.32.0")
    assert "did you mean" not in text


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


def test_mtp_layers_without_weights_are_none(folder: Path) -> None:
    """transformers loads no MTP layers: what it writes counts them and does not hold them."""
    weights = folder / "model.safetensors"
    kept = [row for row in checkpoint_files.read_header(weights) if ".layers.4." not in row.name]
    zeros = ((tensor, bytes(tensor.nbytes)) for tensor in kept)
    checkpoint_files.write_safetensors(weights, zeros)
    facts = checkpoint.gather(str(folder))
    assert (facts.mtp_layers, facts.config["num_nextn_predict_layers"]) == (0, 0)
    assert "their weights are not in this folder" in facts.notes[0]


def test_weights_may_be_spread_over_shards(folder: Path) -> None:
    whole = checkpoint.gather(str(folder))
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    rows = [(name, entry, raw[8 + length :]) for name, entry in header.items()]
    for number, part in enumerate((rows[::2], rows[1::2])):
        tensors = (
            (
                checkpoint_files.Stored(name, entry["dtype"], tuple(entry["shape"])),
                data[slice(*entry["data_offsets"])],
            )
            for name, entry, data in part
        )
        checkpoint_files.write_safetensors(folder / f"model-{number}.safetensors", tensors)
    (folder / "model.safetensors").unlink()
    assert checkpoint.gather(str(folder)).groups == whole.groups


def test_a_large_tokenizer_is_no_fault(folder: Path) -> None:
    """Llama's is 17 MB."""
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" " * 17_000_000)
    assert checkpoint.gather(str(folder)).precision == "NVFP4"


@pytest.mark.parametrize("method", ["compressed-tensors", "bitsandbytes"])
def test_an_unknown_quantization_is_refused(method: str, folder: Path) -> None:
    (folder / "hf_quant_config.json").unlink()
    change(folder / "config.json", lambda c: c.update(quantization_config={"quant_method": method}))
    assert f"quant_method {method} is not supported; supported: NVFP4, FP8," in faults(folder)


def test_quantized_weights_without_a_quantization_config_are_a_contradiction(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(make_miniature("deepseek-ai/DeepSeek-V3.2"), tmp_path / "c")
    change(folder / "config.json", lambda c: c.pop("quantization_config"))
    assert "is F8_E4M3 [32, 64], expected BF16 [32, 64]" in faults(folder)


def test_modules_that_are_not_converted_stay_bf16(make_miniature: Callable[[str], Path]) -> None:
    """MiniMax-M2.5 lists its router as `gate`, which is no part of `gate_proj`."""
    folder = make_miniature("MiniMaxAI/MiniMax-M2.5")
    stored = {row.name: row for row in checkpoint_files.read_header(folder / "model.safetensors")}
    assert stored["model.layers.0.block_sparse_moe.gate.weight"].dtype == "BF16"
    assert stored["model.layers.0.block_sparse_moe.experts.0.w1.weight"].dtype == "F8_E4M3"


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: c.update(quantization_config="x"),
        lambda c: c.update(quantization_config={"quant_method": "modelopt", "ignore": None}),
        lambda c: c.update(num_nextn_predict_layers=None),
        lambda c: c.update(max_position_embeddings="x"),
        lambda c: c.update(num_attention_heads=0),
        lambda c: c.update(num_hidden_layers=True),
        lambda c: c.update(architectures="DeepseekV32ForCausalLM"),
    ],
)
def test_odd_values_in_the_config_are_facts_not_bugs(
    edit: Callable[[dict[str, Any]], object], folder: Path, builder: Run
) -> None:
    change(folder / "config.json", edit)
    done = builder("inspect", folder)
    assert done.returncode in (0, 3)
    assert "bug" not in done.stderr


@pytest.mark.parametrize(
    "document", [{"quantization": None}, {"quantization": {"exclude_modules": 3}}]
)
def test_odd_values_in_the_quantization_are_facts_not_bugs(
    document: dict[str, Any], folder: Path, builder: Run
) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps(document))
    done = builder("inspect", folder)
    assert done.returncode == 3
    assert "bug" not in done.stderr


def test_modules_that_mxfp4_does_not_convert_stay_bf16(
    make_miniature: Callable[[str], Path],
) -> None:
    groups = checkpoint.gather(str(make_miniature(GPT_OSS))).groups
    assert {group.role for group in groups if group.dtype == "U8"} == {"routed_expert"}
    assert {group.role for group in groups if group.dtype == "BF16"} > {"attention", "router"}


DRAFT_HEAD = TABLES["DRAFT_HEAD"]


def test_a_draft_head_needs_no_tokenizer_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DRAFT_HEAD))
    stored = [
        checkpoint_files.Stored("fc.weight", "BF16", (64, 192)),
        checkpoint_files.Stored("midlayer.hidden_norm.weight", "BF16", (64,)),
        checkpoint_files.Stored("midlayer.input_layernorm.weight", "BF16", (64,)),
        checkpoint_files.Stored("midlayer.post_attention_layernorm.weight", "BF16", (64,)),
        checkpoint_files.Stored("midlayer.self_attn.q_proj.weight", "BF16", (64, 128)),
        checkpoint_files.Stored("midlayer.self_attn.k_proj.weight", "BF16", (32, 128)),
        checkpoint_files.Stored("midlayer.self_attn.v_proj.weight", "BF16", (32, 128)),
        checkpoint_files.Stored("midlayer.self_attn.o_proj.weight", "BF16", (64, 64)),
        checkpoint_files.Stored("midlayer.mlp.gate_proj.weight", "BF16", (96, 64)),
        checkpoint_files.Stored("midlayer.mlp.up_proj.weight", "BF16", (96, 64)),
        checkpoint_files.Stored("midlayer.mlp.down_proj.weight", "BF16", (64, 96)),
        checkpoint_files.Stored("norm.weight", "BF16", (64,)),
        checkpoint_files.Stored("lm_head.weight", "BF16", (320, 64)),
        checkpoint_files.Stored("d2t", "I64", (320,)),
        checkpoint_files.Stored("t2d", "BOOL", (1000,)),  # not needed to serve it
    ]
    weights = ((tensor, bytes(tensor.nbytes)) for tensor in stored)
    checkpoint_files.write_safetensors(tmp_path / "model.safetensors", weights)
    head = checkpoint.gather(str(tmp_path))
    assert head.architecture.draft_head
    assert head.nbytes == sum(tensor.nbytes for tensor in stored[:-1])


def test_a_folder_named_like_weights_is_named(folder: Path) -> None:
    (folder / "extra.safetensors").mkdir()
    assert "extra.safetensors: is a folder" in faults(folder)


@by_table
def test_an_unknown_name_suggests_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(BadFacts, match=re.escape(meant)):
        checkpoint.gather(given)
