"""Suggests what to change next: edits of the deployment file, their effects and the evidence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil, exp, hypot, inf, log
from pathlib import Path
from typing import Any, Literal

from builder.diagnostics import Diagnostic
from builder.documents import load_yaml_mapping
from builder.errors import BadInput, ToolkitError
from builder.estimates.names import DRAFTS, LAYOUT_SIZES, LAYOUT_SWITCHES, STAGES
from builder.facts import data_file, engines, plain_data, release
from builder.facts.published_results import flatten
from builder.number_format import SPACE, number, percent, signed_percent

from .. import known_defects
from ..bench.results import BENCH
from . import comparison, published
from .evidence import RunEvidence
from .results import LoadPoint

RULES = "suggestions.yaml"
MOST = 5
CONFIG = "engine_config."
PREEMPTED = "num_preemptions"  # in the name of a server's counter
Effect = tuple[float | None, float | None]  # a change as shares from low to high; `None`: unknown
# The measures of a latency target: its own, and the median of what it limits.
GOALS = {
    "ttft_ms": ("TTFT p99", "TTFT p50"),
    "itl_ms": ("ITL p99", "TPOT p50"),
    "e2e_ms": ("e2e p99", "e2e p50"),
}
ESTIMATED = {
    "output_tokens_per_s_per_gpu": "tokens/s/GPU",
    "tpot_ms": "TPOT p50",
    "ttft_ms": "TTFT p50",
    "e2e_ms": "e2e p50",
}
# Parts of a deployment file that say nothing about the server's speed.
NOT_COMPARED = ("name", "notes", "targets", "images", "accepted_advisories", "slo", "workload")
PER_GPU = "output_tokens_per_s_per_gpu"
MEASURED = tuple(ESTIMATED.values())
TOTAL, GPUS = "output tokens/s", "hardware.num_gpus"
Confidence = Literal["measured", "published", "estimated", "assumed"]
Found = Iterator["Suggestion | str"]  # a text tells what is not known, and why


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An edit by paths of the deployment file, and its effect on each measure."""

    edit: Mapping[str, Any]
    effects: Mapping[str, Effect]
    why: str
    confidence: Confidence
    source: str

    def gain(self, goal: Sequence[str] = ()) -> float:
        """The share by which the best measure, of those in `goal`, improves for certain. The output
        of all GPUs is none of them: more GPUs raise it."""
        found = [-inf]
        for measure, (low, high) in self.effects.items():
            worst = low if "tokens" in measure else high and -high
            if worst is not None and measure != TOTAL and (not goal or measure in goal):
                found.append(worst)
        return max(found)

    @property
    def costs(self) -> bool:
        """Whether another measure becomes worse for certain."""
        for measure, (low, high) in self.effects.items():
            best = high if "tokens" in measure else low and -low
            if best is not None and best < 0:
                return True
        return False

    @property
    def lines(self) -> list[str]:
        return [f"{path}: {json.dumps(value)}" for path, value in self.edit.items()]

    @property
    def effect_texts(self) -> list[str]:
        return [f"{name} {_shown(*ends)}" for name, ends in self.effects.items()]


def _shown(low: float | None, high: float | None) -> str:
    if low is not None and low == high:
        return signed_percent(low)
    ends = [signed_percent(end) if end else f"0{SPACE}%" for end in (low, high) if end is not None]
    if len(ends) == 2:
        return " to ".join(ends)
    return f"at {'most' if low is None else 'least'} {ends[0]}"


