"""The verb `diagnose`."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

from builder.errors import BadFacts, NotReady


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
