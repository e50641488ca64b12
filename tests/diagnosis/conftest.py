"""Fixtures of other rooms that failures are made with: programs, and a Slurm cluster."""

from __future__ import annotations

from tests.slurm.conftest import make_cluster

__all__ = ["make_cluster"]