def next_changes(runs: Sequence[RunEvidence]) -> tuple[list[Suggestion], list[str]]:
    """Suggestions for the first run, the best first, and what is not known.

    The other runs are evidence. Measurements of others count if they certainly improve the missed
    latency target, or any measure if none is missed. Edits that cannot be planned are left out.
    """
    run = runs[0]
    faults, told = _divided([*_of_diagnosis(run), *_in_force(run), *_defects(run)])
    point = _load(run)
    if run.rehearsal or point is None:
        why = "A rehearsal on CPU says nothing about the speed of a GPU."
        unknown = why if run.rehearsal else "No load was served without failures: speed is unknown."
        return _plannable(run, faults, [*told, unknown])
    goal = _goal(run, point)
    possible, more = _divided([*_by_rules(run, point, goal), *_unused_options(run)])
    certain, others = _divided([*_beside(runs), *_estimated(run, point, goal), *_published(run)])
    ranked = [*(one for one in certain if one.gain(goal) > 0), *possible]
    ranked.sort(
        key=lambda one: (
            one.gain(goal) <= 0,
            one.confidence == "estimated",
            one.costs,
            -one.gain(goal),
        )
    )
    return _plannable(run, [*faults, *ranked], [*told, *more, *others])


def _divided(found: Iterable[Suggestion | str]) -> tuple[list[Suggestion], list[str]]:
    suggestions, unknown = list[Suggestion](), list[str]()
    for one in found:
        unknown.append(one) if isinstance(one, str) else suggestions.append(one)
    return suggestions, unknown


def _plannable(
    run: RunEvidence, ranked: Sequence[Suggestion], unknown: list[str]
) -> tuple[list[Suggestion], list[str]]:
    """The first suggestions of different edits that the bundle's deployment can be planned with."""
    file, refused = _deployment_file(run), ""
    if ranked and (refused := _refusal(file)):
        unknown.append(f"Whether these edits can be planned: {refused}.")
    shown: dict[str, Suggestion] = {}
    for one in ranked:
        key = json.dumps(one.edit, sort_keys=True)
        if len(shown) == MOST or key in shown:
            continue
        words = [f"{path}={json.dumps(value)}" for path, value in one.edit.items()]
        if not refused and (why := _refusal(file, *words)):
            unknown.append(f"{', '.join(words)} cannot be planned: {why}.")
        else:
            shown[key] = one
    return list(shown.values()), list(dict.fromkeys(unknown))


def _deployment_file(run: RunEvidence) -> str:
    folder = run.bench.subject.bundle_folder if run.manifest is not None else None
    return str(Path(folder) / "deployment.yaml") if folder else ""


@lru_cache(maxsize=64)
def _refusal(file: str, *edits: str) -> str:
    """Why a deployment cannot be planned with edits; empty if it can."""
    from builder import pipeline  # slow to import

    try:
        if not file:
            return "the run has no bundle"
        pipeline.plan(file, edits)
    except ToolkitError as error:
        return str(error.diagnostics[0])
    return ""


def _load(run: RunEvidence) -> LoadPoint | None:
    """The point at the planned load, or else the one with the highest output."""
    planned = ((run.manifest or {}).get("estimate") or {}).get("concurrency")
    found = (point for point in run.bench.clean_points if point.concurrency == planned)
    return next(found, run.bench.headline)


def _goal(run: RunEvidence, point: LoadPoint) -> Sequence[str]:
    """The measures of the latency target that this load misses the most, if it misses any."""
    missed = {}
    for name, limit in run.bench.slo.items():
        if (p99 := point.stats(name).p99) is not None and p99 > limit:
            missed[name] = p99 / limit
    return GOALS[max(missed, key=missed.__getitem__)] if missed else ()


def _of_diagnosis(run: RunEvidence) -> Found:
    for cause in run.start.causes if run.start else ():
        if cause.edit:
            edit = flatten(cause.edit, CONFIG.rstrip("."))
            sure: Confidence = "measured" if cause.confidence == "confirmed" else "assumed"
            yield Suggestion(edit, {}, f"{cause.cause} {cause.fix}", sure, cause.source)


def _in_force(run: RunEvidence) -> Found:
    """Options that the engine did not take as planned."""
    if run.rehearsal or not run.start:
        return
    for name, planned, in_force, *_, verdict in run.start.options:
        value = in_force.replace(",", "")
        if verdict and name in run.decisions and value.isdigit():
            why = (
                f"The engine logged {in_force} where {planned} is planned; plan with what it does."
            )
            yield Suggestion({CONFIG + name: int(value)}, {}, why, "measured", "the server's log")


