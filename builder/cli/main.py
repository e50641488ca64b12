"""The command line of the builder: arguments, exit codes and printing.

Exit codes: 0 done, 1 our bug, 2 bad input, 3 facts missing or contradictory, 4 bundle damaged.
Modules are imported inside the verbs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__, command
from ..diagnostics import Diagnostic
from ..errors import BadInput
from . import arguments


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    options = _parser().parse_args(words)
    return command.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    if folder := getattr(options, "advisories", None):
        from ..facts import advisories

        advisories.use(folder)
    options.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builder",
        description="From a checkpoint, GPUs and a workload to a TensorRT-LLM deployment.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for run, text in VERBS.items():
        name = run.__name__.removeprefix("_")
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=run)
        getattr(arguments, name)(sub)
    return parser


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _presets(options: argparse.Namespace) -> None:
    from . import show

    rows = show.preset_rows()
    _print_json(rows) if options.json else print(show.presets_table(rows))


def _inspect(options: argparse.Namespace) -> None:
    from ..facts import checkpoint
    from . import show

    facts = checkpoint.gather(options.checkpoint)
    _print_json(show.checkpoint_document(facts)) if options.json else print(show.checkpoint(facts))


def _plan(options: argparse.Namespace) -> None:
    from .. import pipeline
    from . import show

    document = pipeline.manifest_facts(
        pipeline.plan(options.deployment, options.set, options.target)
    )
    if options.json:
        keys = ("decisions", "differences", "warnings", "memory", "published")
        _print_json({key: document[key] for key in keys})
    else:
        print(show.plan(document))
    _warn(document["warnings"])


def _render(options: argparse.Namespace) -> None:
    from .. import pipeline

    bundle = pipeline.render(
        options.deployment, options.output, options.set, options.force, options.target
    )
    _warn(bundle.manifest["warnings"])
    files = len(bundle.manifest["files"])
    print(f"{bundle.folder}\n{files} files, digest {bundle.digest}")


def _check(options: argparse.Namespace) -> None:
    from .. import lint as check
    from ..lint import report as review
    from . import show

    def planner(path: Path, overrides: Sequence[str]) -> Sequence[Diagnostic]:
        from .. import pipeline  # planning is needed for deployment files only

        return pipeline.deployment_problems(path, overrides)

    request = check.CheckOptions(tuple(dict.fromkeys(options.release)), options.role, options.gpu)
    report = check.check(options.paths, request, planner)
    for path, write in ((options.sarif, review.sarif), (options.code_quality, review.code_quality)):
        if path:
            review.write(path, write(report.findings, Path.cwd()))
    _print_json(report.document()) if options.json else print(show.findings(report))
    sys.stdout.flush()
    if report.errors:
        raise BadInput(())  # the findings have been printed


def _explain(options: argparse.Namespace) -> None:
    from .. import bundle
    from . import show

    manifest = bundle.read(options.bundle).manifest
    rows = show.matching_decisions(manifest, options.path)
    _print_json(rows) if options.json else print(show.decisions(rows))


def _diff(options: argparse.Namespace) -> None:
    from .. import bundle, diff

    found = diff.compare(bundle.read(options.old), bundle.read(options.new))
    _print_json(diff.document(found)) if options.json else print(diff.text(found))


def _verify(options: argparse.Namespace) -> None:
    from .. import verification
    from . import show

    if options.identity and not options.signers:
        raise BadInput(Diagnostic("--identity", "is one of the signers", "add --signers FILE"))
    report = verification.verify(options.bundle, options.signers, options.identity)
    if options.json:
        _print_json(report.document())
        sys.stdout.flush()
    verification.require(report)
    if not options.json:
        print(show.verified(report.document()))


def _sign(options: argparse.Namespace) -> None:
    from .. import verification

    signer = verification.sign(options.bundle, options.key)
    print(f"{options.bundle}: signed with key {signer.key}")


def _advisories(options: argparse.Namespace) -> None:
    from . import show

    if options.action == "update":
        return _advisories_update(options)
    rows = show.advisory_rows()
    return _print_json(rows) if options.json else print(show.advisories_text(rows))


def _advisories_update(options: argparse.Namespace) -> None:
    from ..facts import advisories, csaf
    from . import show

    if not options.bulletins and not options.folder:
        raise BadInput(Diagnostic("", "no bulletin is given", "name CSAF files, or --from FOLDER"))
    found = csaf.updates(csaf.read(options.bulletins, options.folder))
    csaf.write(found, options.output or advisories.folder())
    print(show.advisory_updates(found))


def _release(options: argparse.Namespace) -> None:
    _release_list(options) if options.action == "list" else _release_import(options)


def _release_list(options: argparse.Namespace) -> None:
    from ..facts import release
    from . import show

    rows = show.release_rows([release.load(name) for name in [*release.known(), *options.tables]])
    _print_json(rows) if options.json else print(show.releases_table(rows))


def _release_import(options: argparse.Namespace) -> None:
    from ..facts import release, release_import

    if options.output.suffix != ".json":
        raise BadInput(Diagnostic(str(options.output), "is no .json file", "name the table .json"))
    like = release.load(options.like)
    if options.manifest:
        table = release_import.from_manifest(options.manifest, options.name, like)
    else:
        table = release_import.from_installed(options.from_installed, options.name, like)
    release_import.write(table, options.output)
    imported = release.load(str(options.output))
    options_given, flags = len(imported.top_level), len(imported.serve_flags)
    print(f"{options.output}: {options_given} options at the top, {flags} flags")
    for part, name in imported.carried_from.items():
        print(f"carried from {name}: {part}", file=sys.stderr)


def _miniature(options: argparse.Namespace) -> None:
    from ..facts import checkpoint
    from ..miniature import checkpoint as miniature

    facts, folder = checkpoint.gather(options.checkpoint), options.output
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(
                Diagnostic(str(folder), "exists and is not empty", "choose another folder")
            )
        folder.mkdir(parents=True, exist_ok=True)
        miniature.write(facts, folder, options.seed)
    except OSError as fault:
        what = f"cannot be written: {fault.strerror}"
        raise BadInput(Diagnostic(str(folder), what, "choose another folder")) from None
    print(f"{folder}: {facts.architecture.name}, {facts.precision}, random weights")


def _warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    for row in warnings:
        warning = Diagnostic(row["where"], row["what"], row["remedy"])
        print(f"warning: {warning}", file=sys.stderr)


VERBS: dict[Callable[[argparse.Namespace], None], str] = {
    _presets: "list the presets with their published figures",
    _inspect: "show the facts of a checkpoint; weights are not read",
    _plan: "show decisions with reasons, and the memory budget",
    _render: "write the bundle of a deployment",
    _check: "check option files, Triton models, deployments, bundles, scripts",
    _explain: "say why a value of a bundle is what it is",
    _diff: "show what changed between two bundles",
    _verify: "check every byte of a bundle, its lists and its signature",
    _sign: "sign a bundle with an SSH key",
    _advisories: "list known vulnerabilities, or take in newer bulletins",
    _release: "list the option tables of releases, or import one",
    _miniature: "write a tiny checkpoint of the same architecture",
}
