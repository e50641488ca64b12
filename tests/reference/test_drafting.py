"""Drafts of every kind change how many steps an answer takes, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import miniature
from builder.errors import BadFacts
from builder.facts import checkpoint
from tensorrt_llm import LLM, SamplingParams, options
from tests.reference.conftest import DEEPSEEK, LLAMA, EngineOf, generate
from tests.reference.test_models import GPT_OSS, TOKENS, accepted_drafts, prompts, tokens_of

LLAMA_70B, LLAMA_1B = "nvidia/Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.2-1B-Instruct"
MINIMAX = "nvidia/MiniMax-M2.5-NVFP4"
GREEDY = SamplingParams(max_tokens=TOKENS, ignore_eos=True, return_perf_metrics=True)

Pair = Callable[[str, str | None], tuple[Path, Path]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The miniatures of a model and of its draft; without a name, of an Eagle3 head."""

    def make(model: str, draft: str | None) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("pair")
        folders = folder / "model", folder / "draft"
        for one in folders:
            one.mkdir()
        known = checkpoint.gather(draft) if draft else None
        miniature.write_pair(checkpoint.gather(model), known, *folders)
        return folders

    return make


def drafting(kind: str, folder: Path | None = None, tokens: int = 3) -> dict[str, Any]:
    model = {"speculative_model_dir": str(folder)} if folder else {"max_matching_ngram_size": 2}
    return {"decoding_type": kind, "max_draft_len": tokens, **model}


def answers(
    folder: Path, speculative: dict[str, Any] | None = None
) -> tuple[list[list[int]], float]:
    """The greedy answers to a batch of prompts, and the share of drafts that was accepted."""
    with LLM(folder, speculative_config=speculative) as llm:
        requests = generate(llm, prompts(3, seed=1), GREEDY)
    accepted = sum(map(accepted_drafts, requests))
    metrics = [request.outputs[0].request_perf_metrics for request in requests]
    drafted = sum(one.speculative_decoding.total_draft_tokens for one in metrics if one)
    return tokens_of(requests), accepted / drafted if drafted else 0.0


@pytest.mark.parametrize(
    ("kind", "model", "draft"),
    [
        ("DraftTarget", LLAMA_70B, LLAMA_1B),
        ("Eagle", MINIMAX, None),
        ("Eagle", GPT_OSS, None),  # with layers of a sliding window, in which drafts are taken back
    ],
)
def test_greedy_output_with_a_draft_is_the_output_without(
    kind: str, model: str, draft: str | None, pair: Pair
) -> None:
    target, drafter = pair(model, draft)
    plain, none = answers(target)
    assert none == 0
    drafted, accepted = answers(target, drafting(kind, drafter))
    assert drafted == plain
    assert 0.05 < accepted < 0.95
    looked_up, accepted = answers(target, drafting("NGram"))
    assert looked_up == plain
    assert accepted > 0


def test_all_drafts_of_the_same_model_are_accepted(pair: Pair) -> None:
    target, _ = pair(LLAMA_70B, LLAMA_1B)
    drafted, accepted = answers(target, drafting("DraftTarget", target, tokens=4))
    assert drafted == answers(target)[0]
    assert accepted == 1


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        (drafting("DraftTarget", Path("nowhere")), "nowhere: is not a folder; .* DRAFT_CHECKPOINT"),
        (
            {"decoding_type": "DraftTarget", "max_draft_len": 1},
            "speculative_model: DraftTarget needs",
        ),
    ],
)
def test_a_draft_model_that_is_not_there_is_refused(
    engine: EngineOf, speculative: dict[str, Any], message: str
) -> None:
    with pytest.raises((BadFacts, options.OptionError), match=message):
        engine(LLAMA, speculative_config=speculative)


@pytest.mark.parametrize(
    ("kind", "model", "message"),
    [
        ("Eagle", LLAMA, "is no draft for eagle3; compare decoding_type"),
        ("DraftTarget", "head", "is no draft for draft_target; compare decoding_type"),
    ],
)
def test_a_draft_of_another_kind_is_refused(
    kind: str, model: str, message: str, make_miniature: Callable[[str], Path], pair: Pair
) -> None:
    folder = pair(DEEPSEEK, None)[1] if model == "head" else make_miniature(model)
    with pytest.raises(BadFacts, match=message):
        LLM(make_miniature(LLAMA), speculative_config=drafting(kind, folder))