def _defects(run: RunEvidence) -> Found:
    """Releases without the known defects that the bundle's deployment meets for certain."""
    subject = run.bench.subject
    engine = subject.engine if subject.engine in engines.names() else None
    if run.rehearsal or not engine or not (file := _deployment_file(run)) or _refusal(file):
        return
    names = release.known(engines.load(engine))
    newer = names[names.index(subject.release) + 1 :] if subject.release in names else []
    for found in known_defects.of_bundle(Path(file).parent, {}):
        later = (name for name in newer if not found.row.is_in(name))
        if found.is_certain and found.product == engines.load(engine).product:
            why = f"{found.problem.message}. The named release does not have this known defect."
            confidence: Confidence = (
                "published" if found.row.confidence == "confirmed" else "assumed"
            )
            for name in islice(later, 1):
                yield Suggestion({"engine.release": name}, {}, why, confidence, found.row.source)


def _figures(run: RunEvidence, point: LoadPoint, goal: Sequence[str]) -> dict[str, float]:
    """The figures that rules compare: decisions by path, and those of this load; shares in
    percent."""
    limits = (run.manifest or {}).get("limits") or {}
    ranks, instances = limits.get("ranks") or 1, limits.get("instances") or 1
    queue_ms, ttft_ms = point.stats("queue_ms").p50, point.stats("ttft_ms").p50
    best = run.bench.largest_concurrency_within_slo
    there = next((one for one in run.bench.clean_points if one.concurrency == best), None)
    found: dict[str, float | None] = {
        "zero": 0,
        "concurrency": point.concurrency,
        "slo_concurrency": best if run.bench.slo else None,
        "tokens_per_step": point.tokens_per_step,
        "draft_tokens": published.draft_tokens(run),
        "preemptions": next((n for name, n in point.server.items() if PREEMPTED in name), None),
        "kv_requests": (limits.get("kv_requests_per_rank") or 0) * ranks * instances or None,
        "queue_share": 100 * queue_ms / ttft_ms if queue_ms and ttft_ms else None,
    }
    for path, value in run.decisions.items():
        if isinstance(value, int | float):
            found[path] = value
    known = {name: value for name, value in found.items() if value is not None}
    if point.concurrency and best:
        times = ceil(point.concurrency / best)
        known["instances"], gpus = times * instances, run.bench.subject.num_gpus
        known |= {"instance_gpus": times * gpus} if gpus else {}
    if there and goal:
        name = next(name for name, measures in GOALS.items() if measures == goal)
        now, then = point.stats(name).p99, there.stats(name).p99
        known |= {"slo_change": 100 * (then / now - 1)} if now and then else {}
    rates = [one.rate(PER_GPU) for one in (point, there) if one]
    if len(rates) == 2 and all(rates):
        known["slo_output_change"] = 100 * ((rates[1] or 0) / (rates[0] or 1) - 1)
    if "queue_share" in known:
        known["queue_removed"] = -known["queue_share"]
    if known.get("tokens_per_step"):
        known["drafts_removed"] = 100 * (1 / known["tokens_per_step"] - 1)
    if {"concurrency", "kv_requests"} <= known.keys():
        known["held_requests"] = min(known["concurrency"], known["kv_requests"])
    return known


