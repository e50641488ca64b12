"""A bundle whose server runs for all tests of the session that measure one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder import bundle as bundles
from builder import pipeline
from tests.benchmarks.conftest import reference_servers as reference_servers
from tests.launch.conftest import NAME, PRESET, TAG, Launcher, free_settings
from tests.model_repository.conftest import programs as programs
from tests.model_repository.conftest import served as served
from tests.model_repository.conftest import start as start

# What makes the engine tell of its requests and its iterations.
TOLD = ("return_perf_metrics=true", "perf_metrics_max_requests=1000", "enable_iter_perf_stats=true")


@dataclass(frozen=True, slots=True)
class Reference:
    """trtllm-serve of the reference engine; its run is in `runs` below `folder`."""

    bundle: bundles.Bundle
    url: str
    folder: Path


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    folder = tmp_path_factory.mktemp("reference-server")
    settings = [*free_settings(), f"name={NAME}-bench", *(f"engine_config.{one}" for one in TOLD)]
    bundle = pipeline.render(PRESET, folder / "bundle", settings, False)
    order = ("up", bundle.folder, "--target", "trtllm_serve", "--engine", "reference")
    # Under a tag of its own: other tests look for processes that they left running.
    launcher = Launcher(folder, *order, **{TAG: f"bench-{NAME}"})
    try:
        yield Reference(bundle, launcher.line("http: ").removeprefix("http: "), folder)
    finally:
        launcher.process.terminate()
        launcher.end()
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()
