"""`trtllm-serve`: the flags of the release and its option file become one running server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from builder.diagnostics import Diagnostic
from builder.documents import load_yaml, read_text
from builder.errors import BadInput, ToolkitError
from builder.facts.release import Flag, Release

from .. import options
from ..llmapi.llm_utils import update_llm_args_with_extra_dict
from ..logger import announce, configure, logger
from . import disaggregated
from .listener import bind, run

_SERVER_FLAGS = frozenset({"model", "host", "port", "log_level", "extra_llm_api_options"})


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 after a stop by signal, 1 for a fault, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    release = options.release()
    if given and given[0] in release.subcommands:
        if given[0] == disaggregated.COMMAND:
            return disaggregated.main(given[1:])
        only = f"serve and {disaggregated.COMMAND}"
        print(f"trtllm-serve {given[0]}: the reference engine has only {only}", file=sys.stderr)
        return 2
    typed = vars(_parser(release).parse_args(given[1:] if given[:1] == ["serve"] else given))
    flags = {flag.name: flag.default for flag in release.serve_flags} | typed
    try:
        return _serve(release, flags, typed)
    except ToolkitError as fault:
        for problem in fault.diagnostics:
            print(f"trtllm-serve: {problem}", file=sys.stderr)
    except OSError as fault:
        print(f"trtllm-serve: {fault}", file=sys.stderr)
    return 1


def _parser(release: Release) -> argparse.ArgumentParser:
    """The release's flags; a flag that is not typed leaves no trace in the result."""
    parser = argparse.ArgumentParser(
        prog="trtllm-serve",
        description="The reference engine of the deployment toolkit, not TensorRT-LLM.",
        allow_abbrev=False,
    )
    for flag in release.serve_flags:
        if flag.positional:
            parser.add_argument(flag.name, metavar=flag.name.upper())
        else:
            parser.add_argument(
                *flag.spellings, dest=flag.name, default=argparse.SUPPRESS, **_conversion(flag)
            )
    return parser


def _conversion(flag: Flag) -> dict[str, Any]:
    if flag.type == "flag":
        return {"action": "store_true"}
    kinds: dict[str, Any] = {"int": int, "float": float, "json": json.loads}
    conversion: dict[str, Any] = {"type": kinds.get(flag.type, str)}
    if flag.values:
        conversion["choices"] = flag.values
    if flag.multiple:
        conversion["action"] = "append"
    return conversion


def engine_options(
    release: Release, flags: Mapping[str, Any], typed: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine's options from all flags, the typed ones and the option file.

    The release's table says whether the file or a typed flag wins.
    """
    file = flags.get("extra_llm_api_options")
    from_file = _read_options(Path(file)) if file else {}
    merged = update_llm_args_with_extra_dict(_as_options(release, flags), from_file, file)
    if release.precedence.winner == "cli_when_typed":
        for key, value in _as_options(release, typed).items():
            nested = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
            merged[key] = nested
    return merged


def _as_options(release: Release, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that name an engine option, each at its place."""
    placed: dict[str, Any] = {}
    for flag in release.serve_flags:
        head, _, leaf = (flag.yaml_path or flag.name).partition(".")
        value = flags.get(flag.name)
        if value is None or head not in release.top_level:
            continue
        if leaf:
            placed.setdefault(head, {})[leaf] = value
        else:
            placed[head] = value
    return placed


def _read_options(path: Path) -> dict[str, Any]:
    try:
        document = load_yaml(read_text(path))
    except yaml.YAMLError as fault:
        raise BadInput(Diagnostic(str(path), f"is not YAML: {fault}", "correct the file")) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadInput(Diagnostic(str(path), "is no mapping of options", "write key: value lines"))
    return document


def _serve(release: Release, flags: Mapping[str, Any], typed: Mapping[str, Any]) -> int:
    configure(flags["log_level"])
    announce()
    engine = engine_options(release, flags, typed)
    options.check(engine)
    with bind(flags["host"] or "localhost", int(flags["port"] or 8000)) as listener:
        from ..llmapi.llm import LLM
        from ..server import Server

        _report_idle(release, typed, engine)
        with LLM(**engine) as llm:
            template = flags.get("chat_template")
            server = Server(llm, flags["model"], _template(template) if template else None)
            run(server.app, listener)
    return 0


def _report_idle(release: Release, typed: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
    idle = sorted(set(typed) - set(engine) - _SERVER_FLAGS - {"chat_template"})
    places = {flag.name for flag in release.serve_flags if flag.yaml_path}
    if idle := [name for name in idle if name not in places]:
        logger.info("accepted, but not applicable on this machine: %s", ", ".join(idle))


def _template(given: str) -> str:
    """A chat template, given as a file or as its text."""
    path = Path(given)
    return read_text(path) if len(given) < 4096 and path.is_file() else given
