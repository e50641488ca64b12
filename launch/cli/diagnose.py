"""The verb `diagnose`."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from builder.errors import BadFacts, ChecksFailed, NotReady, ToolkitError

Verb = Callable[[argparse.Namespace], None]


def run(options: argparse.Namespace) -> None:
    from .. import diagnose, diagnosis_text, known_defects

    found = diagnose.Found()
    numbers = [name for name in options.paths if name.isdecimal() and not Path(name).exists()]
    if numbers:
        from ..slurm import jobs, services

        for number in numbers:
            jobs.collect(services.job(number), found)
    diagnose.collect([name for name in options.paths if name not in numbers], found)
    found.bundle = options.bundle or found.bundle
    diagnosis, in_force = diagnose.diagnose(found)
    shown = diagnosis_text.document(diagnosis, in_force)
    defects = [] if diagnosis.verdict == "healthy" else known_defects.of_failure(found)
    if options.json:
        shown["known_defects"] = [row.document() for row in defects]
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print(diagnosis_text.text(shown))
        for line in known_defects.lines(defects):
            print(textwrap.fill(line, diagnosis_text.WIDTH, subsequent_indent="  "))
    if diagnosis.causes:
        raise NotReady(())
    if diagnosis.verdict != "healthy":
        raise BadFacts(())


def explaining(verb: Verb) -> Verb:
    """A verb for a running server of a bundle, whose errors get the diagnosis of its run."""

    def explained(options: argparse.Namespace) -> None:
        try:
            verb(options)
        except (NotReady, ChecksFailed) as error:
            lines = _of_newest_run(options)
            if not lines or not error.diagnostics:
                raise
            first, *others = error.diagnostics
            raise type(error)([replace(first, log=(*first.log, *lines)), *others]) from None

    return explained


def _of_newest_run(options: argparse.Namespace) -> tuple[str, ...]:
    """The diagnosis of the run of this bundle and target under `runs`, if there is one."""
    if "://" in options.server:
        return ()
    from builder import bundle

    from .. import diagnose, diagnosis_text, target
    from .. import run as runs

    try:
        found = bundle.read(Path(options.server))
        name = target.read_one(found, options.target).name
        for folder, facts in runs.of_bundle(found):
            if facts.get("target") == name:
                diagnosis, _ = diagnose.diagnose(diagnose.of_run(folder))
                return diagnosis_text.below_error(diagnosis_text.document(diagnosis))
    except ToolkitError:  # the error that is to be explained counts more
        pass
    return ()
