"""The verb `diagnose`."""

from __future__ import annotations

import argparse
import json

from builder.errors import BadFacts, NotReady


def run(options: argparse.Namespace) -> None:
    from .. import diagnose, diagnosis_text

    found = diagnose.collect(options.paths)
    found.bundle = options.bundle or found.bundle
    diagnosis, in_force = diagnose.diagnose(found)
    if options.json:
        shown = diagnosis_text.document(diagnosis, in_force)
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print(diagnosis_text.text(diagnosis, in_force))
    if diagnosis.causes:
        raise NotReady(())
    if diagnosis.verdict != "healthy":
        raise BadFacts(())
