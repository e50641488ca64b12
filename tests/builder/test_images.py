"""The container images of servers, and how a reference is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import pipeline
from builder.facts import advisories, release
from builder.facts.images import image
from builder.facts.release.version import is_stable
from builder.general_rules import IMAGE_OF_ANOTHER_RELEASE
from tests.tables import by_table

STABLE = [name for name in release.known() if is_stable(name)]
NUMBERED = [name for name in release.known() if not name.startswith("main")]
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize("name", STABLE)
def test_triton_runs_in_the_newest_container_of_a_release(name: str) -> None:
    found = image("triton", name)
    assert found is not None
    assert found.version == release.load(name).containers["triton"][-1]
    assert found.tag == f"{found.version}-trtllm-python-py3"


@pytest.mark.parametrize("name", NUMBERED)
def test_the_engines_own_image_has_the_name_of_its_release(name: str) -> None:
    found = image("trtllm_serve", name)
    assert found is not None and found.tag == name


def test_a_mirror_of_a_known_image_is_known_and_keeps_its_digest() -> None:
    given = f"mirror.example:5000/ai/tritonserver:26.07-trtllm-python-py3@{DIGEST}"
    found = image("triton", "1.2.1", given)
    assert found is not None
    assert (found.known, found.version, found.digest) == (True, "26.07", DIGEST)
    assert found.reference == given


def test_an_image_of_ones_own_is_taken_as_it_is() -> None:
    found = image("triton", "1.2.1", "registry.example/team/server:7")
    assert found is not None and not found.known


def test_a_development_version_has_no_image() -> None:
    assert image("triton", "main-00043967") is None


SITE = """\
name: hall
gpu_request: none
exclusive: true
mpi: pmix
container: {runtime: pyxis, images: {triton: /i/triton.sqsh, trtllm_serve: /i/trtllm-1.2.1.sqsh}}
"""


@by_table
def test_an_image_of_another_release_than_the_plan_is_named(setting: str, told: str | None) -> None:
    settings = ("targets=[trtllm_serve, triton]", "engine.release=1.3.0rc24", f"images.{setting}")
    planned = pipeline.plan("llama-tiny", settings)
    found = [row.message for row in planned.warnings if row.rule == IMAGE_OF_ANOTHER_RELEASE]
    expected = f"has release {told} of the engine by its name, and the plan is for 1.3.0rc24"
    assert found == ([expected] if told else [])


def test_of_a_clusters_images_that_of_the_job_counts(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    settings = (
        *("targets=[trtllm_serve, triton]", "engine.release=1.3.0rc24"),
        f"targets.slurm={{site: {tmp_path / 'site.yaml'}, server: trtllm_serve}}",
    )
    warnings = pipeline.plan("llama-tiny", settings).warnings
    rules = (IMAGE_OF_ANOTHER_RELEASE, advisories.RULE, advisories.UNKNOWN_RULE)
    where = {row.where for row in warnings if row.rule in rules}
    assert where == {"engine.release", "targets.slurm.site.container.images.trtllm_serve"}
