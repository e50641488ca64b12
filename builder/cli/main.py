"""The command line of the builder: its verbs, their exit codes, and which module has each.

Exit codes: 0 done, 1 our bug, 2 bad input, 3 facts missing or contradictory, 4 bundle damaged.
What a verb works with is imported inside it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from .. import __version__, command, completion
from . import bundles, check, deployments, plans, releases


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: what it does, its arguments and its function."""

    text: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=get_args(completion.Shell))


def _run_completion(options: argparse.Namespace) -> None:
    from .. import deployment, targets
    from ..facts import checkpoint, hardware, release

    known: Mapping[str, completion.Words] = {
        "deployment": deployment.preset_names,
        "target": targets.names,
        "checkpoint": lambda: sorted(checkpoint.known_names()),
        "release": release.known,
        "like": release.known,
        "gpu": hardware.known,
    }
    print(completion.script(options.shell, parser(), "trtllm-builder", known), end="")


VERBS = {
    "presets": Verb(
        "list the presets with their published figures",
        deployments.add_presets,
        deployments.run_presets,
    ),
    "inspect": Verb(
        "show the facts of a checkpoint; weights are not read",
        deployments.add_inspect,
        deployments.run_inspect,
    ),
    "plan": Verb(
        "show limits, memory and options on one screen, with --why their reasons",
        plans.add_plan,
        plans.run_plan,
    ),
    "render": Verb(
        "write the bundle of a deployment", deployments.add_render, deployments.run_render
    ),
    "check": Verb(
        "check option files, Triton models, deployments, bundles, scripts",
        check.add_check,
        check.run_check,
    ),
    "explain": Verb(
        "say why a value of a bundle is what it is", bundles.add_explain, bundles.run_explain
    ),
    "diff": Verb("show what changed between two bundles", bundles.add_diff, bundles.run_diff),
    "verify": Verb(
        "check every byte of a bundle, its lists and its signature",
        bundles.add_verify,
        bundles.run_verify,
    ),
    "sign": Verb("sign a bundle with an SSH key", bundles.add_sign, bundles.run_sign),
    "advisories": Verb(
        "list known vulnerabilities", releases.add_advisories_list, releases.run_advisories
    ),
    "release": Verb(
        "list the option tables of releases, or import one",
        releases.add_release,
        releases.run_release,
    ),
    "miniature": Verb(
        "write a tiny checkpoint of the same architecture",
        deployments.add_miniature,
        deployments.run_miniature,
    ),
    "completion": Verb(
        "print what completes these commands in bash or zsh", _add_completion, _run_completion
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    return command.run(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> None:
    options = parser().parse_args(arguments)
    if folder := getattr(options, "advisories", None):
        from ..facts import advisories

        advisories.use(folder)
    options.run(options)
    if hasattr(options, "advisories"):
        _warn_of_old_advisories()


def _warn_of_old_advisories() -> None:
    """`SOURCE_DATE_EPOCH` says which day it is where that must not change."""
    from ..facts import advisories

    now_s = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    for row in advisories.stale(datetime.fromtimestamp(now_s, UTC).date()):
        print(f"{row.severity}: {row}", file=sys.stderr)


def parser() -> command.Parser:
    parser = command.Parser(
        prog="python -m builder",
        description="From a checkpoint, GPUs and a workload to a TensorRT-LLM deployment.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, verb in VERBS.items():
        text = f"{verb.text[0].upper()}{verb.text[1:]}."
        sub = verbs.add_parser(name, help=verb.text, description=text)
        sub.set_defaults(run=verb.run)
        verb.add_arguments(sub)
    return parser
