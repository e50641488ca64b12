"""The command line of `python -m builder`: runs a verb and returns its exit code.

Exit codes: 0 done, 1 our bug, 2 bad input, 3 facts missing or contradictory, 4 bundle damaged.
Verbs import what they need when they run, which keeps `--help` fast.
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
from . import bundles, check, deployments, estimates, releases


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


# A verb's help text, the function that adds its arguments, and the one that runs it.
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
        "show limits, memory and options on one screen; --why adds the reasons",
        deployments.add_plan,
        deployments.run_plan,
    ),
    "choose": (
        "choose GPUs, layout and batch size that meet the targets, from measurements",
        estimates.add_choose,
        estimates.run_choose,
    ),
    "estimate": (
        "estimate the speed of a deployment from measurements, or say what to measure",
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
        "show the reason and source of a value in a bundle",
        bundles.add_explain,
        bundles.run_explain,
    ),
    "diff": ("show what changed between two bundles", bundles.add_diff, bundles.run_diff),
    "verify": (
        "check every file and the signature of a bundle",
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
        "print the completion script for bash or zsh",
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
    """Warn of old advisories; `SOURCE_DATE_EPOCH` overrides today's date."""
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
    """The parser of all verbs; if `named` has one, only that verb gets its arguments."""
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
