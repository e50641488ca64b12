"""Compares a bundle with the one that takes its place: risks, images, objects, memory, speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from .. import diff, pipeline
from ..bundle import Bundle
from ..documents import scan_yaml
from ..facts import advisories, images, memory
from ..facts.published_results import flatten
from ..facts.release.version import oldest_first
from ..files import read_text
from ..pipeline import KnownDefect, ServicePlan
from ..rules import vulnerability_policy
from ..targets.handoff.cluster import CONTROLLERS
from ..targets.kubernetes.workload import COMPONENT_LABEL, SERVER
from .tables import Row, Tables

STATES = ("fixed", "left", "new", "unknown")
# KServe makes the controllers of its servers: changes of these objects restart their pods.
_KSERVE = ("ServingRuntime", "InferenceService")


@dataclass(frozen=True)
class Upgrade:
    """A bundle and the one that takes its place, with the plans of both.

    `comparison` is what `diff` says of them. `edits` are the changes to the deployment next to its
    release: path, value before, value after, and why; a value that is gone is `None`. `prefill` is
    the same of the prefill servers inside.
    """

    old: Bundle
    new: Bundle
    before: ServicePlan
    after: ServicePlan
    deployment: str
    edits: tuple[tuple[str, Any, Any, str], ...]
    comparison: Mapping[str, list[diff.Row]]
    prefill: Upgrade | None = None

    @property
    def name(self) -> str:
        return self.after.plan.deployment.name

    @property
    def is_beside(self) -> bool:
        """Whether the new servers have another name, and run next to the old ones."""
        return self.name != self.before.plan.deployment.name

    @property
    def is_downgrade(self) -> bool:
        old, new = (side.plan.facts.release.name for side in (self.before, self.after))
        return oldest_first(new) < oldest_first(old)

    @property
    def is_planned_anew(self) -> bool:
        """Whether an older toolkit made the bundle, and this one plans it differently."""
        planned = pipeline.manifest_facts(self.before)["decisions"]
        return bool(planned != self.old.manifest["decisions"])

    @cached_property
    def tables(self) -> Tables:
        decided, used = (
            {row["path"]: row["value"] for row in side.manifest["decisions"]}
            for side in (self.new, self.old)
        )
        old, new = (side.plan.facts.release for side in (self.before, self.after))
        return Tables(old, new, used, decided)

    @property
    def warnings(self) -> list[Row]:
        """The warnings of the new plan that the old bundle does not have."""
        known = {row["what"] for row in self.old.manifest["warnings"]}
        return [row for row in self.new.manifest["warnings"] if row["what"] not in known]

    @cached_property
    def defects(self) -> dict[str, list[KnownDefect]]:
        """The known defects that this deployment meets, by state."""
        sides = map(pipeline.known_defects, (self.before, self.after))
        return self._by_state(*({(row.product, row.row.id): row for row in side} for side in sides))

    @cached_property
    def vulnerabilities(self) -> dict[str, list[Row]]:
        """The open advisories by state, the worst first, each with the version that has it."""
        sides: list[dict[tuple[str, str], Row]] = []
        for planned in (self.before, self.after):
            sides.append({})
            for use in _used(planned):
                version = f"{advisories.name(use.product)} {use.version}"
                for row in advisories.open_for(use.product, use.version):
                    sides[-1][use.product, row.cve] = {"version": version, "advisory": row}
        found = self._by_state(*sides)
        for rows in found.values():
            rows.sort(key=lambda row: -(row["advisory"].cvss or 0))
        return found

    def _by_state(self, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[str, list[Any]]:
        """`unknown` is what a product has whose new version is in no data."""
        known = {use.product for use in _used(self.after)}
        found: dict[str, list[Any]] = {state: [] for state in STATES}
        for key, row in old.items():
            if key not in new:
                found["fixed" if key[0] in known else "unknown"].append(row)
        for key, row in new.items():
            found["left" if key in old else "new"].append(row)
        return found

    @property
    def entries(self) -> list[Row]:
        """What differs in how servers are started and reached."""
        sides = [side.context.servers.items() for side in (self.before, self.after)]
        old, new = (flatten({name: row.entry for name, row in side}) for side in sides)
        return [
            {"path": path, "before": old.get(path), "after": new.get(path)}
            for path in old | new
            if old.get(path) != new.get(path)
        ]

    @property
    def images(self) -> list[Row]:
        rows = []
        for name, server in self.after.context.servers.items():
            before, after = (side.context.image(name) for side in (self.before, self.after))
            search = images.search_words(name) or "build one, and name it under `images`"
            title = server.record.title
            rows.append({"server": title, "before": before, "after": after, "search": search})
        return rows

    @property
    def memory_causes(self) -> list[Row]:
        """Each input of the memory budget that differs: what it does alone to the old budget."""
        old, new, facts = self.before.plan, self.after.plan, self.before.plan.facts
        found = []
        for name in ("sharding", "load"):
            one, other = getattr(old, name), getattr(new, name)
            for row in fields(one):
                values = getattr(one, row.name), getattr(other, row.name)
                if values[0] == values[1]:
                    continue
                tried = replace(old, **{name: replace(one, **{row.name: values[1]})})
                inputs = facts.checkpoint, facts.gpu, tried.sharding, tried.load, facts.draft
                if effects := list(_effects(old.budget, memory.budget(*inputs))):
                    found.append({"name": row.name, "sides": values, "effects": effects})
        return found

    @property
    def estimates(self) -> list[Row]:
        """The estimates of both bundles; without `output_tokens_per_s` where none is known."""
        return [side.manifest["estimate"] for side in (self.old, self.new)]

    @property
    def objects(self) -> list[Row]:
        """The objects of Kubernetes that differ, in the order in which they change.

        First what pods only read, then prefill servers, other servers, and what asks them; at the
        end what is gone. `restarts` says whether the change restarts pods.
        """
        old, new = (_objects(row) for row in (self.old, self.new))
        ranks = {key: _rank(row) for key, row in new.items() if old.get(key) != row}
        rows: list[Row] = []
        for key in sorted(ranks, key=ranks.__getitem__):
            change = "changed" if key in old else "new"
            rows.append({"name": " ".join(key), "change": change, "restarts": ranks[key] > 0})
        gone = (" ".join(key) for key in old if key not in new)
        return [*rows, *({"name": name, "change": "delete"} for name in gone)]


def _used(planned: ServicePlan) -> list[vulnerability_policy.ComponentReference]:
    facts = planned.plan.facts
    return vulnerability_policy.references(planned.plan.deployment, facts.release.name)


def _effects(old: memory.Budget, new: memory.Budget) -> Iterator[str]:
    one, other = old.kv_bytes_per_token, new.kv_bytes_per_token
    if one != other:
        yield f"{one:,} to {other:,} bytes of KV cache for each token"
    for name in ("weights", "activations", "cuda_graphs", "other", "kv_cache"):
        change = getattr(new, f"{name}_gib") - getattr(old, f"{name}_gib")
        if abs(change) >= 0.005:
            yield f"{name.replace('_', ' ')} {change:+.2f} GiB"


def _objects(bundle: Bundle) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, without the label that every new release changes."""
    found = {}
    for path in bundle.manifest["files"]:
        if path.startswith("kubernetes/") and path.endswith(".yaml"):
            for document in scan_yaml(read_text(bundle.folder / path)):
                row = document.data or {}
                if "name" in row.get("metadata", ()):
                    row["metadata"].get("labels", {}).pop("app.kubernetes.io/version", None)
                    found[row["kind"], row["metadata"]["name"]] = row
    return found


def _rank(row: Mapping[str, Any]) -> int:
    """0 for what pods only read; then prefill servers, other servers, and what asks them."""
    if row["kind"] not in (*CONTROLLERS, *_KSERVE):
        return 0
    component = row["metadata"].get("labels", {}).get(COMPONENT_LABEL)
    return {"prefill": 1, "decode": 2, SERVER: 2}.get(component, 3)
