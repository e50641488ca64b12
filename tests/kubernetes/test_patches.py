"""Patches beyond what a server without defaults shows of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.kubernetes import patches, schemas

MINOR = schemas.MINORS[-1]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "selector": {"matchLabels": {"a": "b"}},
    },
}
CASES = {
    "what a field may not keep beside another goes": (
        {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}},
        {"strategy": {"type": "Recreate"}},
    ),
    "a field is replaced as a whole where it says so": (
        {"selector": {"$patch": "replace", "matchLabels": {"c": "d"}}},
        {"selector": {"matchLabels": {"c": "d"}}},
    ),
    "otherwise its parts are merged": (
        {"selector": {"matchLabels": {"c": "d"}}},
        {"selector": {"matchLabels": {"a": "b", "c": "d"}}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_strategic_patch_changes_what_it_means(case: str) -> None:
    change, result = CASES[case]
    schema, field = schemas.schema(MINOR, DEPLOYMENT), partial(schemas.field, MINOR)
    found: Any = patches.strategic(DEPLOYMENT, {"spec": change}, schema, field)
    assert found["spec"] == {**DEPLOYMENT["spec"], **result}  # type: ignore[dict-item]
