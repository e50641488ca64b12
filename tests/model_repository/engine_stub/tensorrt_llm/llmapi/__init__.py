from dataclasses import dataclass
from typing import Any


@dataclass
class MpiCommSession:
    comm: Any
    n_workers: int

    def __str__(self) -> str:
        return f"session of {self.n_workers}"


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None
