"""The CPU build of an engine, in an environment that `launch/setup_engine.sh` makes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from builder import miniature
from builder.documents import load_yaml_mapping
from builder.errors import BadFacts, BadInput
from builder.facts import checkpoint as checkpoints
from builder.facts import release as releases
from builder.facts.checkpoint import Checkpoint
from builder.facts.engines import CpuBuild, Engine

# Names the folder of the environments, each in one by its engine's name.
ENVIRONMENTS = "ENGINE_ENVIRONMENTS"
OWN_ENVIRONMENTS = Path(__file__).parent.parent / ".engines"
# The last file that the setup writes: what is installed.
COMPLETE = "complete"
CHECKS = Path(__file__).parent / "cpu_builds"
CHECK_TIMEOUT_S = 300.0


def folder(engine: Engine) -> Path | None:
    """The environment; `None` if it is missing, incomplete or of another release."""
    if engine.cpu_build is None:
        return None
    place = Path(os.environ.get(ENVIRONMENTS) or OWN_ENVIRONMENTS) / engine.name
    try:
        found = (place / COMPLETE).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return place.absolute() if found == engine.cpu_build.requirement else None


def write_program(engine: Engine, place: Path) -> Path:
    """A folder with the engine's command, which runs the CPU build with the options that it needs.

    They follow those of the deployment, and the last one holds.
    """
    environment, build = folder(engine), engine.cpu_build
    assert environment and build, "it was chosen because it is there"
    program, subcommand = build.program
    place.mkdir(parents=True, exist_ok=True)
    options = shlex.join(build.options)
    (place / program).write_text(
        "#!/bin/sh\n"
        f"# {program} {subcommand}, as {build.requirement} of {environment}\n"
        "shift\n"
        f'case ${{1:-}} in -* | "") ;; *) set -- {build.model_flag} "$@" ;; esac\n'
        f"exec {shlex.quote(str(environment / 'bin' / 'python'))} -m {build.runs_as} "
        f'"$@" {options}\n'
    )
    (place / program).chmod(0o755)
    return place


def serves(build: CpuBuild, checkpoint: Checkpoint) -> bool:
    return checkpoint.architecture.name in build.architectures


def write_miniature(build: CpuBuild, checkpoint: Checkpoint, place: Path) -> None:
    """A miniature in BF16, whose heads are of a size that the build has kernels for."""
    plain = miniature.unquantized(checkpoint)
    miniature.write(plain, place, head_size=min(build.head_sizes))


def refusal(engine: Engine, checkpoint: Checkpoint, options: Path) -> str | None:
    """What the engine's own classes say against an option file for this model, if anything."""
    (words,) = refusals(engine, [(checkpoint, options)])
    return words


def refusals(engine: Engine, asked: Sequence[tuple[Checkpoint, Path]]) -> list[str | None]:
    """The same for several, in one process of the engine's.

    They read the model's own configuration, not a miniature's: its heads must divide by the ranks.
    """
    environment, build = folder(engine), engine.cpu_build
    assert environment and build, "it was chosen because it is there"
    with tempfile.TemporaryDirectory(prefix="launch-") as name:
        commands: list[list[str] | dict[str, Any]] = []
        for number, (checkpoint, file) in enumerate(asked):
            place = Path(name) / str(number)
            model = _write_configuration(checkpoint, place / "model")
            options = _with_draft(file, engine, place)
            if file.suffix == ".json":  # of a server that hands them on by name
                commands.append({**options, "model": str(model)})
                continue
            given = place / "config.yaml"
            given.write_text(json.dumps(options), encoding="utf-8")
            commands.append([*build.program[1:], str(model), "--config", str(given)])
        check = CHECKS / f"{engine.name}_options.py"
        done = subprocess.run(
            [str(environment / "bin" / "python"), str(check)],
            env={**os.environ, **build.variables},
            input=json.dumps(commands),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CHECK_TIMEOUT_S * len(asked),
            check=False,
        )
    said = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        return ["\n".join(said[-3:])] * len(asked)
    answers: list[str | None] = json.loads(said[-1])
    return answers


def _write_configuration(checkpoint: Checkpoint, place: Path) -> Path:
    """A folder with what is read of a model without its weights."""
    place.mkdir(parents=True)
    miniature.write_tokenizer(place)
    config = json.dumps(dict(checkpoint.config))
    (place / "config.json").write_text(config, encoding="utf-8")
    return place


def _with_draft(file: Path, engine: Engine, place: Path) -> dict[str, Any]:
    """The options of a file; a known draft model is replaced by its folder."""
    options = load_yaml_mapping(file)
    *above, last = releases.of_engine(engine)[-1].option_path("draft_model").split(".")
    group = options
    for key in above:
        group = group.get(key) or {}
    if name := group.get(last):
        with suppress(BadFacts, BadInput):
            group[last] = str(_write_configuration(checkpoints.gather(name), place / "draft"))
    return options
