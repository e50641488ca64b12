"""Options are accepted and refused as the release does, and those with an effect have it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

import tensorrt_llm
from builder.errors import BadFacts
from tensorrt_llm import LLM, _utils, options
from tensorrt_llm.commands import serve
from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict
from tests.reference.conftest import REFERENCE, mtp


def test_the_version_says_what_this_is() -> None:
    assert tensorrt_llm.__version__ == "1.2.1+reference"


def test_it_always_runs_in_one_process() -> None:
    assert (_utils.global_mpi_rank(), _utils.global_mpi_size()) == (0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_paralel_size": 4}, r"tensor_paralel_size: .*did you mean tensor_parallel_size"),
        ({"kv_cache_config": {"dtyp": "fp8"}}, r"kv_cache_config\.dtyp: .*did you mean dtype"),
        ({"max_batch_size": "many"}, r"max_batch_size: is many; expected a whole number"),
        ({"stream_interval": 0}, r"stream_interval: 0 is out of range; must be > 0"),
        ({"moe_config": {"backend": "AUTO"}}, r"moe_config\.backend: AUTO is not allowed"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 1.5}}, r"fraction: 1.5 is out of range"),
        ({"speculative_config": {"max_draft_len": 3}}, r"speculative_config: decoding_type is"),
        ({"speculative_config": {"decoding_type": "Eagle3"}}, r"Eagle3 is not allowed in release"),
        ({"speculative_config": {**mtp(1), "speculative": 1}}, r"speculative_config\.speculative"),
        ({"backend": "_autodeploy"}, r"backend: .*cannot replace backend _autodeploy"),
    ],
)
def test_a_wrong_option_is_refused_with_its_path_and_a_remedy(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM("nowhere", **given)


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(options.OptionError) as caught:
        options.read({"model": "x", "stream_interval": 0, "max_num_token": 1})
    assert [problem.where for problem in caught.value.diagnostics] == [
        "stream_interval",
        "max_num_token",
    ]


def test_a_model_that_is_no_folder_is_refused() -> None:
    with pytest.raises(BadFacts, match="nowhere: is not a folder"):
        LLM("nowhere")


def test_options_of_the_gpu_engine_are_accepted() -> None:
    given = {
        "model": "x",
        "tensor_parallel_size": 4,
        "moe_config": {"backend": "TRTLLM"},
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 64},
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.8},
        "enable_attention_dp": True,
    }
    assert options.read(given).max_batch_size == 2048


def test_values_are_read_as_the_engine_reads_them() -> None:
    read = options.read({"model": "x", "max_batch_size": "8", "return_perf_metrics": "true"})
    assert (read.max_batch_size, read.return_perf_metrics) == (8, True)
    assert read.tokens_per_block == 32


@pytest.mark.parametrize(
    ("speculative", "drafts"),
    [
        (None, 0),
        (mtp(3), 3),
        ({"decoding_type": "MTP"}, 1),
        ({"decoding_type": "MTP", "max_draft_len": 3}, 1),
        ({"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}, 3),
        ({"decoding_type": "Lookahead"}, 0),
    ],
)
def test_the_draft_length_is_the_one_that_the_release_uses(
    speculative: dict[str, Any] | None, drafts: int
) -> None:
    assert options.read({"model": "x", "speculative_config": speculative}).draft_tokens == drafts


def in_release(release: str, code: str) -> str:
    """What a program prints with the engine of another release."""
    own = {"TENSORRT_LLM_REFERENCE_RELEASE": release, "PYTHONPATH": str(REFERENCE)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_release_can_be_chosen() -> None:
    code = (
        "from tensorrt_llm import __version__, options\n"
        "spec = {'decoding_type': 'MTP', 'max_draft_len': 3}\n"
        "print(__version__, options.read({'speculative_config': spec}).draft_tokens)"
    )
    assert in_release("main-00043967", code) == "main-00043967+reference 3"


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import tensorrt_llm, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert in_release("1.2.1", code) == "False False"


def test_an_option_file_replaces_whole_values_except_for_the_kv_cache() -> None:
    below = {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "dtype": "auto"},
        "moe_config": {"backend": "CUTLASS", "max_num_tokens": 8},
        "max_batch_size": 4,
    }
    above = {"kv_cache_config": {"dtype": "fp8"}, "moe_config": {"backend": "TRTLLM"}}
    assert update_llm_args_with_extra_dict(below, above) == {
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "dtype": "fp8"},
        "moe_config": {"backend": "TRTLLM"},
        "max_batch_size": 4,
    }


def test_up_to_1_2_1_the_option_file_wins_over_typed_flags(tmp_path: Any) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max_batch_size: 8\nkv_cache_config: {dtype: fp8}\n")
    release = options.release()
    typed = {"model": "x", "max_batch_size": 16, "extra_llm_api_options": str(file)}
    flags = {flag.name: flag.default for flag in release.serve_flags} | typed
    merged = serve.engine_options(release, flags, typed)
    assert merged["max_batch_size"] == 8
    assert merged["kv_cache_config"] == {"free_gpu_memory_fraction": 0.9, "dtype": "fp8"}


def test_on_main_a_typed_flag_wins_and_its_default_does_not() -> None:
    code = (
        "from pathlib import Path\n"
        "from tensorrt_llm import options\n"
        "from tensorrt_llm.commands import serve\n"
        "import tempfile\n"
        "file = Path(tempfile.mkdtemp()) / 'o.yaml'\n"
        "file.write_text('max_batch_size: 8\\nmax_num_tokens: 16\\n')\n"
        "release = options.release()\n"
        "typed = {'max_batch_size': 4, 'extra_llm_api_options': str(file)}\n"
        "flags = {f.name: f.default for f in release.serve_flags} | typed\n"
        "merged = serve.engine_options(release, flags, typed)\n"
        "print(merged['max_batch_size'], merged['max_num_tokens'])"
    )
    assert in_release("main-00043967", code) == "4 16"
