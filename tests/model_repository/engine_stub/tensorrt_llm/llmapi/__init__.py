from dataclasses import dataclass
from typing import Any


@dataclass
class MpiCommSession:
    comm: Any
    n_workers: int

    def __str__(self) -> str:
        return f"session of {self.n_workers}"
