"""Schemas of the data files whose readers take plain mappings: observability, the runbook, packages
and the file formats of others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from .schema import Positive, Text

Severity = Literal["error", "warning"]
Names = tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Package:
    """A Python package by its requirement; `command` is the one that needs it."""

    requirement: Text
    license: Text
    command: Literal["builder", "launch"]

    @property
    def name(self) -> str:
        return re.split(r"[<>=\[]", self.requirement)[0]


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages that the toolkit takes from an index, and who says what they are."""

    source: Text
    packages: tuple[Package, ...]


# Observability.


class MetricRow(TypedDict):
    """A metric family; `needs` is the engine option without which it stays empty."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: NotRequired[Names]
    bounds: NotRequired[tuple[float, ...]]
    needs: NotRequired[Text]
    source: Text


class ServerMetricsFile(TypedDict):
    """The metrics of one server; `names` are those that signals ask for."""

    names: dict[str, Text]
    sources: dict[str, Text]
    bounds: dict[str, tuple[float, ...]]
    families: dict[str, MetricRow]


class ExportersFile(TypedDict):
    """What stands beside a server, by the job of Prometheus that asks it."""

    sources: dict[str, Text]
    jobs: dict[str, Mapping[Literal["exporter", "families"], Text | dict[str, MetricRow]]]


class SignalRow(TypedDict):
    """What is watched of any server."""

    level: Literal["instance", "gpu", "job", "deployment"]
    unit: Literal["short", "reqps", "bool", "s", "tps", "d", "percentunit"]
    title: Text
    windows: NotRequired[Names]
    labels: NotRequired[dict[str, str]]


class SignalTest(TypedDict):
    """Ten steps of a minute that feed an expression, and what it is then."""

    feed: dict[str, str]
    expect: float
    per_s: NotRequired[bool]
    days_from_end: NotRequired[bool]


class SignalSource(TypedDict):
    """An expression over metrics that gives a signal."""

    signal: Text
    expr: Text
    test: SignalTest
    jobs: NotRequired[Names]
    needs: NotRequired[Names]
    server: NotRequired[Text]


SignalsFile = dict[Literal["signals", "rows"], dict[str, SignalRow] | tuple[SignalSource, ...]]


class Panel(TypedDict):
    """A panel over signals."""

    kind: Literal["stat", "timeseries"]
    title: Text
    signals: Names
    reduce: NotRequired[Literal["sum", "max", "min", "avg"]]
    threshold: NotRequired[Text]


class Dashboard(TypedDict):
    """Rows of panels."""

    file: Text
    title: Text
    description: Text
    rows: tuple[dict[Literal["title", "panels"], Text | tuple[Panel, ...]], ...]


# The runbook.


class RunbookRow(TypedDict, total=False):
    """A section, a procedure or a command of the runbook."""

    id: Text
    section: Text
    title: Text
    text: Text
    listed: bool
    when: Names
    steps: tuple[Text | dict[Literal["title", "of"], Text | Names], ...]
    run: Text
    prints: Text
    outcome: Text


class RunbookFile(TypedDict):
    """The runbook's own words."""

    sections: dict[str, RunbookRow]
    procedures: tuple[RunbookRow, ...]
    commands: dict[str, RunbookRow]


# Files of others that `check` reads.


class ModelConfigFile(TypedDict):
    """Triton's model configuration: messages with their fields, and enums."""

    source: Text
    messages: dict[str, dict[str, Text]]
    at_least: dict[str, dict[str, int]]
    exclusive: dict[str, tuple[Names, ...]]
    enums: dict[str, Names]


class LlmApiModelFile(TypedDict):
    """What the engine's Triton model needs of its `config.pbtxt`."""

    source: Text
    not_in_config_pbtxt: Names
    instance_kind: Text
    required_input: Text
    inputs: dict[str, Text]
    required_output: Text
    outputs: dict[str, Text]


class JobRule(TypedDict):
    """A rule of job scripts; its message is in the code that finds it."""

    severity: Severity
    fix: Text
    source: NotRequired[Text]


JobOptions = dict[Literal["short", "flags", "optional", "values", "newer"], dict[str, Text] | Names]
JobForm = dict[Literal["options", "rule", "pattern", "fix"], Names | Text]


class JobScriptsFile(TypedDict):
    """What Slurm reads of a job script, and the rules for it."""

    source: Text
    sbatch: JobOptions
    srun: JobOptions
    forms: tuple[JobForm, ...]
    alternatives: tuple[Names, ...]
    largest_block: Positive
    rules: dict[str, JobRule]


@dataclass(frozen=True, slots=True)
class FormerOptions:
    """Options that are gone or have moved, and what is said of each now."""

    source: Text
    options: Mapping[str, Text]


Dashboards = dict[Literal["dashboards"], tuple[Dashboard, ...]]
Findings = dict[Literal["findings"], dict[str, Text]]
