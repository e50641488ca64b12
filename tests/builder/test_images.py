"""The container images of servers, and how a reference is read."""

from __future__ import annotations

import pytest

from builder.facts import release
from builder.facts.images import image
from builder.facts.release.version import is_stable

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
