"""Schemas of the data files whose readers take plain mappings: observability, the runbook, packages
and the file formats of others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from ..schema import Positive, Text

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

# A metric family; `needs` is the engine option without which it stays empty, `stat` the field of
# the engine's iteration statistics that it shows, or the quotient of two.
METRIC_ROW: Any = {
    "kind": Literal["counter", "gauge", "histogram"],
    "labels?": Names,
    "bounds?": [float],
    "needs?": Text,
    "stat?": Text,
    "source": Text,
}

# The metrics of one server; `names` maps the names in signals to the server's.
SERVER_METRICS_FILE: Any = {
    "names": {"*": Text},
    "sources": {"*": Text},
    "bounds": {"*": [float]},
    "families": {"*": METRIC_ROW},
}

# Exporters that run next to a server, by the Prometheus job that scrapes them.
EXPORTERS_FILE: Any = {
    "sources": {"*": Text},
    "jobs": {"*": {"exporter": Text, "families": {"*": METRIC_ROW}}},
}

# What is watched of any server.
SIGNAL_ROW: Any = {
    "level": Literal["instance", "gpu", "job", "deployment"],
    "unit": Literal["short", "reqps", "bool", "s", "tps", "d", "percentunit"],
    "title": Text,
    "windows?": Names,
    "labels?": {"*": str},
}

# Ten steps of a minute that feed an expression, and what it is then.
SIGNAL_TEST: Any = {"feed": {"*": str}, "expect": float, "per_s?": bool, "days_from_end?": bool}

# An expression over metrics that gives a signal.
SIGNAL_SOURCE: Any = {
    "signal": Text,
    "expr": Text,
    "test": SIGNAL_TEST,
    "jobs?": Names,
    "needs?": Names,
    "server?": Text,
}

SIGNALS_FILE: Any = {"signals": {"*": SIGNAL_ROW}, "rows": [SIGNAL_SOURCE]}

# A panel over signals.
PANEL: Any = {
    "kind": Literal["stat", "timeseries"],
    "title": Text,
    "signals": Names,
    "reduce?": Literal["sum", "max", "min", "avg"],
    "threshold?": Text,
}

# Rows of panels.
DASHBOARD: Any = {
    "file": Text,
    "title": Text,
    "description": Text,
    "rows": [{"title": Text, "panels": [PANEL]}],
}

# The runbook's own words. A step is a command, or several under a title of their own.
RUNBOOK_FILE: Any = {
    "sections": {"*": {"title": Text, "text?": Text, "listed?": bool}},
    "errors": [{"sign": Text, "means": Text, "again": Text}],
    "procedures": [
        {
            "id": Text,
            "section": Text,
            "title": Text,
            "text?": Text,
            "when?": Names,
            "steps": [(Text, {"title": Text, "of": Names})],
        }
    ],
    "commands": {
        "*": {"title?": Text, "when?": Names, "run": Text, "prints?": Text, "outcome?": Text}
    },
}

# How programs ask registries about images, and what their errors mean.
REGISTRIES: Any = {
    "programs": [{"name": Text, "login": Text, "source": Text, "manifest": Names, "config": Names}],
    "errors": [{**dict.fromkeys(("matches", "what", "fix"), Text), "is_input": bool}],
}

# Files of others that `check` reads.

# Triton's model configuration: messages with their fields, and enums.
MODEL_CONFIG_FILE: Any = {
    "source": Text,
    "messages": {"*": {"*": Text}},
    "exclusive": {"*": [Names]},
    "enums": {"*": Names},
}

# What the engine's Triton model needs of its `config.pbtxt`.
LLM_API_MODEL_FILE: Any = {
    "source": Text,
    "required_input": Text,
    "inputs": {"*": Text},
    "required_output": Text,
    "outputs": {"*": Text},
}

# What Triton's model configuration means to the server and to backends.
TRITON_PARAMETERS: Any = {
    "is_closed?": bool,
    "marks?": Names,
    "needed?": [Names],
    "filled?": Names,
    "tensors?": {"*": Names},
    "ranks?": Names,
    "types": {"*": (Text, Names)},
    "former?": Names,
}
TRITON_BACKENDS_FILE: Any = {
    "source": Text,
    "backends": Names,
    "platforms": {"*": Text},
    "completes": [str],
    "files": {"*": Names},
    "forms": {"*": {"value": Text, "fix": Text, "rule": Text}},
    "parameters": {"*": TRITON_PARAMETERS},
}

# What fields of a model configuration must hold.
TRITON_CHECK: Any = {
    "at": Names,
    "when?": {"*": str},
    **dict.fromkeys(("least?", "most?"), (int, Text)),
    **dict.fromkeys(("value?", "among?", "unset?"), Text),
    **dict.fromkeys(("unique?", "required?"), bool),
    "rule": Text,
    "severity?": Severity,
    "what": Text,
    "fix": Text,
}
TRITON_CHECKS_FILE: Any = {"source": Text, "checks": {"*": [TRITON_CHECK]}}

# Triton's own programs: flags by the kind of their values.
TRITON_PROGRAM: Any = {
    "needed?": Names,
    "repeated?": Names,
    "only_with?": {"*": {"flag": Text, "value": Text}},
    "exclusive?": [Names],
    "since?": {"*": Text},
    "deprecated?": {"*": Text},
    "short?": {"*": Text},
    "ports?": {"*": Text},
    "flags": {"*": Names},
}
TRITON_PROGRAMS_FILE: Any = {
    "source": Text,
    "releases": {"*": {"version": Text, "commit": Text}},
    "paths": Text,
    "kinds": {"*": {"pattern": Text, "fix": Text}},
    "programs": {"*": TRITON_PROGRAM},
}

# Limits of Triton, and what the bundles set `against` each, as a text in a file of the toolkit.
TRITON_LIMITS_FILE: Any = {
    "source": Text,
    "limits": [
        {
            "limit": Text,
            "most": Text,
            "since": Text,
            "option?": Text,
            "before?": Text,
            "then": Text,
            "against": {"file": Text, "text": Text},
        }
    ],
}

TRITON_FILES: Any = {
    "triton/backends.yaml": TRITON_BACKENDS_FILE,
    "triton/config_checks.yaml": TRITON_CHECKS_FILE,
    "triton/limits.yaml": TRITON_LIMITS_FILE,
    "triton/llmapi_model.yaml": LLM_API_MODEL_FILE,
    "triton/model_config.yaml": MODEL_CONFIG_FILE,
    "triton/programs.yaml": TRITON_PROGRAMS_FILE,
}

# A rule of job scripts; its message is in the code that finds it.
JOB_RULE: Any = {"severity": Severity, "fix": Text, "source?": Text}

JOB_OPTIONS: Any = {
    "short": {"*": Text},
    **dict.fromkeys(("flags", "optional", "values", "newer"), Names),
}
JOB_FORM: Any = {"options": Names, "rule": Text, "pattern": Text, "fix": Text}

# What Slurm reads of a job script, and the rules for it.
JOB_SCRIPTS_FILE: Any = {
    "source": Text,
    "sbatch": JOB_OPTIONS,
    "srun": JOB_OPTIONS,
    "forms": [JOB_FORM],
    "alternatives": [Names],
    "largest_block": Positive,
    "rules": {"*": JOB_RULE},
}

# Options that were removed or moved, by their owner, with the message for each.
FORMER_OPTIONS: Any = {"*": {"source": Text, "options": {"*": Text}}}

# Other words for values of options, each with the values that it may mean.
VALUE_WORDS: Any = {"source": Text, "words": {"*": Names}}

# The context of engine options: sections of launchers' files, and the engine's variables.
LAYOUT: Any = {
    "source": Text,
    "marks": Names,
    "keys": {"*": Names},
    "values?": {"*": Names},
    "counts?": Names,
}
SURROUNDINGS_FILE: Any = {
    "models": {"source": Text, "names": {"*": Text}},
    "layouts": {"*": LAYOUT},
    "variables": {"*": Text},
    "libraries": {
        "*": {"source": Text, "names": Names, "others": {"source": Text, "names": Names}}
    },
    "switches": {"source": Text, "names": Names},
    "graph_services": {"source": Text, "names": Names},
    "choices": {"source": Text, "names": {"*": Names}},
    "transports": {"source": Text, "of_gpus": Names, "transfer": Names},
    "machines": {"source": Text, "names": {"*": Text}},
    "shared_memory": {
        "source": Text,
        "folder": Text,
        "docker": Names,
        "compose": Names,
        "pods": Names,
    },
    "probes": {"source": Text, "defaults": {"*": int}},
    "node_labels": {
        "source": Text,
        "keys": Names,
        "other_boards": Names,
        "other_machines": Names,
        "whole": Names,
    },
}

BENCHMARK_TOOLS: Any = {"*": [{"statement": Text, "source": Text}]}

# What a run's own measurements suggest to change. Conditions compare figures of the run, or
# decisions by their path, with numbers or other figures; edits and effects (in percent) name
# figures.
_BOUND: Any = (Text, float)
SUGGESTIONS: Any = {
    "repeat_percent": float,
    "repeat_source": Text,
    "no_speed": {"*": Text},
    "figures": {"*": Text},
    "rules": [
        {
            "id": Text,
            "when": {"*": {"above?": _BOUND, "below?": _BOUND}},
            "edit": {"*": (Text, None)},
            "effects": {"*": {"low?": Text, "high?": Text}},
            "why": Text,
            "confidence": Literal["measured", "assumed"],
            "source": Text,
        }
    ],
}
# Options that tuning changes, and the values to try.
TUNING_FILE: Any = {
    "options": [
        {
            "option": Text,
            "title": Text,
            "effect": float,
            "values?": [Any],
            "times?": [float],
            "plus?": float,
            "when?": {"*": Any},
            "reason": Text,
            "source": Text,
        }
    ]
}
# The schemas of files of one kind.
FILES = {
    "benchmark_tools.yaml": BENCHMARK_TOOLS,
    "registries.yaml": REGISTRIES,
    "runbook.yaml": RUNBOOK_FILE,
    "suggestions.yaml": SUGGESTIONS,
    "tuning/*.yaml": TUNING_FILE,
}
DASHBOARDS: Any = {"dashboards": [DASHBOARD]}
