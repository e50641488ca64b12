"""What sbatch refuses, `builder check` has refused first; and it refuses nothing that sbatch takes.

Every directive of rendered scripts is broken in every way of a list, and both are asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.diagnostics import Diagnostic
from builder.lint import CheckOptions, check
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster

SITE: dict[str, Any] = {
    "name": "test",
    "gpu_request": "gpus_per_node",
    "container": {"runtime": "none"},
    "mpi": "pmi2",
    "exclusive": True,
    "toolkit": "python3",
}
SHARED = {
    "gpu_request": "gres",
    "exclusive": False,
    "cpus_per_node": 16,
    "memory_gib_per_node": 8,
    "partition": "batch",
    "sbatch": ["--mail-type=FAIL"],
}
R1 = yaml.safe_load((deployment.PRESETS / "deepseek-r1-0528-nvfp4-gb200.yaml").read_text())
PREFILL = {**R1, "name": "prefill", "role": "prefill", "targets": ["trtllm_serve"]}
TWO_SIDES = {**R1, "role": "decode", "hardware": {"gpu": "gb200", "num_gpus": 8}}

# What only the controller of the site can know, by what sbatch says of it.
OF_THE_SITE = {
    "Requested node configuration is not available": "how many nodes, processors and GPUs it has",
    "invalid partition specified": "its partitions",
    "Invalid generic resource": "its kinds of GPUs and other resources",
    "Invalid Trackable RESource": "its kinds of GPUs and other resources",
    "Invalid job array specification": "how long a job array may be",
    r'"\d+,\d+" is not a valid node count': "whether its Slurm is new enough for a list of them",
}
# Options of another Slurm or of a plug-in: of those that no Slurm has, check warns.
UNKNOWN = re.compile(r"unrecognized option '--([a-z-]+)")
# What check holds against a script that sbatch takes without seeing all of it.
UNSEEN = {"job-late-directive"}
# Taken by Slurm, and not what anybody means: the next directive as a value, no nodes, signal -1, a
# wrong value that a later line mends.
BY_CHANCE = {
    *("job-name no value", "output no value", "nodes zero", "signal negative", "with --array=a")
}

Break = Callable[[str, str, str], str]


def line(words: str) -> str:
    return f"#SBATCH {words}\n"


# From the name of an option, = or nothing, and its value, to what stands in its place.
OF_VALUES: Mapping[str, Break] = {
    "dropped": lambda name, equals, value: "",
    "twice": lambda name, equals, value: 2 * line(f"--{name}{equals}{value}"),
    "no value": lambda name, equals, value: line(f"--{name}"),
    "empty value": lambda name, equals, value: line(f"--{name}="),
    "two words": lambda name, equals, value: line(f"--{name} {value}"),
    "quoted": lambda name, equals, value: line(f'--{name}{equals}"{value}"'),
    "letter": lambda name, equals, value: line(f"--{name}=x"),
    "unit": lambda name, equals, value: line(f"--{name}={value}h"),
    "zero": lambda name, equals, value: line(f"--{name}=0"),
    "negative": lambda name, equals, value: line(f"--{name}=-1"),
    "fraction": lambda name, equals, value: line(f"--{name}=1.5"),
    "tenfold": lambda name, equals, value: line(f"--{name}={value}0"),
    "list": lambda name, equals, value: line(f"--{name}={value},{value}"),
    "range": lambda name, equals, value: line(f"--{name}=3-1"),
    "colons": lambda name, equals, value: line(f"--{name}={value}:99:99:99"),
    "last letter off": lambda name, equals, value: line(f"--{name[:-1]}{equals}{value}"),
    "letter too much": lambda name, equals, value: line(f"--{name}s{equals}{value}"),
}
# What a line is as such: tried on one directive of each form.
OF_LINES: Mapping[str, Break] = {
    "word behind": lambda name, equals, value: line(f"--{name}{equals}{value} more"),
    "comment behind": lambda name, equals, value: line(f"--{name}{equals}{value} # more"),
    "open quote": lambda name, equals, value: line(f'--{name}{equals}"{value}'),
    "variable": lambda name, equals, value: line(f"--{name}=$VALUE"),
    "no dashes": lambda name, equals, value: line(f"{name}{equals}{value}"),
    "one dash": lambda name, equals, value: line(f"-{name}{equals}{value}"),
    "three dashes": lambda name, equals, value: line(f"---{name}{equals}{value}"),
    "underscores": lambda name, equals, value: line(f"--{name.replace('-', '_')}{equals}{value}"),
    "capital": lambda name, equals, value: line(f"--{name.capitalize()}{equals}{value}"),
    "below a command": lambda name, equals, value: "true\n" + line(f"--{name}{equals}{value}"),
    "behind blanks": lambda name, equals, value: f"\n  # note\n#SBATCH\t--{name}{equals}{value}\n",
}
FORMS = ("output", "time", "signal", "exclusive", "no-requeue")
ADDED = [
    *("--segment=1", "--container-image=/i.sqsh", "--site-thing=1", "-z", "--mem-per-cpu=1G"),
    *("--exclusive=always", "--dependency=afterok:$JOB", "--dependency=afterok:1:2,singleton"),
    *("--array=a", "--array=0-3%2", "--nodes=4-2", "--nodes=1-4", "--ntasks=99", "--requeue=yes"),
    *("--open-mode=write", "--signal=B:USR1@99999", "--signal=USR3@60", "--mem=1.5G", "--mem=4Gi"),
    *("--time=90min", "--time=1:2:3:4", "--time=-1", "--time=2-", "--nodes=two", "-N", "-vv"),
    *("--cpus-per-gpu=0", "--ntasks-per-node=9999", "--job-name=a b", "-J 'a b'", "hetjobs"),
]
DIRECTIVE = re.compile(r"#SBATCH --([a-z-]+)(=?)(\S*)\n")


def broken(text: str, known: str = "") -> Iterator[tuple[str, str]]:
    """A script in every way broken, each with its name; of equal directives, the last one.

    Of a script that is like a `known` one only those are broken that the other does not have.
    """
    yield "nothing", text
    if not known:
        yield "no #!", text.partition("\n")[2]
        yield "blank before #!", f"\n{text}"
        for words in ADDED:
            yield f"with {words}", text.replace("#SBATCH", f"#SBATCH {words}\n#SBATCH", 1)
    for found in {row[0]: row for row in DIRECTIVE.finditer(text)}.values():
        if found[0] in known:
            continue
        for name, break_it in {**OF_VALUES, **(OF_LINES if found[1] in FORMS else {})}.items():
            new = break_it(*found.groups())
            yield f"{found[1]} {name}", text[: found.start()] + new + text[found.end() :]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Rendered scripts of unlike shapes."""
    folder = tmp_path_factory.mktemp("scripts")

    def render(
        name: str, request: Mapping[str, Any], site: Mapping[str, Any], **options: Any
    ) -> Path:
        (folder / "site.yaml").write_text(yaml.safe_dump({**SITE, **site}))
        targets = {"trtllm_serve": {}, "slurm": {"site": "site.yaml", **options}}
        file = folder / "request.yaml"
        file.write_text(yaml.safe_dump({**request, "targets": targets}))
        return pipeline.render(str(file), folder / name).folder / "slurm"

    sides = {"prefill": {"deployment": PREFILL, "servers": 2}}
    shapes = {
        "one node": render("one", R1, SHARED) / "serve.sbatch",
        "benchmark": folder / "one/slurm/bench.sbatch",
        "two sides": render("two", TWO_SIDES, {}, **sides) / "serve.sbatch",
    }
    return {name: path.read_text() for name, path in shapes.items()}


