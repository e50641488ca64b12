"""What Triton's Python backend gives a model to answer with, for a model without Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

FINAL = 1  # TRITONSERVER_RESPONSE_COMPLETE_FINAL
LABEL = re.compile(r"^(model|version)$")


class TritonError(Exception):
    CODES = ("CANCELLED", "INTERNAL", "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE")
    CANCELLED, INTERNAL, INVALID_ARG, NOT_FOUND, UNAVAILABLE = CODES

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        assert isinstance(message, str)
        assert code in self.CODES
        super().__init__(message)
        self._code = code

    def message(self) -> str:
        return str(self)

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        assert isinstance(name, str)
        assert isinstance(array, np.ndarray)
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class InferenceResponse:
    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = output_tensors, error

    def output_tensors(self) -> Sequence[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Metric:
    """A counter, a gauge, or with buckets a histogram."""

    def __init__(self, labels: Mapping[str, str], buckets: Sequence[float] | None) -> None:
        assert buckets is None or list(buckets) == sorted({*buckets})
        kept = [f'{name}="{value}"' for name, value in labels.items() if not LABEL.match(name)]
        self.labels = f"{{{','.join(kept)}}}" if kept else ""
        self.is_histogram = buckets is not None
        self.value = 0.0
        self.observed: list[float] = []

    def increment(self, value: float) -> None:
        assert value >= 0
        self.value += value

    def set(self, value: float) -> None:
        self.value = value

    def observe(self, value: float) -> None:
        self.observed.append(value)

    def samples(self, name: str) -> Iterator[tuple[str, float]]:
        if self.is_histogram:
            yield f"{name}_count", len(self.observed)
            yield f"{name}_sum", sum(self.observed)
            yield f'{name}_bucket{{le="+Inf"}}', len(self.observed)
        else:
            yield f"{name}{self.labels}", self.value
