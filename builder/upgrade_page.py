"""The page of an upgrade: what changes, what it fixes, and in which order to roll it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import pipeline
from .bundle import Bundle
from .documents import scan_yaml
from .facts import images, memory
from .facts.published_results import flatten
from .facts.release import Release
from .files import read_text
from .rules.options import ANY_KEY, of_other_kinds
from .targets.handoff.document import (
    Block,
    Document,
    Section,
    Text,
    bullets,
    code,
    command,
    facts,
    fill,
    markdown,
    note,
    paragraph,
    table,
)
from .targets.handoff.runbook import rolling
from .targets.kubernetes.workload import COMPONENT_LABEL, SERVER
from .upgrade import Upgrade

_MOST_NAMED = 20  # of new options, values and metrics; the table of the release has all
_ALSO = "now also"

# Inputs of the memory budget in words, and where their source is in the table of a release.
_INPUTS = {
    "mtp_kv_layers": "KV cache layers of multi-token prediction",
    "num_cuda_graphs": "CUDA graphs",
}
_VALUES = {"per_draft_token": "one for each draft token", "one": "one for all draft tokens"}


def text(found: Upgrade) -> str:
    old, new = found.tables
    title, name = new.engine.title, found.after.plan.deployment.name
    sections = (
        _steps(found),
        Section(
            "options", "Options of this deployment", tuple(_both(found, "options", _decisions))
        ),
        Section("release", f"What {new.name} changes", tuple(_release(found))),
        Section("metrics", "Metrics and endpoints", tuple(_metrics(found))),
        Section("images", "Images", tuple(_images(found))),
        Section("memory", "Memory of each GPU", tuple(_both(found, "memory", _memory))),
        Section("defects", "Known defects", tuple(_defects(found))),
        Section("vulnerabilities", "Known vulnerabilities", tuple(_vulnerabilities(found))),
        Section("order", "Order of rolling", (*_order(found), *rolling(found.after.context))),
    )
    subject = (f"{title} {old.name} to {new.name}", f"from the bundle of digest {found.old.digest}")
    return markdown(
        Document(f"Upgrade of {name} to {title} {new.name}", "Upgrade", subject, sections)
    )


def _both(found: Upgrade, name: str, part: Callable[[Upgrade], Iterator[Block]]) -> Iterator[Block]:
    """A part for the servers, and for the prefill servers if the bundle has them."""
    yield from part(found)
    if found.prefill:
        yield Section(f"prefill-{name}", "Prefill", tuple(part(found.prefill)))


def _steps(found: Upgrade) -> Section:
    _, new = found.tables
    name, sure = found.after.plan.deployment.name, new.confidence
    for other in dict.fromkeys(new.carried_from.values()):
        parts = [part for part, where in new.carried_from.items() if where == other]
        sure += f"; carried over from {other}: {', '.join(parts)}"
    blocks: list[Block] = [
        facts(
            (
                ("Known defects", _counts(found.defects())),
                ("Known vulnerabilities", _counts(found.vulnerabilities())),
            )
        ),
        note(
            "How sure this page is",
            f"Of {new.name}, {sure}. Start it once on a GPU before you roll.",
        ),
        *_planned_anew(found),
        command(
            "Pin, render and verify, in the folder of this page",
            f"python -m builder pin deployment.yaml\n"
            f"python -m builder render deployment.yaml -o {name}-next\n"
            f"python -m builder verify {name}-next",
            "Pin where the registry can be reached.",
        ),
        *_rehearsal(found, f"{name}-next"),
    ]
    if found.edits:
        rows = [(code(path), _value(old), _value(new), why) for path, old, new, why in found.edits]
        columns = ("in the deployment", "before", "after", "why")
        blocks.append(table("Changed in the deployment with the release", columns, rows))
    known = {row["what"] for row in found.old.manifest["warnings"]}
    warnings = [row for row in found.new.manifest["warnings"] if row["what"] not in known]
    if warnings:
        lines = (fill(f"{row['where']}: {row['what']}; {row['remedy']}", {}) for row in warnings)
        blocks.append(Section("warnings", "New warnings of the plan", (bullets(lines),)))
    return Section("steps", "What to do", tuple(blocks))


def _rehearsal(found: Upgrade, folder: str) -> Iterator[Block]:
    """What one machine can rehearse."""
    if found.after.context.nodes == 1:
        yield command(
            "Rehearse",
            f"python -m launch rehearse {folder}",
            "A rehearsal needs no GPU: it runs the reference engine and shows no fault of the new "
            "release itself.",
        )


def _planned_anew(found: Upgrade) -> Iterator[str]:
    """A note if an older toolkit made the bundle, and this one plans it differently."""
    if pipeline.manifest_facts(found.before)["decisions"] != found.old.manifest["decisions"]:
        made = found.old.manifest["tool"]["version"]
        text = f"Toolkit {made} made the bundle. This one plans the old release differently too"
        yield note("Not all changes are the release's", f"{text}: render it anew and compare.")


def _counts(rows: Iterable[tuple[str, Any]]) -> str:
    found = Counter(state for state, _ in rows)
    return ", ".join(f"{count} {state}" for state, count in found.items()) or "none"


def _decisions(found: Upgrade) -> Iterator[Block]:
    rows = [
        (
            row["kind"],
            code(row["old_path"] or row["path"]) if row["kind"] != "added" else "",
            code(row["path"]) if row["kind"] != "removed" else "",
            _value(row["before"]),
            _value(row["after"]),
            row["reason"],
        )
        for row in found.comparison["decisions"]
    ]
    columns = ("change", "option before", "option after", "value before", "value after", "why")
    yield from _table("Options that this deployment sets", columns, rows)


def _release(found: Upgrade) -> Iterator[Block]:
    """Names, types and defaults that the release changes, the options in use first."""
    old, new = found.tables
    here = {row["path"]: row["value"] for row in found.new.manifest["decisions"]}
    was = {row["path"] for row in found.old.manifest["decisions"]}
    renamed = {path: new.aliases.get(word, path) for word, path in old.aliases.items()}
    rows: list[tuple[str, ...]] = []
    wider: list[str] = []
    for path in _options(old):
        is_set, other = "yes" if path in was else "no", renamed.get(path, path)
        what = f"renamed to {other}" if other != path else _retyped(old, new, path)
        if what.startswith(_ALSO) and path not in was:
            wider.append(path)
        elif what:
            rows.append((code(path), what, is_set))
    rows.sort(key=lambda row: row[-1] == "no")
    yield from _table("Options", ("option", "change", "set until now"), rows)
    yield from _named(f"Options that only accept more values ({len(wider)})", wider)
    yield from _defaults(old, new, here, renamed)
    yield from _flags(old, new)
    added = [path for path in _options(new) if path not in old.paths]
    yield from _named(f"New options ({len(added)})", added)


def _defaults(
    old: Release, new: Release, here: Mapping[str, Any], renamed: Mapping[str, str]
) -> Iterator[Block]:
    """Engine defaults that differ; those of groups that this deployment does not use by name."""
    rows: list[tuple[str, ...]] = []
    unused: list[str] = []
    foreign, groups = of_other_kinds(new, here), {path.partition(".")[0] for path in here}
    for path in _options(old):
        values = old.default(path), new.default(path)
        is_used = "." not in path or (path.partition(".")[0] in groups and path not in foreign)
        if path not in new.paths or renamed.get(path, path) != path or values[0] == values[1]:
            continue
        if is_used:
            applies = Text("no: set to ") + _value(here[path]) if path in here else "yes: not set"
            rows.append((code(path), *map(_default, values), applies))
        else:
            unused.append(path)
    yield from _table("Defaults of the engine", ("option", "before", "after", "applies"), rows)
    yield from _named(f"Also of options of groups that are not used here ({len(unused)})", unused)


def _default(value: Any) -> str:
    return "decided by the engine" if value is None else _value(value)


def _options(release: Release) -> list[str]:
    return [path for path in release.paths if ANY_KEY not in path.split(".")]


def _retyped(old: Release, new: Release, path: str) -> str:
    """What changed in the type of an option; empty for nothing."""
    if path not in new.paths:
        return "removed"
    types: list[str] = []
    values: list[list[str]] = []
    for release in (old, new):
        rows = release.paths[path]
        types.append(" or ".join(sorted({row["type"] for row in rows})))
        values.append([str(value) for row in rows for value in row.get("values", ())])
    changes = [f"type {types[0]} is now {types[1]}"] if types[0] != types[1] else []
    now = _ALSO if values[0] else "only"
    for word, one, other in (("no longer", *values), (now, *reversed(values))):
        if left := [value for value in dict.fromkeys(one) if value not in other]:
            changes.append(f"{word} {_some(left)}")
    return "; ".join(changes)


def _flags(old: Release, new: Release) -> Iterator[Block]:
    one, other = ({flag.name: flag for flag in row.serve_flags} for row in (old, new))
    rows: list[tuple[str, ...]] = []
    for name, flag in one.items():
        if name not in other:
            rows.append((code(flag.spellings[0]), "removed"))
        elif flag.default != (default := other[name].default):
            words = Text("default ") + _default(flag.default) + " is now " + _default(default)
            rows.append((code(flag.spellings[0]), words))
    yield from _table("Flags of the server", ("flag", "change"), rows)
    added = [flag.spellings[0] for name, flag in other.items() if name not in one]
    yield from _named(f"New flags ({len(added)})", added)


def _metrics(found: Upgrade) -> Iterator[Block]:
    old, new = found.tables
    sides = [side.context.servers.items() for side in (found.before, found.after)]
    before, after = (flatten({name: row.entry for name, row in side}) for side in sides)
    differing = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    entries = [
        (code(path), *(_value(one.get(path)) for one in (before, after))) for path in differing
    ]
    columns = ("entry of launch.json", "before", "after")
    yield from _table("How servers are started and reached", columns, entries)
    for server in found.after.context.servers.values():
        if not server.record.metrics.by_release:
            yield paragraph(f"{server.record.title}: its metrics do not depend on the release.")
            continue
        names = [
            {name: f"{row.metric_prefix}{name}" for name in row.metric_names} for row in (old, new)
        ]
        rows = [
            (code(before), code(names[1][name]) if name in names[1] else "removed")
            for name, before in names[0].items()
            if names[1].get(name) != before
        ]
        yield from _table(f"Metrics of {server.record.title}", ("before", "after"), rows)
        added = [after for name, after in names[1].items() if name not in names[0]]
        yield from _named(f"New metrics ({len(added)})", added)
        yield paragraph(f"How sure the names are: {new.metrics_confidence}.")
        gone = [" ".join(row) for row in old.endpoints if row not in new.endpoints]
        yield from _named("Endpoints that are gone", gone)
    if "monitoring" in found.after.plan.deployment.targets:
        yield paragraph(
            "The bundle's rules and dashboards have the new names. Load them when the new servers "
            "answer; until the last old server has ended, keep the old rules as well."
        )


def _images(found: Upgrade) -> Iterator[Block]:
    rows: list[tuple[str, ...]] = []
    unknown: list[str] = []
    for name, server in found.after.context.servers.items():
        before, after = (side.context.image(name) for side in (found.before, found.after))
        named = [code(image.reference) if image else "none is known" for image in (before, after)]
        size = f"{after.size_gb} GB" if after and after.size_gb else "not known"
        rows.append((server.record.title, *named, size))
        if after is None:
            words = images.search_words(name) or "build one, and name it under `images`"
            unknown.append(fill(f"{server.record.title}: {words}", {}))
    yield from _table("Images", ("server", "before", "after", "size"), rows)
    if unknown:
        yield bullets(unknown)


def _memory(found: Upgrade) -> Iterator[Block]:
    changes = [
        (row["path"].replace("_", " "), _number(row["before"]), _number(row["after"]))
        for row in found.comparison["memory"]
    ]
    yield from _table("Budget", ("of each GPU", "before", "after"), changes)
    budget, (_, new) = found.before.plan.budget, found.tables
    rows = []
    for name, before, after, tried in found.memory_causes():
        source = new.table["mtp_kv_layers"]["source"] if name == "mtp_kv_layers" else ""
        values = (_VALUES.get(str(one), _number(one)) for one in (before, after))
        if effects := "; ".join(_effects(budget, tried)):
            rows.append((_INPUTS.get(name, name), *values, effects, source))
    yield from _table("Why", ("input", "before", "after", "alone it changes", "source"), rows)


def _effects(old: memory.Budget, new: memory.Budget) -> Iterator[str]:
    one, other = old.kv_bytes_per_token, new.kv_bytes_per_token
    if one != other:
        yield f"{one:,} to {other:,} bytes of KV cache for each token"
    for name in ("weights", "activations", "cuda_graphs", "other", "kv_cache"):
        change = getattr(new, f"{name}_gib") - getattr(old, f"{name}_gib")
        if abs(change) >= 0.005:
            yield f"{name.replace('_', ' ')} {change:+.2f} GiB"


def _defects(found: Upgrade) -> Iterator[Block]:
    rows = [
        (state, row.text, f"{row.row.source} ({row.row.date})") for state, row in found.defects()
    ]
    yield from _table("Defects that this deployment meets", ("state", "defect", "source"), rows)
    if any(state == "unknown" for state, *_ in rows):
        yield paragraph(
            "Unknown: which version of that product comes with the release is not known."
        )


def _vulnerabilities(found: Upgrade) -> Iterator[Block]:
    rows = []
    for state, (version, row) in found.vulnerabilities():
        score = "not known" if row.cvss is None else f"{row.cvss:.1f}"
        rows.append((state, version, code(row.cve), score, row.fixed_in or "no version yet"))
    columns = ("state", "in", "vulnerability", "CVSS", "fixed in")
    yield from _table("Vulnerabilities", columns, rows)


def _order(found: Upgrade) -> Iterator[Block]:
    """The objects of Kubernetes in the order in which they change, and what holds everywhere."""
    yield paragraph(
        fill(
            "Keep the old bundle: to go back, it takes the place of the new one. The commands "
            "below are those of the new bundle's runbook: `BUNDLE` is the bundle that runs, `NEXT` "
            "the new one and `PREVIOUS` the one to go back to; its first chapters set them.",
            {},
        )
    )
    old, new = (_objects(row) for row in (found.old, found.new))
    sides = found.after.prefill is not None
    restarts = "stop it first" if sides else "restarts its pods"
    changed = sorted(
        (key for key in new if old.get(key) != new[key]), key=lambda key: _rank(new[key])
    )
    rows = [
        (
            " ".join(key),
            "changed" if key in old else "new",
            restarts if _rank(new[key]) else "restarts nothing",
        )
        for key in changed
    ]
    rows += [(" ".join(key), "delete", "after the last old pod") for key in old if key not in new]
    if new:
        numbered = [(str(number), *row) for number, row in enumerate(rows, 1)]
        columns = ("order", "object", "change", "effect")
        yield from _table("Objects of Kubernetes", columns, numbered)
    if sides:
        yield note(
            "Both sides together",
            "Prefill and decode servers exchange KV caches and must have one release: stop both, "
            "then start both. Nothing is served in between.",
        )


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
    if "'containers'" not in str(row.get("spec")):
        return 0
    component = row["metadata"].get("labels", {}).get(COMPONENT_LABEL)
    return {"prefill": 1, "decode": 2, SERVER: 2}.get(component, 3)


def _table(
    title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> Iterator[Block]:
    """A table, or that nothing is in it."""
    found = list(rows)
    yield table(title, columns, found) if found else paragraph(f"{title}: no change.")


def _named(title: str, names: list[str]) -> Iterator[Block]:
    if names:
        yield paragraph(fill(f"{title}: {_some([f'`{name}`' for name in names])}.", {}))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


def _value(value: Any) -> str:
    return "not set" if value is None else code(json.dumps(value, ensure_ascii=False))


def _number(value: Any) -> str:
    is_plain = isinstance(value, bool) or not isinstance(value, int | float)
    return str(value) if is_plain else f"{value:,}"
