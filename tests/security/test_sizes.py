"""How many attacks there are of each class, so that none is lost unseen."""

from __future__ import annotations

import pytest

from tests.model_repository import test_abuse as abuses
from tests.security import test_bundle_attacks as bundles
from tests.security import test_hostile_inputs as inputs
from tests.slurm import faults
from tests.slurm import test_state_faults as states

# Clients of a Triton model: tests, each of several clients or bodies.
ABUSES = [name for name in vars(abuses) if name.startswith("test_")]


@pytest.mark.parametrize(
    ("cases", "least"),
    [
        (len(bundles.ATTACKS), 120),
        (len(bundles.LAUNCH_FILES), 25),
        (len(inputs.CHECKED), 65),
        (len(inputs.WEIGHTS) + len(inputs.FIELDS), 55),
        (len(inputs.REQUESTS) + len(inputs.SETTINGS), 60),
        (len(states.HARMS), 40),
        (len(faults.FAULTS), 25),
        (len(ABUSES), 12),
    ],
)
def test_no_class_of_attacks_has_shrunk(cases: int, least: int) -> None:
    assert cases >= least
