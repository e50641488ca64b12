"""Compares a run with published results, and tells why it is slower.

Effects are factors: what is left of the published speed with this one difference. They are taken
from the measurements of the run, or from figures that others published; without either, the effect
is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builder.estimates.names import DRAFTS, facts_of
from builder.facts import published_results
from builder.facts.published_results import acceptance_lengths
from builder.number_format import SPACE, number, percent, value_text

from .evidence import RunEvidence
from .results import LoadPoint

NOT_SAID = "not said"
LOAD = "concurrent requests"
PER_USER = "output_tokens_per_s_per_user"
MTP = "mtp_draft_tokens"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """A condition that differs or is unknown on one side.

    `factor` is the effect on the published speed, `how` its source.
    """

    name: str
    published: str
    here: str
    factor: float | None = None
    how: str = ""

    @property
    def is_known(self) -> bool:
        return NOT_SAID not in (self.published, self.here)

    @property
    def effect(self) -> str:
        """The effect on the speed in percent, empty if unknown."""
        if self.factor is None:
            return ""
        percents = round((self.factor - 1) * 100)
        return f"{percents:+d}{SPACE}%" if percents else f"0{SPACE}%"

    def __str__(self) -> str:
        effect = f" ({self.effect})" if self.effect else ""
        return f"{self.name} {self.published}, here {self.here}{effect}"


def causes(run: RunEvidence, row: Row, figure: Row, point: LoadPoint, measure: str) -> list[Cause]:
    """The causes of a difference, those with the largest known effects first."""
    found = [
        *_system(run, row),
        *_load(run, figure, point, measure),
        *_workload(run, row, point, measure),
        *_speculation(run, row, figure, point),
        *_options(run, row),
        *_client(run, point),
        *_incomplete(row),
    ]
    return sorted(found, key=_rank)


def _incomplete(row: Row) -> Iterator[Cause]:
    """Conditions that a source does not record, unless another cause covers them."""
    for what in row.get("incomplete", ()):
        if not any(word in what for word in ("length", "concurrency", "number of GPUs")):
            yield Cause(what, NOT_SAID, "")


def _rank(cause: Cause) -> tuple[bool, float, bool]:
    size = 0.0 if cause.factor is None else -abs(math.log(cause.factor))
    return (cause.factor is None, size, not cause.is_known)


def explained(found: Sequence[Cause]) -> float:
    return math.prod(cause.factor for cause in found if cause.factor is not None)


def _compared(name: str, published: object, here: object) -> Iterator[Cause]:
    if published is None or published != here:
        yield Cause(name, _said(published), _said(here))


def _said(value: object) -> str:
    return value_text(value, NOT_SAID)


def _system(run: RunEvidence, row: Row) -> Iterator[Cause]:
    subject = run.bench.subject
    if _engine(row.get("engine")) != _engine(subject.engine):
        yield Cause("engine", _said(row.get("engine")), _said(subject.engine))
    yield from _compared("release", row.get("conditions", {}).get("release"), subject.release)
    theirs, ours = row.get("num_gpus"), subject.num_gpus
    if theirs != ours:
        factor = ours / theirs if theirs and ours else None
        yield Cause("GPUs", _said(theirs), _said(ours), factor, "if the speed grows with the GPUs")


def _engine(name: str | None) -> str:
    """The engine without its version: sources write it with a hyphen or an underscore."""
    return (name or "").replace("-", "_").partition(" ")[0].lower()


def _load(run: RunEvidence, figure: Row, point: LoadPoint, measure: str) -> Iterator[Cause]:
    theirs = figure.get("concurrency")
    if theirs is None or theirs != point.concurrency:
        here = run.bench.clean_points
        there = _interpolated([(p.concurrency, p.rate(measure)) for p in here], theirs)
        rate = point.rate(measure)
        factor = rate / there if rate and there else None
        how = "between this run's own loads" if factor else ""
        yield Cause(LOAD, _said(theirs), _said(point.concurrency), factor, how)


def _interpolated(
    points: Sequence[tuple[int | None, float | None]], load: int | None
) -> float | None:
    """The value at a load between two measured ones, on logarithmic axes."""
    below = above = None
    for x, y in sorted((x, y) for x, y in points if x and y):
        if load and x <= load:
            below = (x, y)
        if load and x >= load and above is None:
            above = (x, y)
    if not load or not below or not above:
        return None
    (x0, y0), (x1, y1) = below, above
    share = 0.0 if x0 == x1 else math.log(load / x0) / math.log(x1 / x0)
    return float(y0 * (y1 / y0) ** share)


def _workload(run: RunEvidence, row: Row, point: LoadPoint, measure: str) -> Iterator[Cause]:
    said, ours = row.get("conditions", {}), run.bench
    dataset = said.get("dataset")
    yield from _compared("data set", dataset, DATASETS.get(ours.kind or "", ours.kind))
    if dataset is not None and dataset == ours.kind:  # whose prompts are those within this bound
        yield from _compared("context length", said.get("context_length"), ours.context_length)
    else:
        yield from _length("prompt tokens", row.get("isl"), ours.isl, point, measure)
    yield from _length(
        "answer tokens", row.get("osl") or said.get("osl"), _answered(ours.osl, point), point,
        measure,
    )  # fmt: skip
    yield from _compared("answers run to their length", said.get("ignore_eos"), ours.ignore_eos)


# What a kind of workload of the toolkit is called elsewhere.
DATASETS = {"fixed": "random", "shared_prefix": "random with a shared prefix"}


def _answered(osl: float | None, point: LoadPoint) -> float | None:
    """The measured length of answers if they end early, else the requested length."""
    mean = point.stats("output_tokens").mean
    return osl if mean is None or (osl and abs(mean / osl - 1) < 0.01) else mean


def _length(
    name: str, theirs: float | None, ours: float | None, point: LoadPoint, measure: str
) -> Iterator[Cause]:
    """A length and its effect, by this run's TTFT, which grows with the prompt, and TPOT."""
    if theirs is not None and theirs == ours:
        return
    ttft, tpot = point.stats("ttft_ms").p50, point.stats("tpot_ms").mean
    answer = point.stats("output_tokens").mean
    if None in (theirs, ours, ttft, tpot, answer) or measure == PER_USER:
        yield Cause(name, _said(theirs), _said(ours))
        return
    assert theirs and ours and ttft and tpot and answer
    if name == "prompt tokens":
        there = _speed(ttft * theirs / ours, tpot, answer)
    else:
        there = _speed(ttft, tpot, theirs)
    factor = _speed(ttft, tpot, answer) / there
    yield Cause(name, _said(theirs), _said(ours), factor, "by this run's TTFT and TPOT")


