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
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import get_args

from .. import __version__, command
from ..diagnostics import Diagnostic
from ..errors import BadInput
from . import bundles, check, choices, deployments, estimates, plans, releases


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=get_args(command.Shell))


def _run_completion(options: argparse.Namespace) -> None:
    from .. import deployment, targets
    from ..facts import hardware, model_names, release

    known: Mapping[str, command.Words] = {
        "deployment": deployment.preset_names,
        "target": targets.names,
        "checkpoint": lambda: sorted(model_names.known_names()),
        "release": release.known,
        "like": release.known,
        "gpu": hardware.known,
    }
    print(command.completion_script(options.shell, parser(), "trtllm-builder", known), end="")


# What a verb does, its arguments and its function.
_Verb = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]
VERBS: dict[str, _Verb] = {
    "presets": (
        "list the presets with their published figures",
        deployments.add_presets,
        deployments.run_presets,
    ),
    "inspect": (
        "show the facts of a checkpoint; weights are not read",
        deployments.add_inspect,
        deployments.run_inspect,
    ),
    "plan": (
        "show limits, memory and options on one screen, with --why their reasons",
        plans.add_plan,
        plans.run_plan,
    ),
    "choose": (
        "choose GPUs, layout and batch that keep the objectives, from measured rows",
        choices.add_choose,
        choices.run_choose,
    ),
    "estimate": (
        "say how fast a deployment is by measured rows, or what to measure",
        estimates.add_estimate,
        estimates.run_estimate,
    ),
    "render": ("write the bundle of a deployment", deployments.add_render, deployments.run_render),
    "check": (
        "check option files, Triton models, deployments, bundles, scripts",
        check.add_check,
        check.run_check,
    ),
    "explain": (
        "say why a value of a bundle is what it is",
        bundles.add_explain,
        bundles.run_explain,
    ),
    "diff": ("show what changed between two bundles", bundles.add_diff, bundles.run_diff),
    "verify": (
        "check every byte of a bundle, its lists and its signature",
        bundles.add_verify,
        bundles.run_verify,
    ),
    "sign": ("sign a bundle with an SSH key", bundles.add_sign, bundles.run_sign),
    "advisories": (
        "list known vulnerabilities",
        releases.add_advisories_list,
        releases.run_advisories,
    ),
    "release": (
        "list the option tables of releases, or import one",
        releases.add_release,
        releases.run_release,
    ),
    "miniature": (
        "write a tiny checkpoint of the same architecture",
        deployments.add_miniature,
        deployments.run_miniature,
    ),
    "completion": (
        "print what completes these commands in bash or zsh",
        _add_completion,
        _run_completion,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    return command.run(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    options = parser(words[:1]).parse_args(words)
    with ExitStack() as stack:
        if folder := getattr(options, "advisories", None):
            from ..facts import advisories

            stack.enter_context(advisories.of_folder(folder))
        options.run(options)
        if hasattr(options, "advisories"):
            _warn_of_old_advisories()


def _warn_of_old_advisories() -> None:
    """`SOURCE_DATE_EPOCH` says which day it is where that must not change."""
    from ..facts import advisories

    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        today = datetime.fromtimestamp(float(given or time.time()), UTC).date()
    except (ValueError, OverflowError, OSError):
        what = "is not a time in seconds since 1970"
        raise BadInput(Diagnostic("SOURCE_DATE_EPOCH", what, "correct it, or unset it")) from None
    for row in advisories.stale(today):
        print(f"{row.severity}: {row}", file=sys.stderr)


def parser(named: Sequence[str] = ()) -> command.Parser:
    """That of all verbs; where a command begins with one, only that one has its arguments."""
    parser = command.Parser(
        prog="python -m builder",
        description="From a checkpoint, GPUs and a workload to a deployment.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, (text, add_arguments, run) in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=run)
        if name in named or VERBS.keys().isdisjoint(named):
            add_arguments(sub)
    return parser