def _by_rules(run: RunEvidence, point: LoadPoint, goal: Sequence[str]) -> Found:
    """What rows of data suggest for this run's own figures."""
    data, known = _data(), _figures(run, point, goal)
    unmeasured: dict[str, None] = {}
    for rule in data["rules"]:
        named = {bound for test in rule["when"].values() for bound in test.values()}
        wanted = {*rule["when"], *(name for name in named if isinstance(name, str))}
        if missing := wanted - known.keys():
            unmeasured |= dict.fromkeys(data["figures"].get(name, name) for name in sorted(missing))
            continue
        if not all(_holds(known[name], test, known) for name, test in rule["when"].items()):
            continue
        effects: dict[str, Effect] = {}
        for measure, ends in rule["effects"].items():
            low, high = (_share(known.get(ends.get(end, ""))) for end in ("low", "high"))
            if low is not None or high is not None:
                name = goal[0] if measure == "slo" and goal else measure
                effects[name] = (low, high) if low != high else _repeated(low or 0.0)
        edit = {path: value and round(known[value]) for path, value in rule["edit"].items()}
        texts = {name: number(value) for name, value in known.items()}
        why = rule["why"].format_map(texts)
        yield Suggestion(edit, effects, why, rule["confidence"], rule["source"])
    if unmeasured:
        yield f"Not measured or not set in this run: {', '.join(unmeasured)}."


def _data() -> Mapping[str, Any]:
    found: Mapping[str, Any] = data_file.shipped(RULES, plain_data.SUGGESTIONS)
    return found


def _share(percents: float | None) -> float | None:
    return None if percents is None else percents / 100


def _repeated(share: float) -> Effect:
    """The interval of a change that follows from one measurement of each side."""
    error = hypot(*[log(1 + _data()["repeat_percent"] / 100)] * 2)
    return (1 + share) * exp(-error) - 1, (1 + share) * exp(error) - 1


def _holds(value: float, test: Mapping[str, str | float], known: Mapping[str, float]) -> bool:
    ends = {side: known[end] if isinstance(end, str) else end for side, end in test.items()}
    return ends.get("below", inf) > value > ends.get("above", -inf)


def _beside(runs: Sequence[RunEvidence]) -> Found:
    """Other runs of the page that differ in one decision: their changes at the same loads."""
    base, *others = runs
    words = {point.label: number(point.concurrency) for point in base.bench.points}
    changes = comparison.differences(runs) if not base.rehearsal else []
    for other in others:
        rows = [row for row in changes if row["run"] == other.title]
        if not rows:
            continue
        both = base.manifest is not None and other.manifest is not None
        here, there = _requested(base, both), _requested(other, both)
        edit = {path: there.get(path) for path in here | there if here.get(path) != there.get(path)}
        names = sorted(set(map(_decision, edit)))
        if len(names) != 1:
            what = f"differs in {', '.join(names)}" if names else "has the same deployment"
            yield f"{other.title} {what}: its speed is not the effect of one decision."
            continue
        effects: dict[str, Effect] = {}
        for measure in rows[0]["changes"]:
            shares = [share for row in rows if (share := row["changes"][measure]) is not None]
            is_shown = measure in MEASURED or (measure == TOTAL and GPUS in edit)
            if len(shares) == len(rows) and is_shown:
                ends = (min(shares), max(shares))
                effects[measure] = ends if len(rows) > 1 else _repeated(ends[0])
        loads = ", ".join(words[row["load"]] for row in rows)
        why = f"{other.title} differs in the {names[0]} alone, measured at {loads} concurrent."
        yield Suggestion(edit, effects, why, "measured", f"{base.title} and {other.title}")


def _requested(run: RunEvidence, of_bundle: bool) -> dict[str, Any]:
    """The deployment by paths: that of the bundle, or what the results say of it."""
    subject = run.bench.subject
    if of_bundle:
        document = load_yaml_mapping(Path(_deployment_file(run)))
        kept = {key: value for key, value in document.items() if value and key not in NOT_COMPARED}
        return flatten(kept)
    return {
        "checkpoint": subject.model,
        "hardware.gpu": subject.gpu,
        GPUS: subject.num_gpus,
        "engine.name": subject.engine,
        "engine.release": subject.release,
        **{CONFIG + path: value for path, value in run.decisions.items()},
    }