def _speed(ttft_ms: float, tpot_ms: float, answer_tokens: float) -> float:
    """Tokens per ms of a request."""
    return answer_tokens / (ttft_ms + (answer_tokens - 1) * tpot_ms)


def _speculation(run: RunEvidence, row: Row, figure: Row, point: LoadPoint) -> Iterator[Cause]:
    """Tokens per step: a step takes the same time whatever is accepted."""
    decided, ours = run.decisions, draft_tokens(run)
    theirs = figure.get(MTP, row.get("options", {}).get(MTP))
    if theirs is not None and theirs != ours:
        yield Cause("draft tokens", _said(theirs), _said(ours), None, "see tokens a step")
    here, there = point.tokens_per_step, figure.get("accepted_length")
    if there is None and theirs:
        kind = str(decided.get("speculative_config.decoding_type", "MTP"))
        elsewhere = acceptance_lengths(row.get("checkpoint", ""), kind, int(theirs))
        if elsewhere:
            low, high = elsewhere[0], elsewhere[-1]
            published = f"{NOT_SAID}; {number(low)} to {number(high)} elsewhere"
            if here is None:
                yield Cause("tokens a step", published, NOT_SAID)
            elif not low <= here <= high:
                factor = here / (low if here < low else high)
                how = "elsewhere: coding prompts of SPEED-Bench"
                yield Cause("tokens a step", published, number(here), factor, how)
            return
    if there is not None and here is not None:
        if abs(here / there - 1) >= 0.01:
            how = "a step takes as long whatever is accepted"
            yield Cause("tokens a step", number(there), number(here), here / there, how)
    elif there is not None or theirs or ours:
        yield Cause("tokens a step", _said(there), _said(here))


