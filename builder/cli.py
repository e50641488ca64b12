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

    sub = verb("check", _check, "check option files, Triton models, deployments, bundles, scripts")
    sub.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or a folder")
    sub.add_argument(
        "--release",
        action="append",
        default=[],
        help="the engine release; given twice, what is right for one only is explained",
    )
    sub.add_argument("--role", choices=("agg", "prefill", "decode"), help="what the server does")
    sub.add_argument("--gpu", help="the kind of GPU, where the files do not say it")
    _add_json(sub)

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

    sub = verb("release", _release_list, "list the option tables of releases, or import one")
    _add_release(sub)

    sub = verb("miniature", _miniature, "write a tiny checkpoint of the same architecture")
    sub.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder")
    sub.add_argument("--seed", type=int, default=0, help="another seed gives other weights")
    return parser


def _add_release(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    text = "list the tables that ship, and tables from files"
    sub = actions.add_parser("list", help=text, description=text)
    sub.add_argument("tables", nargs="*", metavar="TABLE.json", help="imported tables")
    sub.set_defaults(run=_release_list)
    _add_json(sub)

    text = "write the table of a release from an engine or from its manifest"
    sub = actions.add_parser("import", help=text, description=text)
    source = sub.add_mutually_exclusive_group()
    source.add_argument(
        "--from-installed",
        nargs="?",
        default=sys.executable,
        const=sys.executable,
        metavar="PYTHON",
        help="a Python that has tensorrt_llm (default: this one)",
    )
    source.add_argument("--manifest", type=Path, help="llm_args_golden_manifest.json of a release")
    sub.add_argument("--name", required=True, help="the name of the release")
    sub.add_argument("--like", required=True, help="the release to carry over from what is unknown")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    sub.set_defaults(run=_release_import)


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
    print(f"{bundle.folder}\n{files} files, digest {bundle.digest}")


def _check(options: argparse.Namespace) -> None:
    from . import check, show

    def planner(path: Path, overrides: Sequence[str]) -> Sequence[Problem]:
        from . import pipeline  # planning is needed for deployment files only

        return pipeline.deployment_problems(path, overrides)

    request = check.Request(tuple(dict.fromkeys(options.release)), options.role, options.gpu)
    report = check.check(options.paths, request, planner)
    _print_json(report.document()) if options.json else print(show.findings(report))
    sys.stdout.flush()
    if report.errors:
        raise BadInput(())  # the findings have been printed


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


def _release_list(options: argparse.Namespace) -> None:
    from . import release, show

    rows = show.release_rows([release.load(name) for name in [*release.known(), *options.tables]])
    _print_json(rows) if options.json else print(show.releases_table(rows))


def _release_import(options: argparse.Namespace) -> None:
    from . import release, release_import

    if options.output.suffix != ".json":
        raise BadInput(Problem(str(options.output), "is no .json file", "name the table .json"))
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
