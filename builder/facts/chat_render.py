"""Renders a chat template in a separate process: `python chat_render.py < REQUEST.json`.

A template is a program of whoever made the checkpoint. It runs in Jinja's sandbox, and this process
bounds its own memory and processor time, because a sandbox bounds neither.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any, NoReturn

MEMORY_BYTES = 256 << 20
CPU_S = 1  # Jinja's import takes a tenth of it
MOST_CHARACTERS = 4096  # of what an assistant writes in one turn


def main() -> None:
    """Reads `template`, `variables`, `user`, `answers` and `called`; prints the turn as JSON.

    The first of `answers` that the template accepts counts, if it then writes the word `called`.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    given = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    variables = {
        **given["variables"],
        "raise_exception": _refuse,
        "strftime_now": lambda form: form,
    }
    faults = []
    for answer in given["answers"]:
        try:
            template = environment.from_string(given["template"])
            shown = {**variables, "messages": [given["user"]]}
            asked = template.render(shown)
            prompt = template.render(shown, add_generation_prompt=True)
            whole = template.render(variables, messages=[given["user"], answer])
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            faults.append(str(error)[:200])
            continue
        if not (prompt.startswith(asked) and whole.startswith(asked)):
            faults.append("its turns cannot be separated")
        elif given["called"] in (turn := whole[len(asked) :][:MOST_CHARACTERS]):
            print(json.dumps({"prompt_end": prompt[len(asked) :][:MOST_CHARACTERS], "turn": turn}))
            return
    print(json.dumps({"fault": next(iter(faults), "it writes no tool call")}))


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As the libraries that serve models write it: without escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


if __name__ == "__main__":
    main()