def draft_tokens(run: RunEvidence) -> int:
    """The draft tokens of a step, 0 without drafts."""
    values = (run.decisions.get(path) for path in DRAFTS)
    return next((value for value in values if isinstance(value, int)), 0)


def draft_pairs(run: RunEvidence, ours: int) -> Iterator[tuple[Row, Row, Row]]:
    """Published deployments with two figures of one load: with our draft tokens and with others."""
    for row in _rows(run):
        known = [figure for figure in row["figures"] if MTP in figure]
        for here in known:
            for there in known:
                same = here.get("concurrency") == there.get("concurrency")
                if same and here[MTP] == ours != there[MTP]:
                    yield row, here, there


def _options(run: RunEvidence, row: Row) -> Iterator[Cause]:
    """Published options that the bundle does not use, each with the plan's reason."""
    for one in (run.manifest or {}).get("differences", ()):
        if one["source"] == row["source"] and one["path"] != MTP:
            theirs, ours = (value_text(one[side], "not set") for side in ("published", "planned"))
            yield Cause(one["path"], theirs, ours, None, one["reason"])


def _client(run: RunEvidence, point: LoadPoint) -> Iterator[Cause]:
    if point.client_limited or run.bench.near_limit:
        here = f"at {percent(run.bench.share_of_limit)} of its limit"
        yield Cause("client", NOT_SAID, here, None, "the server may be faster")


AS_FAST = "as fast"
# Rates that are compared, the first that is published, and their units.
RATES = {
    "output_tokens_per_s": "output tokens/s",
    PER_USER: "tokens/s/user",
    "output_tokens_per_s_per_gpu": "tokens/s/GPU",
}


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published figure and the run's own at the nearest load.

    `ratio` is the run's speed over the published one; `causes` are the differences.
    """

    source: str
    engine: str
    gpus: str
    workload: str
    concurrency: int | None
    e2e_ms: float | None
    ttft_ms: float | None
    output_tokens_per_s: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s_per_gpu: float | None
    note: str
    speeds: tuple[str, str] | None
    ratio: float | None
    causes: tuple[Cause, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for one figure that several bundles carry."""
        rate = self.output_tokens_per_s or self.tokens_per_s_per_gpu
        return self.source, f"{self.concurrency}: {rate}", self.note

    @property
    def mark_label(self) -> str:
        return f"{number(self.concurrency)}, published" if self.concurrency else "published"

    @property
    def load_text(self) -> str:
        return f"{self.concurrency:,} concurrent" if self.concurrency else "an unknown load"

    @property
    def same_conditions(self) -> bool:
        return self.speeds is not None and not self.causes

    @property
    def summary(self) -> str:
        """How the run compares, and how much of the difference is explained."""
        if self.speeds is None or self.ratio is None:
            return "This run measured nothing to compare with it."
        published, here = self.speeds
        if any(cause.name == LOAD and cause.factor is None for cause in self.causes):
            return f"Published: {published}. Here: {here}, another load: nothing follows from it."
        text = f"Published: {published}. Here: {here}, {_slower(self.ratio)}."
        if self.same_conditions:
            return f"{text} The conditions are the same."
        known = [cause for cause in self.causes if cause.factor is not None]
        others = len(self.causes) - len(known)
        if known:
            due = explained(known)
            text += f" By the differences that have a figure it should be {_slower(due)}"
            more = _slower(self.ratio / due)
            text += f"; it is {more} {'as' if more == AS_FAST else 'than'} that."
        if others:
            text += f" {others} {'more ' if known else ''}condition{'s' * (others > 1)} may differ."
        return text