def _decision(path: str) -> str:
    """The decision that a path belongs to; a layout, an engine and drafts have several paths."""
    option = path.removeprefix(CONFIG)
    if path == GPUS or option in (*LAYOUT_SIZES, *LAYOUT_SWITCHES, STAGES):
        return "layout"
    if option in DRAFTS or option.startswith("speculative_config"):
        return "draft tokens"
    return "engine" if path.startswith("engine.") else path


def _estimated(run: RunEvidence, point: LoadPoint, goal: Sequence[str]) -> Found:
    """What public measurements say of other layouts and drafts; the best for each GPU count."""
    from builder.estimates import alternatives  # slow to import

    place = Path(run.place)
    best: dict[tuple[int, bool], Suggestion] = {}
    try:
        if point.concurrency is None:
            raise BadInput(Diagnostic(point.label, "is no number of concurrent requests"))
        found = alternatives.of_run(place / BENCH if place.is_dir() else place, point.concurrency)
    except ToolkitError as error:
        yield f"No estimate of other decisions: {error.diagnostics[0]}."
        return
    for one in found:
        edit = {CONFIG + path: value for path, value in one.settings.items()}
        factors = {ESTIMATED[name]: factor for name, factor in one.factors.items()}
        gpus = run.bench.subject.num_gpus
        if gpus and one.num_gpus != gpus:
            edit = {GPUS: one.num_gpus, **edit}
            factors = {TOTAL: factors[ESTIMATED[PER_GPU]].map(one.num_gpus / gpus), **factors}
        effects = {name: (factor.low - 1, factor.high - 1) for name, factor in factors.items()}
        why = (
            f"Estimated at {point.load_text} from public measurements of this model, GPU, "
            "precision and engine; nobody measured both side by side."
        )
        made = Suggestion(edit, effects, why, "estimated", one.source)
        key = one.num_gpus, any("speculative" in path for path in edit)
        if key not in best or made.gain(goal) > best[key].gain(goal):
            best[key] = made
    yield from best.values()


def _published(run: RunEvidence) -> Found:
    """Published figures of one load and one deployment that differ in the draft tokens alone."""
    data = _data()
    ours = published.draft_tokens(run)
    loads = {point.concurrency for point in run.bench.clean_points}
    for row, here, there in published.draft_pairs(run, ours):
        if here.get("concurrency") not in loads:
            continue
        drafts = there[published.MTP]
        measure = next(name for name in published.RATES if here.get(name) and there.get(name))
        effects = {published.RATES[measure]: _repeated(there[measure] / here[measure] - 1)}
        why = (
            f"Published at {here['concurrency']} concurrent: {number(there[measure])} with "
            f"{drafts} drafts, {number(here[measure])} with {ours}. Repetitions differ by up to "
            f"{data['repeat_percent']:g} % ({data['repeat_source']})."
        )
        path = next((path for path in run.decisions if path in DRAFTS), "")
        edit = {CONFIG + path: drafts} if drafts else {f"{CONFIG}speculative_config": None}
        if path:
            yield Suggestion(edit, effects, why, "published", row["source"])


def _unused_options(run: RunEvidence) -> Found:
    """Options of a faster published deployment that this one does not have."""
    different = (run.manifest or {}).get("differences", ())
    rows = [row for row in different if row["path"] not in _data()["no_speed"]]
    for figure in published.for_run(run):
        left = figure.ratio / published.explained(figure.causes) if figure.ratio else inf
        is_unlike = any(one.name == published.LOAD and not one.factor for one in figure.causes)
        for row in rows:
            if left < 1 and not is_unlike and row["source"] == figure.source:
                why = (
                    f"Published with this option; the run is {percent(1 - left)} slower than its "
                    f"known differences explain. Not used here because: {row['reason']}"
                )
                effects = {"tokens/s/GPU": (0.0, 1 / left - 1)}
                edit = {CONFIG + row["path"]: row["published"]}
                yield Suggestion(edit, effects, why, "assumed", figure.source)
