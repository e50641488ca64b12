"""A `config.json` with a malformed field: every command says which file and field, or does without.

Fields and values are drawn from the published configurations of every family.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.cli.main import main
from builder.errors import BadFacts
from builder.facts import checkpoint, model_names

REMOVED = object()
VALUES: tuple[Any, ...] = (
    *(None, "x", "", [], -1, 0, 1e9, 10**12, {}, True, [[1, [2]]], {"a": {"b": 1}}, 1.5, ["x"]),
    REMOVED,
)
DEPLOYMENT = """\
name: malformed
checkpoint: model
hardware: {gpu: gb200, num_gpus: 4}
engine: {name: tensorrt_llm, release: 1.2.1}
workload: {isl: 1000, osl: 1000, concurrency: 16}
targets: [trtllm_serve]
"""


def families() -> dict[str, dict[str, Any]]:
    """A published configuration of each architecture."""
    found: dict[str, dict[str, Any]] = {}
    for name in model_names.known_names():
        config = dict(checkpoint.gather(name).config)
        found.setdefault(config["architectures"][0], config)
    return found


FAMILIES = families()


def fields(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (name,)
        if isinstance(value, dict):
            yield from ((name, *inner) for inner in fields(value))


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(config))
    holder = copy
    for name in path[:-1]:
        holder = holder[name]
    if value is REMOVED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return copy


@pytest.mark.parametrize("family", FAMILIES)
def test_no_malformed_field_ends_in_a_bug(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(family)
    config = FAMILIES[family]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "deployment.yaml").write_text(DEPLOYMENT)
    (tmp_path / "options.yaml").write_text("tensor_parallel_size: 4\nmax_seq_len: 8192\n")
    for path in draw.sample(sorted(fields(config)), 2):
        value = draw.choice(VALUES)
        (tmp_path / "model/config.json").write_text(json.dumps(changed(config, path, value)))
        for words in (
            ("inspect", "model"),
            ("plan", "deployment.yaml"),
            ("check", "options.yaml", "--model", "./model"),
        ):
            assert main(words) in (0, 2, 3), f"{words[0]}: {'.'.join(path)} is {value!r}"
            assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("family", "path", "value"),
    [
        ("Qwen3_5MoeForConditionalGeneration", ("text_config", "full_attention_interval"), ["x"]),
        ("KimiK3ForConditionalGeneration", ("text_config", "linear_attn_config"), 7),
        ("KimiK3ForConditionalGeneration", ("text_config", "linear_attn_config"), {}),
        ("NemotronHForCausalLM", ("moe_intermediate_size",), REMOVED),
        ("NemotronHForCausalLM", ("moe_shared_expert_intermediate_size",), {}),
        ("NemotronHForCausalLM", ("n_routed_experts",), {"a": 1}),
        ("NemotronHForCausalLM", ("hybrid_override_pattern",), {}),
    ],
)
def test_the_field_is_named(family: str, path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(changed(FAMILIES[family], path, value)))
    with pytest.raises(BadFacts, match=rf"field {path[-1]} is missing or not a plausible"):
        checkpoint.gather(str(tmp_path))