def _slower(ratio: float) -> str:
    percents = round(abs(1 - ratio) * 100)
    return f"{percents}{SPACE}% {'slower' if ratio < 1 else 'faster'}" if percents else AS_FAST


def for_run(run: RunEvidence) -> list[PublishedFigure]:
    """The published figures in the run's bundle, those with the nearest conditions first."""
    found = []
    for row in _rows(run):
        for figure in row.get("figures", ()):
            if any(key.startswith(("output_tokens", "prefill_tokens")) for key in figure):
                found.append(_figure(row, figure, run))
    return sorted(found, key=lambda one: (one.speeds is None, len(one.causes)))


def _rows(run: RunEvidence) -> Sequence[Row]:
    """The published rows in the bundle; without one, those of the model on these GPUs."""
    subject = run.bench.subject
    if run.manifest is not None:
        return run.manifest.get("published") or ()
    facts = facts_of(subject.model) if subject.model and not run.rehearsal else None
    if facts is None or not subject.gpu or not subject.num_gpus:
        return ()
    return tuple(map(asdict, published_results.published(facts, subject.gpu, subject.num_gpus)))


def _figure(row: Mapping[str, Any], figure: Mapping[str, Any], run: RunEvidence) -> PublishedFigure:
    """Fills in rates for the whole, per user and per GPU from each other."""
    gpus, concurrency = row.get("num_gpus"), figure.get("concurrency")
    total, per_gpu = figure.get("output_tokens_per_s"), figure.get("output_tokens_per_s_per_gpu")
    user = figure.get(PER_USER) or figure.get("at_tokens_per_s_per_user")
    if concurrency == 1:
        user, total = user or total, total or user
    if gpus:
        total = total or (per_gpu and per_gpu * gpus)
        per_gpu = per_gpu or (total and total / gpus)
    return PublishedFigure(
        source=row["source"],
        engine=row.get("engine", ""),
        gpus=f"{gpus or '?'}x{SPACE}{row.get('gpu') or '?'}",
        workload=row.get("workload", ""),
        concurrency=concurrency,
        e2e_ms=figure.get("median_e2e_latency_ms"),
        ttft_ms=figure.get("ttft_ms"),
        output_tokens_per_s=total,
        tokens_per_s_per_user=user,
        tokens_per_s_per_gpu=per_gpu,
        note=", ".join(filter(None, (figure.get("load"), figure.get("note")))),
        **_comparison(row, figure, run),
    )


def _comparison(
    row: Mapping[str, Any], figure: Mapping[str, Any], run: RunEvidence
) -> dict[str, Any]:
    """The run's speed, ratio and causes; none for a rehearsal, which says nothing about GPUs."""
    measure = next((name for name in RATES if figure.get(name)), None)
    point = None if run.rehearsal else _nearest(run, figure)
    if measure is None or point is None or not (here := point.rate(measure)):
        return {"speeds": None, "ratio": None, "causes": ()}
    load = f" at {figure['concurrency']:,} concurrent" if "concurrency" in figure else ""
    return {
        "speeds": (
            f"{number(figure[measure])}{SPACE}{RATES[measure]}{load}",
            f"{number(here)}{SPACE}{RATES[measure]} at {point.load}",
        ),
        "ratio": here / figure[measure],
        "causes": tuple(causes(run, row, figure, point, measure)),
    }


def _nearest(run: RunEvidence, figure: Mapping[str, Any]) -> LoadPoint | None:
    """The point without failures at the nearest load."""
    concurrency = figure.get("concurrency")
    wanted = concurrency or figure.get("at_tokens_per_s_per_user")
    if wanted is None:
        return run.bench.headline
    nearest, least = None, math.inf
    for point in run.bench.clean_points:
        load = point.concurrency if concurrency else point.rate(PER_USER)
        if load and (distance := abs(math.log(load / wanted))) < least:
            nearest, least = point, distance
    return nearest
