"""`trtllm-serve`: the flags of the release and its option file become one running server."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import yaml

from builder.diagnostics import Diagnostic
from builder.documents import load_yaml
from builder.errors import BadInput, ToolkitError
from builder.facts.release import Flag, Release
from builder.files import read_text

from .. import options
from ..logger import announce, configure, logger

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..server import Surface

DISAGGREGATED = "disaggregated"
_SERVER_FLAGS = frozenset(
    {"model", "host", "port", "log_level", "extra_llm_api_options", "tool_parser"}
)
# How long running requests may take to end once the server gets a signal to stop.
GRACE_S = 30
KEEP_ALIVE_S = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 after a stop by signal, 1 for a fault, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    release = options.release()
    if given[:1] == [DISAGGREGATED]:
        from .disaggregated import NAME, parser

        router_flags = parser().parse_args(given[1:])
        return exit_code(NAME, lambda: _route(router_flags))
    if given and given[0] in release.subcommands and given[0] != "serve":
        only = f"serve and {DISAGGREGATED}"
        print(f"trtllm-serve {given[0]}: the reference engine has only {only}", file=sys.stderr)
        return 2
    typed = vars(_parser(release).parse_args(given[1:] if given[:1] == ["serve"] else given))
    flags = {flag.name: flag.default for flag in release.serve_flags} | typed
    return exit_code("trtllm-serve", lambda: _serve(release, flags, typed))


def exit_code(name: str, serve: Callable[[], None]) -> int:
    try:
        serve()
    except ToolkitError as fault:
        for problem in fault.diagnostics:
            print(f"{name}: {problem}", file=sys.stderr)
    except OSError as fault:
        print(f"{name}: {fault}", file=sys.stderr)
    else:
        return 0
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
                *flag.spellings, dest=flag.name, default=argparse.SUPPRESS, **conversion(flag)
            )
    return parser


def conversion(flag: Flag) -> dict[str, Any]:
    if flag.type == "flag":
        return {"action": "store_true"}
    kinds: dict[str, Any] = {"int": int, "float": float, "json": json.loads}
    found: dict[str, Any] = {"type": kinds.get(flag.type, str)}
    if flag.values:
        found["choices"] = flag.values
    if flag.multiple:
        found["action"] = "append"
    return found


def engine_options(
    release: Release, flags: Mapping[str, Any], typed: Mapping[str, Any]
) -> dict[str, Any]:
    """The engine's options from all flags, the typed ones and the option file.

    The release's table says whether the file or a typed flag wins.
    """
    file = flags.get("extra_llm_api_options")
    from_file = read_options(Path(file)) if file else {}
    merged = options.update_llm_args_with_extra_dict(_as_options(release, flags), from_file, file)
    if release.precedence == "cli_when_typed":
        for key, value in _as_options(release, typed).items():
            nested = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
            merged[key] = nested
    return merged


def _as_options(release: Release, flags: Mapping[str, Any]) -> dict[str, Any]:
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


def read_options(path: Path) -> dict[str, Any]:
    try:
        document = load_yaml(read_text(path))
    except yaml.YAMLError as fault:
        raise BadInput(Diagnostic(str(path), f"is not YAML: {fault}", "correct the file")) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadInput(
            Diagnostic(str(path), "is not a mapping of options", "write key: value lines")
        )
    return document


def _serve(release: Release, flags: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    configure(flags["log_level"])
    announce()
    engine = engine_options(release, flags, typed)
    options.check(engine)
    _report_idle(release, typed, engine)

    def surface() -> Surface:
        from ..server import own_surface

        return own_surface(flags.get("tool_parser"), engine.get("reasoning_parser"))

    answer(flags, engine, surface)


def answer(
    flags: Mapping[str, Any], engine: Mapping[str, Any], surface: Callable[[], Surface]
) -> None:
    """Serve until a signal. A port that is taken fails before the slow imports."""
    with bind(flags.get("host") or "localhost", int(flags.get("port") or 8000)) as listener:
        from ..llmapi.llm import LLM
        from ..server import OpenAIServer

        template = flags.get("chat_template")
        template = read_template(template) if template else None
        with LLM(**engine) as llm:
            name = flags.get("served_model_name")
            server = OpenAIServer(llm, flags["model"], template, name, surface())
            run(server.app, listener)


def _route(flags: argparse.Namespace) -> None:
    from .disaggregated import SIDES, Router, read

    configure(flags.log_level)
    logger.info(
        "this is the router of the deployment toolkit's reference engine, not TensorRT-LLM: its "
        "servers hand over no KV cache, and the decode server computes the prompt once more"
    )
    document = read(flags.config_file)
    prefill, decode = (document[side]["urls"] for side in SIDES)
    with bind(document.get("hostname", "localhost"), document.get("port", 8000)) as listener:
        router = Router(prefill, decode, flags.request_timeout)
        router.wait(flags.server_start_timeout)
        run(router.app, listener)


def _report_idle(release: Release, typed: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
    idle = sorted(set(typed) - set(engine) - _SERVER_FLAGS - {"chat_template", "served_model_name"})
    places = {flag.name for flag in release.serve_flags if flag.yaml_path}
    if idle := [name for name in idle if name not in places]:
        logger.info("accepted, but not applicable on this machine: %s", ", ".join(idle))


def read_template(given: str) -> str:
    """A chat template, given as a file or as its text."""
    path = Path(given)
    return read_text(path) if len(given) < 4096 and path.is_file() else given


def bind(host: str, port: int) -> socket.socket:
    """A socket that is taken, but does not listen before the application is served."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as fault:
        listener.close()
        raise OSError(f"port {port} of {host}: {fault.strerror}") from None
    return listener


def run(app: FastAPI, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level=logger.level,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    # The server raises a signal that stopped it once more when it is done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stay)
    uvicorn.Server(config).run(sockets=[listener])


def _stay(number: int, frame: FrameType | None) -> None:
    logger.info("stopped by %s", signal.Signals(number).name)