def findings(script: Path) -> list[Diagnostic]:
    found = check([script], CheckOptions(), pipeline.deployment_diagnostics).findings
    return [row for row in found if row.rule.startswith("job-")]


def is_the_sites(said: str, found: list[Diagnostic]) -> bool:
    """Whether nobody but the site can know why sbatch refused a script."""
    if option := UNKNOWN.search(said):
        warned = f"--{option[1]}" in {row.path for row in found if row.rule == "job-plugin-option"}
        return warned or option[1] in NEWER
    return any(re.search(words, said) for words in OF_THE_SITE)


NEWER = {"segment"} if clusters.why_not() or clusters.version() < (24, 5) else set()


@pytest.mark.parametrize("shape", ["one node", "benchmark", "two sides"])
def test_check_refuses_what_slurm_refuses_and_no_more(
    cluster: Cluster, scripts: dict[str, str], tmp_path: Path, shape: str
) -> None:
    script = tmp_path / "job.sbatch"
    missed, wrong = [], []
    known = "" if shape == "one node" else scripts["one node"]
    for name, text in broken(scripts[shape], known):
        script.write_text(text)
        done = cluster.run("sbatch", "--test-only", script, check=False)
        found = findings(script)
        errors = {row.rule for row in found if row.severity == "error"} - UNSEEN
        if done.returncode and not errors and not is_the_sites(done.stderr, found):
            missed.append((name, done.stderr))
        elif not done.returncode and errors and name not in BY_CHANCE:
            wrong.append((name, errors))
    assert (missed, wrong) == ([], []), f"{missed}\n{wrong}"
