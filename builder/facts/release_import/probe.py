"""Runs alone in an engine's own interpreter and writes the engine's description to `argv[1]`.

It must work with any Python and pydantic version of the engine, and must not import this package.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema


class Schema(GenerateJsonSchema):
    """A JSON schema in which a type without a schema is marked instead of refused."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Any:
        return {"python_object": True}


def collect_aliases(annotation: Any, found: dict[str, dict[str, list[str]]]) -> None:
    """Adds class -> field -> its other names, for every option class of an annotation."""
    for inner in get_args(annotation):
        collect_aliases(inner, found)
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        return
    if annotation.__name__ in found:
        return
    names = found[annotation.__name__] = {}
    for name, field in annotation.model_fields.items():
        given = field.validation_alias or field.alias
        choices = given.choices if isinstance(given, AliasChoices) else [given]
        names[name] = [one for one in choices if isinstance(one, str) and one != name]
        collect_aliases(field.annotation, found)


def flag(parameter: click.Parameter) -> dict[str, Any]:
    kind, default = parameter.type, parameter.default
    return {
        "name": parameter.name,
        "spellings": list(parameter.opts),
        "positional": isinstance(parameter, click.Argument),
        "type": "flag" if getattr(parameter, "is_flag", False) else kind.name,
        "values": [str(getattr(one, "value", one)) for one in getattr(kind, "choices", ())],
        "default": default if isinstance(default, (str, int, float)) else None,
        "multiple": bool(getattr(parameter, "multiple", False)),
    }


def main() -> None:
    options = import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs
    server = import_module("tensorrt_llm.commands.serve").main
    aliases: dict[str, dict[str, list[str]]] = {}
    collect_aliases(options, aliases)
    answer = {
        "version": import_module("tensorrt_llm").__version__,
        "schema": options.model_json_schema(by_alias=False, schema_generator=Schema),
        "aliases": aliases,
        "commands": {
            name: [flag(parameter) for parameter in command.params]
            for name, command in server.commands.items()
        },
    }
    Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
