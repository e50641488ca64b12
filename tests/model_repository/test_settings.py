"""The settings of the model: what `model.yaml` and the variables beside it may say; no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from trtllm_model import settings

LEAST: dict[str, Any] = {"max_batch_size": 0, "decoupled": True}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "other.yaml"
    monkeypatch.setenv("LLM_CONFIG_PATH", str(path))
    monkeypatch.delenv("CHECKPOINT", raising=False)
    return path


def read(file: Path, model: str | None = "some/checkpoint", **triton: Any) -> settings.Settings:
    named = {} if model is None else {"model": model}
    document = {"triton_config": {**LEAST, **triton}, **named, "dtype": "bfloat16"}
    file.write_text(yaml.safe_dump(document))
    return settings.read()


def refusal(file: Path) -> str:
    with pytest.raises(ValueError) as refused:
        settings.read()
    place, _, words = str(refused.value).partition(": ")
    assert place == str(file)
    return words


def test_the_engine_gets_the_rest_of_the_file(file: Path) -> None:
    found = read(file, max_requests=4)
    assert found.engine_options == {"model": "some/checkpoint", "dtype": "bfloat16"}
    assert (found.max_batch_size, found.decoupled, found.max_requests) == (0, True, 4)


def test_no_limit_stands_that_nobody_set(file: Path) -> None:
    found = read(file)
    limits = (found.max_requests, found.max_prompt_bytes, found.max_tokens_per_request)
    assert (*limits, found.max_seconds_per_request) == (None,) * 4


def test_a_checkpoint_that_is_mounted_elsewhere_replaces_the_model(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINT", "/mnt/weights")
    assert read(file).engine_options["model"] == "/mnt/weights"
    assert read(file, model=None).engine_options["model"] == "/mnt/weights"
    monkeypatch.setenv("CHECKPOINT", "")
    assert read(file).engine_options["model"] == "some/checkpoint"


def test_the_file_is_beside_the_model_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "VERSION_FOLDER", tmp_path)
    for name, variable in {"model.yaml": None, "near.yaml": "near.yaml"}.items():
        (tmp_path / name).write_text(
            "triton_config: {max_batch_size: 3, decoupled: false}\nmodel: x"
        )
        if variable:
            monkeypatch.setenv("LLM_CONFIG_PATH", variable)
        else:
            monkeypatch.delenv("LLM_CONFIG_PATH", raising=False)
        found = settings.read()
        assert (found.max_batch_size, found.decoupled) == (3, False)
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"model: [", "cannot be read: while parsing"),
        (b"\xff", "cannot be read: 'utf-8' codec can't decode"),
        (b"- 1", "must be a mapping with a mapping triton_config in it"),
        (b"model: x", "must be a mapping with a mapping triton_config in it"),
        (b"triton_config: [1]", "must be a mapping with a mapping triton_config in it"),
        (b"triton_config: {}", "triton_config lacks max_batch_size and decoupled"),
        (b"triton_config: {max_batch_size: 0}", "triton_config lacks decoupled"),
        (
            b"triton_config: {max_batch_size: 0, decoupled: true}",
            "has no model; set model there, or CHECKPOINT",
        ),
        (
            b"triton_config: {max_batch_size: 0, decoupled: true}\nmodel: ''",
            "has no model; set model there, or CHECKPOINT",
        ),
        (
            b"triton_config: {max_batch_size: 0, decoupled: true, drain: 1}",
            "triton_config.drain: is unknown; the keys are max_batch_size, decoupled, canc",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    file: Path, text: bytes, words: str
) -> None:
    file.write_bytes(text)
    assert refusal(file).startswith(words)


def test_a_file_that_is_missing_is_named(file: Path) -> None:
    assert refusal(file).startswith("cannot be read: [Errno 2] No such file or directory")


WHOLE_OR_NULL = ([1, 10**9, None], [0, -1, 1.5, True, "3"], "a whole number from 1, or null")
ABOVE_0_OR_NULL = ([0.5, 1, None], [0, -1, True, "3"], "a number above 0, or null")
# Key -> the values that it may have and may not, and what is said of those.
VALUES: dict[str, tuple[list[Any], list[Any], str]] = {
    "max_batch_size": ([0, 8], [-1, 1.5, True, None, "1"], "a whole number from 0"),
    "decoupled": ([True, False], [0, None, "true"], "true or false"),
    "cancellation_check_period_ms": (
        [0.5, 10_000],
        [0, -1, 10_001, True, None, "1"],
        "a number up to 10000",
    ),
    "sender_threads": ([1, 8], [0, 9, 1.5, True, None, "2"], "from 1 to 8"),
    **dict.fromkeys(
        (
            "max_requests",
            "max_unary_http_requests",
            "max_unary_http_running",
            "max_prompt_bytes",
            "max_tokens_per_request",
        ),
        WHOLE_OR_NULL,
    ),
    "max_seconds_per_request": ABOVE_0_OR_NULL,
    "engine_stall_timeout_s": ABOVE_0_OR_NULL,
    "drain_timeout_s": ([0.5, 240], [0, -1, True, None, "9"], "a number above 0"),
}


@pytest.mark.parametrize("key", VALUES)
def test_a_key_has_a_value_that_it_may_have(file: Path, key: str) -> None:
    allowed, refused, rule = VALUES[key]
    for value in allowed:
        assert getattr(read(file, **{key: value}), key) == value
    for value in refused:
        with pytest.raises(ValueError, match=r"triton_config\.") as wrong:
            read(file, **{key: value})
        words = f"{file}: triton_config.{key}: is {value!r}; it must be {rule}"
        assert str(wrong.value) == words
