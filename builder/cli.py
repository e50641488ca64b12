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

from . import __version__, command
from .errors import BadInput, Problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    options = _parser().parse_args(arguments)
    return command.run(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m builder",
        description="From a checkpoint, GPUs and a workload to a TensorRT-LLM deployment.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(
        name: str, run: Callable[[argparse.Namespace], None], text: str
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=run)
        return sub

    sub = verb("presets", _presets, "list the presets with their published figures")
    _add_json(sub)

    sub = verb("inspect", _inspect, "show the facts of a checkpoint; weights are not read")
    sub.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    _add_json(sub)

    sub = verb("plan", _plan, "show decisions with reasons, and the memory budget")
    _add_deployment(sub)
    _add_json(sub)

    sub = verb("render", _render, "write the bundle of a deployment")
    _add_deployment(sub)
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder")
    sub.add_argument("--force", action="store_true", help="replace whatever DIR holds")

    sub = verb("explain", _explain, "say why a value of a bundle is what it is")
    sub.add_argument("bundle", type=Path)
    sub.add_argument("path", nargs="?", help="an option path; all of them if left out")
    _add_json(sub)

    sub = verb("diff", _diff, "show what changed between two bundles")
    sub.add_argument("old", type=Path)
    sub.add_argument("new", type=Path)
    _add_json(sub)

    sub = verb("verify", _verify, "check every file of a bundle against its manifest")
    sub.add_argument("bundle", type=Path)

    sub = verb("miniature", _miniature, "write a tiny checkpoint of the same architecture")
    sub.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder")
    sub.add_argument("--seed", type=int, default=0, help="another seed gives other weights")
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("deployment", help="a deployment file, or the name of a preset")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value of the deployment, e.g. workload.concurrency=32",
    )


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _presets(options: argparse.Namespace) -> None:
    from . import show

    rows = show.preset_rows()
    _print_json(rows) if options.json else print(show.presets_table(rows))


def _inspect(options: argparse.Namespace) -> None:
    from . import checkpoint, show

    facts = checkpoint.gather(options.checkpoint)
    _print_json(show.checkpoint_document(facts)) if options.json else print(show.checkpoint(facts))


def _plan(options: argparse.Namespace) -> None:
    from . import pipeline, show

    document = pipeline.manifest_facts(pipeline.plan(options.deployment, options.set))
    if options.json:
        keys = ("decisions", "differences", "warnings", "memory", "published")
        _print_json({key: document[key] for key in keys})
    else:
        print(show.plan(document))
    _warn(document["warnings"])


def _render(options: argparse.Namespace) -> None:
    from . import pipeline

    bundle = pipeline.render(options.deployment, options.output, options.set, options.force)
    _warn(bundle.manifest["warnings"])
    files = len(bundle.manifest["files"])
    print(f"{bundle.folder}: {files} files, digest {bundle.digest}")


def _explain(options: argparse.Namespace) -> None:
    from . import bundle, show

    manifest = bundle.read(options.bundle).manifest
    rows = show.matching_decisions(manifest, options.path)
    _print_json(rows) if options.json else print(show.decisions(rows))


def _diff(options: argparse.Namespace) -> None:
    from . import bundle, diff

    found = diff.compare(bundle.read(options.old), bundle.read(options.new))
    _print_json(diff.document(found)) if options.json else print(diff.text(found))


def _verify(options: argparse.Namespace) -> None:
    from . import bundle

    found = bundle.read(options.bundle)
    print(f"{found.folder}: {len(found.manifest['files'])} files match, digest {found.digest}")


def _miniature(options: argparse.Namespace) -> None:
    from . import checkpoint, miniature

    facts, folder = checkpoint.gather(options.checkpoint), options.output
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(Problem(str(folder), "exists and is not empty", "choose another folder"))
        folder.mkdir(parents=True, exist_ok=True)
        miniature.write(facts, folder, options.seed)
    except OSError as fault:
        what = f"cannot be written: {fault.strerror}"
        raise BadInput(Problem(str(folder), what, "choose another folder")) from None
    print(f"{folder}: {facts.architecture.name}, {facts.precision}, random weights")


def _warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    for row in warnings:
        print(f"warning: {Problem(**row)}", file=sys.stderr)
