"""Server flags for clients: the model's name, its tokenizer and its parsers.

A decision whose value is `None` sets nothing, and gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from ..diagnostics import either
from ..facts import data_file, servers
from ..facts import release as releases
from ..facts.checkpoint import read_shipped, same_model
from ..facts.model_facts import ModelFacts
from ..facts.model_names import known_names
from ..facts.release import Flag
from ..rules import answer_parsers, heuristics
from .decision import Decision, Evidence
from .plan_builder import PlanBuilder

_NAME = "served_model_name"
_GUIDES = "guided_decoding_backend"
_PARSERS = {
    "tool_parser": "tool calls",
    "reasoning_parser": "thoughts",
}


def server_flags(builder: PlanBuilder) -> Iterator[Decision]:
    """The flags that the model and its clients need, and the ones left out."""
    release = builder.facts.release
    for row in release.flags_for(builder.facts.checkpoint.architecture.name):
        path, evidence = release.spelling(row["flag"]), cast(Evidence, row["evidence"])
        yield Decision(path, row["value"], row["reason"], evidence, row["source"])
    yield _served_name(builder)
    if builder.deployment.role != "prefill":  # the other side writes the answers
        names = (name for name in _PARSERS if name in release.engine.parser_flags)
        yield from (_parser(builder, name) for name in names if not builder.overriding(name))
        yield from _of_rows(builder)
    if _GUIDES in release.paths and builder.given(_GUIDES) is None:
        what = (
            "a request with response_format or another guide is refused, or over the OpenAI API "
            f"answered as if it had none; {_GUIDES}: xgrammar in engine_config makes it heeded"
        )
        yield _unset(builder, _GUIDES, what)


def check_parsers(builder: PlanBuilder, flags: list[Decision]) -> list[Decision]:
    """Warns of parsers that do not read what the model's chat template writes. Returns the flags;
    the reason of one that cannot be checked says so.
    """
    checkpoint, release = builder.facts.checkpoint, builder.facts.release
    rows = {row.path.lstrip("-").replace("-", "_"): row for row in flags}
    options = {path: row.value for path, row in {**rows, **builder.decisions}.items()}
    for option, found in answer_parsers.check(release, options, checkpoint.name, checkpoint.path):
        if not isinstance(found, str):
            builder.warnings.append(found)
        elif option in rows:
            reason = f"{rows[option].reason} Not checked: {found}."
            rows[option] = replace(rows[option], reason=reason)
    return list(rows.values())


def _served_name(builder: PlanBuilder) -> Decision:
    request, release = builder.deployment, builder.facts.release
    if flag := _flag(builder, _NAME):
        reason = "The name by which clients ask for the model, wherever its weights lie."
        if request.served_model_name:
            return Decision(flag.spellings[0], request.model_name, reason, "override", "deployment")
        source = f"checkpoint {request.checkpoint}"
        return Decision(flag.spellings[0], request.model_name, reason, "derived", source)
    what = (
        f"the server of release {release.name} has no option for it and names the model after the "
        "folder that CHECKPOINT names"
    )
    by_name = [name for name in request.targets if name in servers.names()]
    if request.served_model_name and any(servers.load(name).api == "openai" for name in by_name):
        others = releases.of_engine(release.engine)
        having = [row.name for row in others if any(flag.name == _NAME for flag in row.serve_flags)]
        remedy = f"call that folder {request.served_model_name}"
        remedy += f", or choose release {either(having)}" if having else ""
        builder.warn(_NAME, what, remedy)
    return _unset(builder, _NAME, what)


def _parser(builder: PlanBuilder, name: str) -> Decision:
    """The parser of the model, if its facts and the release name one."""
    text, flag = f"{_PARSERS[name]} stay in the text", _flag(builder, name)
    rows = [getattr(model, name) for model in _models(builder)]
    values = {row and row.value for row in rows}
    if len(values) > 1:
        return _unset(builder, name, f"models of this shape differ in it, so {text}")
    row = next(iter(rows), None)
    if row is None:
        return _unset(builder, name, f"none is known for this model, so {text}")
    if row.value is None:
        return _unset(builder, name, row.source)
    if flag is None or row.value not in flag.values:
        release = builder.facts.release.name
        return _unset(builder, name, f"release {release} has no {row.value}, so {text}")
    reason = f"The server takes {_PARSERS[name]} out of the text, in fields of their own."
    evidence: Evidence = "documented" if row.verified else "assumed"
    return Decision(flag.spellings[0], row.value, reason, evidence, row.source)


def _of_rows(builder: PlanBuilder) -> Iterator[Decision]:
    """Server flags from the rows of the engine; a switch has the value `True`."""
    release, inputs = builder.facts.release, builder.inputs()
    for heuristic in heuristics.section("guidance.server", release.engine):
        flag = _flag(builder, heuristic.option)
        row = next(heuristic.fitting(inputs), None)
        if flag is None or row is None:
            continue
        value = row.evaluate(inputs)
        known = release.server_options[heuristic.option].get("values", [value])
        if value in known:
            yield Decision(flag.spellings[0], value, row.reason, builder.grade(row), row.source)


def _models(builder: PlanBuilder) -> list[ModelFacts]:
    """The shipped facts of the model; for a folder those of every model that it may be."""
    checkpoint, known = builder.facts.checkpoint, known_names()
    if own := known.get(checkpoint.name):
        return [data_file.load(own, ModelFacts)]
    fitting = (path for path in known.values() if same_model(read_shipped(path), checkpoint))
    return [data_file.load(path, ModelFacts) for path in fitting]


def _flag(builder: PlanBuilder, name: str) -> Flag | None:
    return next((flag for flag in builder.facts.release.serve_flags if flag.name == name), None)


def _unset(builder: PlanBuilder, name: str, why: str) -> Decision:
    source = f"option table of release {builder.facts.release.name}"
    return Decision(name, None, f"Not set: {why}.", "engine default", source)
