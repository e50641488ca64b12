"""The command line of `python -m builder`: runs a verb and returns its exit code.

Exit codes: 0 done, 1 our bug, 2 bad input, 3 facts missing or contradictory, 4 bundle damaged.
Verbs import what they need when they run, which keeps `--help` fast.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType

from .. import __version__, command
from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..general_rules import STALE_ADVISORIES
from . import bundles, check, deployments, estimates, releases, terminal

# The module of each verb, with its `add_VERB` for arguments and its `run_VERB`; its help text.
VERBS: dict[str, tuple[ModuleType, str]] = {
    "presets": (deployments, "list the presets with their published figures"),
    "inspect": (deployments, "show the facts of a checkpoint; weights are not read"),
    "plan": (
        deployments,
        "show limits, memory and options on one screen; --why adds the reasons",
    ),
    "choose": (
        estimates,
        "choose GPUs, layout and batch size that meet the targets, from measurements",
    ),
    "estimate": (
        estimates,
        "estimate the speed of a deployment from measurements, or say what to measure",
    ),
    "render": (deployments, "write the bundle of a deployment"),
    "check": (check, "check option files, Triton models, deployments, bundles, scripts"),
    "explain": (bundles, "show the reason and source of a value in a bundle"),
    "diff": (bundles, "show what changed between two bundles"),
    "pin": (bundles, "write the digests of a deployment's images into its file, from registries"),
    "upgrade": (bundles, "write a bundle's deployment for another release, and what changes"),
    "verify": (bundles, "check every file and the signature of a bundle"),
    "sign": (bundles, "sign a bundle with an SSH key"),
    "advisories": (releases, "list known vulnerabilities"),
    "release": (releases, "list the option tables of releases, or import one"),
    "miniature": (deployments, "write a tiny checkpoint of the same architecture"),
    "completion": (terminal, "print the completion script for bash or zsh"),
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
            _warn_of_old_advisories(options.advisories)


# Publishers report new ones every month; older data has missed some.
STALE_DAYS = 60


def _warn_of_old_advisories(folder: Path | None) -> None:
    """Warn of old advisories; `SOURCE_DATE_EPOCH` overrides today's date. Only their names and
    dates are read: building all records would take as long as checking a file."""
    from ..documents import DATA

    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        today = datetime.fromtimestamp(float(given or time.time()), UTC).date()
    except (ValueError, OverflowError, OSError):
        what = "is not a time in seconds since 1970"
        raise BadInput(Diagnostic("SOURCE_DATE_EPOCH", what, "correct it, or unset it")) from None
    for path in sorted((folder or DATA / "advisories").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        named = re.search("^name: (.+)$", text, re.MULTILINE)
        dated = re.search('^as_of: "?([0-9-]+)', text, re.MULTILINE)
        if not named or not dated:
            continue
        days = (today - date.fromisoformat(dated[1])).days
        if days > STALE_DAYS:
            what = f"are {days} days old: what was published since {dated[1]} is missing"
            fix = "use a newer toolkit, or newer ones: --advisories FOLDER"
            where = f"advisories of {named[1]}"
            row = Diagnostic(where, what, fix, STALE_ADVISORIES, "warning")
            print(f"{row.severity}: {row}", file=sys.stderr)


def parser(named: Sequence[str] = ()) -> command.Parser:
    """The parser of all verbs; if `named` has one, only that verb gets its arguments."""
    found = command.Parser(
        prog="python -m builder",
        description="From a checkpoint, GPUs and a workload to a deployment.",
    )
    found.add_argument("--version", action="version", version=__version__)
    # With `prog`, argparse need not format a usage line for it, for which it imports shutil.
    verbs = found.add_subparsers(metavar="VERB", required=True, prog=found.prog)
    for name, (module, text) in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=getattr(module, f"run_{name}"), parser=parser)
        if name in named or VERBS.keys().isdisjoint(named):
            getattr(module, f"add_{name}")(sub)
    return found
