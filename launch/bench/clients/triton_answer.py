"""An answer of the Triton model, whatever carries it: outputs by name into a transcript.

What the published model lacks is left out: it tells no token counts, and its numbers may come as
text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...smoke.client import SmokeRequest
from ...smoke.triton_tensors import METRICS, inputs
from ..request import Ask
from .transcript import Transcript, whole

TEXT, REASON = "text_output", "finish_reason"
INPUT_COUNT, OUTPUT_COUNT, IDS = "num_input_tokens", "num_output_tokens", "output_ids"
# Outputs that come with every response; what else has a number is what the engine measured.
ORDINARY = {TEXT, REASON, INPUT_COUNT, OUTPUT_COUNT, IDS, "model_name", "model_version", "id"}
ORDINARY |= {"index", "output_lengths", "sequence_id", "sequence_start", "sequence_end"}


def tensors(ask: Ask, declared: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """The inputs of a request. Raises `NotSupported` where the model has none for what is asked."""
    prompt = list(ask.prompt) if isinstance(ask.prompt, tuple) else ask.prompt
    asked = SmokeRequest(
        prompt,
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        top_k=None,
        seed=ask.seed,
        ignore_eos=ask.ignore_eos,
        metrics=METRICS in declared,
        messages=ask.messages,
    )
    return inputs(asked, True, declared)


class TritonReader:
    """`final` is the transport's own mark; a transport that has none gives `None`."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        transcript.may_be_cumulative = True

    def response(self, arrived_ns: int, values: Mapping[str, Any], final: bool | None) -> None:
        transcript = self.transcript
        if transcript.is_final or (transcript.finish_reason is not None and values):
            transcript.fail("overrun", f"after the final response came {str(values)[:80]}")
            return
        if values:
            self._outputs(arrived_ns, values)
        transcript.is_final = transcript.finish_reason is not None if final is None else final
        if transcript.is_final or transcript.finish_reason is not None:
            self._summary(values)

    def _outputs(self, arrived_ns: int, values: Mapping[str, Any]) -> None:
        transcript = self.transcript
        text = _first(values.get(TEXT, ""))
        if not isinstance(text, str):
            transcript.fail("malformed", f"{TEXT} is {text!r}, a string is expected")
            return
        so_far = whole(_first(values.get(OUTPUT_COUNT)))
        transcript.messages.append((arrived_ns, text, so_far))
        reason = _first(values.get(REASON))
        if reason not in (None, "None", ""):
            transcript.finish_reason = str(reason)

    def _summary(self, values: Mapping[str, Any]) -> None:
        transcript = self.transcript
        if (count := whole(_first(values.get(OUTPUT_COUNT)))) is not None:
            transcript.output_tokens, transcript.count_source = count, "final"
        if (prompt := whole(_first(values.get(INPUT_COUNT)))) is not None:
            transcript.prompt_tokens = prompt
        for name, value in values.items():
            if name not in ORDINARY and (number := _number(_first(value))) is not None:
                transcript.server[name] = number


def _first(value: Any) -> Any:
    """Of an output with an element per choice, that of the only choice."""
    return (value[0] if value else None) if isinstance(value, list) else value


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return None
