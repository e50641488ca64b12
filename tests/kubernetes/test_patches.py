"""Patches beyond what a server without defaults shows of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.kubernetes import patches, schemas
from tests.tables import by_table

MINOR = schemas.MINORS[-1]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "spec": {
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
        "selector": {"matchLabels": {"a": "b"}},
    },
}


@by_table
def test_a_strategic_patch_changes_what_it_means(
    change: dict[str, Any], result: dict[str, Any]
) -> None:
    schema, field = schemas.schema(MINOR, DEPLOYMENT), partial(schemas.field, MINOR)
    found: Any = patches.strategic(DEPLOYMENT, {"spec": change}, schema, field)
    assert found["spec"] == {**DEPLOYMENT["spec"], **result}  # type: ignore[dict-item]
