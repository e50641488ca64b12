"""Every architecture loads and generates; drafts of the MTP layer never change what comes out."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.cache_utils import DynamicCache

from builder.errors import BadFacts
from builder.facts import checkpoint, model_names
from tensorrt_llm import SamplingParams, weights
from tensorrt_llm import model as models
from tensorrt_llm.decoding import Decoding
from tensorrt_llm.drafting import MtpLayer
from tensorrt_llm.llmapi import RequestOutput
from tensorrt_llm.model import Model
from tensorrt_llm.options import Drafting
from tests.reference.conftest import DEEPSEEK, LLAMA, QWEN, EngineOf, generate, mtp

# Of each answer with drafts: enough for many of them to be right, and many to be wrong.
TOKENS = 60
DEEPSEEK_V3 = "nvidia/DeepSeek-V3.1-NVFP4"
GPT_OSS = "openai/gpt-oss-120b"


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(4, 900) for _ in range(rng.randrange(1, 90))] for _ in range(count)]


def tokens_of(outputs: Any) -> list[list[int]]:
    return [request.outputs[0].token_ids for request in outputs]


# Models of which transformers has the language model only as a part of a larger one.
WITHOUT_A_CLASS = {"MiniMaxM3SparseForConditionalGeneration", "KimiK3ForConditionalGeneration"}


def families() -> dict[tuple[str, ...], str]:
    """One known checkpoint of each architecture in each format."""
    found: dict[tuple[str, ...], str] = {}
    for name in model_names.known_names():
        facts = checkpoint.gather(name)
        formats = sorted(set(facts.quantization.parts.values()))
        found.setdefault((facts.architecture.name, facts.precision, *formats), name)
    return found


SERVED = [name for kind, name in families().items() if kind[0] not in WITHOUT_A_CLASS]
REFUSED = [name for kind, name in families().items() if kind[0] in WITHOUT_A_CLASS]


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_a_class_of_its_own_is_refused_with_the_next_step(
    engine: EngineOf, name: str
) -> None:
    with pytest.raises(BadFacts, match=r"has no model for .*; start the bundle with the real"):
        engine(name)


@pytest.mark.parametrize("name", SERVED)
def test_the_miniature_of_every_known_family_generates_words(engine: EngineOf, name: str) -> None:
    llm = engine(name)
    output = llm.generate_async(
        "Once upon a time", SamplingParams(max_tokens=8, ignore_eos=True)
    ).result(60)
    assert isinstance(output, RequestOutput)
    completion = output.outputs[0]
    assert (completion.length, completion.finish_reason) == (8, "length")
    assert completion.text == llm.tokenizer.decode(completion.token_ids)
    assert len(completion.text.split()) == 8


ARCHITECTURES = {kind[0]: name for kind, name in families().items() if name in SERVED}
WITH_DRAFTS = [(DEEPSEEK, 3), (DEEPSEEK_V3, 2), (QWEN, 3)]


@pytest.mark.parametrize(
    ("name", "drafts"), [*((name, 0) for name in ARCHITECTURES.values()), *WITH_DRAFTS]
)
def test_a_batch_gives_each_request_what_it_gets_alone(
    engine: EngineOf, name: str, drafts: int
) -> None:
    """Prompts and answers of different lengths, so that the batch changes while it runs."""
    llm = engine(name, **({"speculative_config": mtp(drafts)} if drafts else {}))
    given = prompts(3, seed=6)
    params = [
        SamplingParams(max_tokens=count, ignore_eos=True, logprobs=2, return_perf_metrics=True)
        for count in (3, 8, 5)
    ]
    together = [llm.generate_async(*pair) for pair in zip(given, params, strict=True)]
    for request in together:
        request.result(60)
    for prompt, wanted, request in zip(given, params, together, strict=True):
        alone = llm.generate_async(prompt, wanted).result(60)
        assert request.outputs[0].token_ids == alone.outputs[0].token_ids
        assert scores(request) == pytest.approx(scores(alone), abs=1e-4)
        assert draft_counts(request) == draft_counts(alone)


def scores(request: RequestOutput) -> list[float]:
    return [entry.logprob for row in request.outputs[0].logprobs for entry in row.values()]


def draft_counts(request: RequestOutput) -> Any:
    metrics = request.outputs[0].request_perf_metrics
    return request.decoding_iter, metrics and metrics.speculative_decoding


@pytest.mark.parametrize("name", [DEEPSEEK, QWEN, LLAMA, GPT_OSS])
def test_greedy_decoding_is_that_of_transformers(engine: EngineOf, name: str) -> None:
    llm = engine(name)
    prompt = prompts(1, seed=5)[0]
    own = llm.generate_async(prompt, SamplingParams(max_tokens=24, ignore_eos=True)).result(60)
    with torch.inference_mode():
        (theirs,) = llm._model.main.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
        )
    assert tokens_of([own])[0] == theirs[len(prompt) :].tolist()


@pytest.mark.parametrize("name", [DEEPSEEK, DEEPSEEK_V3, QWEN])
def test_greedy_output_with_mtp_is_the_output_without(engine: EngineOf, name: str) -> None:
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, return_perf_metrics=True)
    given = prompts(3, seed=1)
    plain = tokens_of(generate(engine(name), given, params))
    for drafts in (1, 3):
        drafted = generate(engine(name, speculative_config=mtp(drafts)), given, params)
        assert isinstance(drafted, list)
        assert tokens_of(drafted) == plain
        accepted = sum(accepted_drafts(request) for request in drafted)
        assert accepted / (3 * TOKENS) > 0.1


def accepted_drafts(request: RequestOutput) -> int:
    """Drafts that were right: as many steps were saved."""
    metrics = request.outputs[0].request_perf_metrics
    assert metrics is not None
    counts = metrics.speculative_decoding
    assert counts.total_accepted_draft_tokens <= counts.total_draft_tokens
    assert request.decoding_iter == TOKENS - counts.total_accepted_draft_tokens
    return counts.total_accepted_draft_tokens


@pytest.mark.parametrize("name", [DEEPSEEK, QWEN])
def test_sampled_output_with_mtp_is_the_output_without(engine: EngineOf, name: str) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
    given = prompts(3, seed=9)
    plain = generate(engine(name), given, params)
    drafted = generate(engine(name, speculative_config=mtp(3)), given, params)
    assert tokens_of(drafted) == tokens_of(plain)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
def test_drafts_never_go_beyond_max_tokens(engine: EngineOf, max_tokens: int) -> None:
    llm = engine(DEEPSEEK, speculative_config=mtp(3))
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, return_perf_metrics=True)
    completion = llm.generate_async("The", params).result(60).outputs[0]
    assert completion.length == max_tokens
    assert completion.request_perf_metrics
    # The first step gives one token, and each later one gives one more than its drafts at least.
    drafted = completion.request_perf_metrics.speculative_decoding.total_draft_tokens
    assert drafted == 0 if max_tokens < 3 else drafted > 0


def rms_norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def assert_same_keys(one: DynamicCache | None, other: DynamicCache | None) -> None:
    assert one is not None
    assert other is not None
    pairs: Any = zip(one.layers, other.layers, strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.indexer_keys, theirs.indexer_keys)


def drafts(model: Model, decoding: Decoding, next_token: int, count: int) -> list[int]:
    """Compute a step whose drafts are all wrong; the drafts after its next token."""
    model.forward([decoding])
    decoding.accept(0, next_token, count)
    model.advance([decoding])
    return decoding.inputs[1:]


@pytest.fixture(scope="module")
def drafting(make_miniature: Callable[[str], Path]) -> Model:
    return models.load(make_miniature(DEEPSEEK), Drafting("mtp", 3))


@torch.inference_mode()
def test_a_draft_joins_the_next_token_and_the_hidden_state_before_it(drafting: Model) -> None:
    prompt, following = prompts(1, seed=2)[0], 500
    raw = weights.load(drafting.checkpoint.path)[2] if drafting.checkpoint.path else {}
    own = {name.removeprefix("model.layers.4."): tensor for name, tensor in raw.items()}
    hidden = drafting.main.model(torch.tensor([prompt])).last_hidden_state
    embedding = own["embed_tokens.weight"][torch.tensor([[*prompt[1:], following]])]
    joined = torch.cat(
        (rms_norm(embedding, own["enorm.weight"]), rms_norm(hidden, own["hnorm.weight"])), dim=-1
    )
    assert isinstance(drafting.drafter, MtpLayer)
    cache = DynamicCache(config=drafting.drafter.config)
    output = drafting.drafter.layer.model(
        inputs_embeds=joined @ own["eh_proj.weight"].T, cache=cache, use_cache=True
    ).last_hidden_state
    expected = int((output[0, -1] @ own["shared_head.head.weight"].T).argmax())

    decoding = drafting.begin(prompt)
    assert drafts(drafting, decoding, following, count=1) == [expected]
    assert_same_keys(decoding.draft_cache, cache)


@torch.inference_mode()
def test_drafts_stand_on_what_was_accepted_only(drafting: Model) -> None:
    text = prompts(1, seed=8)[0][:24]
    decoding = drafting.begin(text[:8])
    for at in range(8, 20):
        drafts(drafting, decoding, text[at], count=3)
        decoding.drafts = [token + 1 for token in text[at + 1 : at + 4]]
        decoding.inputs = [text[at], *decoding.drafts]
    fresh = drafting.begin(text[:20])
    expected = drafts(drafting, fresh, text[20], count=3)
    assert drafts(drafting, decoding, text[20], count=3) == expected
    assert_same_keys(decoding.draft_cache, fresh.draft_cache)
    assert_same_keys(decoding.cache, fresh.cache)


def test_mtp_needs_a_checkpoint_with_an_mtp_layer(engine: EngineOf) -> None:
    with pytest.raises(BadFacts, match="has no MTP layer; leave speculative_config out"):
        engine(LLAMA, speculative_config=mtp(1))
