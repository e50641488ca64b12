"""The deployment: reads it from a file or a preset and reports the line of every error."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from .command import Override
from .diagnostics import Diagnostic, nearest
from .documents import DATA, MAX_DEPTH, load_yaml_mapping, parse_yaml, value_at
from .errors import BadInput
from .facts import advisories, engines, hardware, servers
from .facts.hardware import MeasuredMemory
from .facts.images import REFERENCE_PATTERN
from .facts.model_names import served_name
from .facts.release import published
from .files import is_there, read_text
from .schema import After, Before, Bounds, Reference, default
from .schema import Strict as Strict

# Text that a variable, an argument or a file name can hold.
NoNul = Annotated[str, Bounds(pattern=r"^[^\x00]*$")]
Variable = Annotated[str, Bounds(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Values of variables are text; an integer without quotes is accepted.
NUMBERS_AS_TEXT = Before(lambda value: str(value) if type(value) is int else value)

# Variables that make a loader, a shell or an interpreter run code from outside the bundle.
_CODE = re.compile(
    r"PATH|LD_\w+|DYLD_\w+|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV|BASH_FUNC_.*|ENV|BASHOPTS|SHELLOPTS|IFS"
    r"|CDPATH|GLOBIGNORE|PS[0-4]|PROMPT_COMMAND|PYTHON(PATH|HOME|STARTUP|USERBASE|INSPECT|BREAKPOINT"
    r"|WARNINGS|EXECUTABLE|PLATLIBDIR|PYCACHEPREFIX)|PERL5(OPT|LIB|DB)|RUBY(OPT|LIB)|NODE_OPTIONS|JAVA_TOOL_OPTIONS"
    r"|BASH_LOADABLES_PATH|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|CC|CXX|NVCC_(PREPEND|APPEND)_FLAGS"
    r"|CUDA_INJECTION(32|64)_PATH|NSYS_\w*PATH|OPAL_PREFIX|UCX_MODULE_DIR|LOCPATH|SLURM_CONF"
    r"|(OMPI|PMIX|PRTE|OPAL)_MCA_(plm_\w+|\w+_agent|\w*component_path)|HYDRA_LAUNCHER(_EXEC)?"
    r"|GIT_SSH(_COMMAND)?|GIT_EXEC_PATH|(SSH|GIT|SUDO)_ASKPASS"
)


def refuse_code(value: dict[str, str]) -> dict[str, str]:
    """The variables. Raises `ValueError` for one that makes programs load other code."""
    if taken := sorted(name for name in value if _CODE.fullmatch(name)):
        raise ValueError(
            f"{taken[0]} decides which programs and libraries run; "
            "set it where the server runs, or in the image"
        )
    return value


PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
USUAL_PERCENTILE = "p95"

Objective = Literal["output_tokens_per_s_per_gpu", "cost", "latency"]
_Positive = Bounds(gt=0, exact=False)
Milliseconds = Annotated[float, _Positive]
Price = Annotated[float, _Positive]


class Slo(Strict):
    """Latency targets of requests at a percentile, by default the 95th.

    `itl_ms` limits the mean time between the tokens of a request, `e2e_ms` its total time.
    """

    other_names = MappingProxyType({"tpot_ms": "itl_ms", "tbt_ms": "itl_ms", "e2el_ms": "e2e_ms"})

    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    percentile: Literal["p50", "p90", "p95", "p99"] | None = None

    @property
    def share(self) -> float:
        """The share of requests that must meet the targets."""
        return PERCENTILES[self.percentile or USUAL_PERCENTILE]

    @property
    def limits_ms(self) -> dict[str, float]:
        """The targets that are set, by name."""
        found = {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "e2e_ms": self.e2e_ms}
        return {name: value for name, value in found.items() if value is not None}


FigureName = Annotated[str, Bounds(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


class Choice(Strict):
    """How `choose` or `tune` selected the values of a deployment.

    `settings` are the engine options that it decided, `reason` explains them, `source` names the
    measurements behind it. `estimate` has the interval of each figure, or the spread of the
    measured ones; `evidence` says which.
    """

    objective: Objective
    reason: Annotated[str, Bounds(min_length=1, max_length=4000)]
    source: Annotated[str, Bounds(min_length=1, max_length=1000)]
    settings: dict[str, Any]
    estimate: dict[FigureName, dict[Literal["low", "value", "high"], float]]
    evidence: Literal["estimated", "measured"] = "estimated"


def open_choices(data: dict[str, Any], file: str) -> dict[str, Diagnostic]:
    """What a deployment file leaves for `choose` to decide, by path."""
    left = {
        "hardware.gpu": (list, "names several GPUs"),
        "hardware.num_gpus": (dict, "gives a range"),
        "workload.request_rate": (object, "does not say how many requests run at once"),
    }
    remedy = f"run `python -m builder choose {file} -o FILE` first, and plan what it writes"
    return {
        path: Diagnostic(path, f"{what}: a choice is still open", remedy)
        for path, (kind, what) in left.items()
        if (given := value_at(data, path)) is not None and isinstance(given, kind)
    }


PRESETS = DATA / "presets"
_SET = "--set"
MEASURED = "measured"  # the field that --facts sets
MAX_CHARACTERS = 500_000  # of a deployment file or a site profile

# Far beyond every real machine, model and load: larger values are typing errors.
MAX_GPUS = 100_000
MAX_TOKENS = 100_000_000
MAX_REQUESTS = 1_000_000
MAX_DRAFT_TOKENS = 1_000
MAX_NUMBER = 2**53  # of an engine option; up to it, every reader of YAML and JSON is exact

ImageReference = Annotated[str, Bounds(pattern=REFERENCE_PATTERN, max_length=500)]
NumGpus = Annotated[int, Bounds(ge=1, le=MAX_GPUS)]
Tokens = Annotated[int, Bounds(ge=1, le=MAX_TOKENS)]


EngineName = Annotated[str, Reference(engines.names)]
ServerName = Annotated[str, Reference(servers.names)]
AdvisedProduct = Annotated[str, Reference(advisories.products)]
# A GPU under its name here; unknown ones are refused when their facts are read.
AnyGpu = Annotated[str, After(hardware.named)]
GpuName = Annotated[AnyGpu, Reference(hardware.known)]


class Hardware(Strict):
    other_names = MappingProxyType(
        dict.fromkeys(("gpus", "gpu_count", "count"), "num_gpus")
        | dict.fromkeys(("gpu_type", "gpu_name", "type"), "gpu")
    )
    gpu: AnyGpu
    num_gpus: NumGpus


class Engine(Strict):
    """An engine and its release; `assume_release` accepts an unknown release."""

    other_names = MappingProxyType({"version": "release", "tag": "release", "engine": "name"})
    name: EngineName = default(lambda: engines.default().name)
    release: Annotated[str, Before(published.spelled)]
    assume_release: Literal[True] | None = None

    @property
    def identity(self) -> dict[str, str]:
        return {"name": self.name, "release": self.release}


class Workload(Strict):
    """Input and output sequence length in tokens, and the number of concurrent requests."""

    other_names = MappingProxyType(
        dict.fromkeys(("input_len", "input_length", "input_tokens", "prompt_tokens"), "isl")
        | dict.fromkeys(("output_len", "output_length", "output_tokens", "max_tokens"), "osl")
        | dict.fromkeys(("max_concurrency", "conc", "num_users", "users"), "concurrency")
    )
    isl: Tokens
    osl: Tokens
    concurrency: Annotated[int, Bounds(ge=1, le=MAX_REQUESTS)]


class Draft(Strict):
    """A model that drafts tokens for the main model to verify.

    `checkpoint` is a folder or a hub name, on the server's machine; `tokens` are drafted per step.
    """

    checkpoint: Annotated[NoNul, Bounds(min_length=1)]
    tokens: Annotated[int, Bounds(ge=1, le=MAX_DRAFT_TOKENS)]
    method: Literal["eagle3", "draft_target"] = "eagle3"


class Accepted(Strict):
    """A version that is used despite known vulnerabilities, with a reason.

    `product` is one of the advisories' products.
    """

    product: AdvisedProduct
    version: Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=128)]
    reason: Annotated[str, Bounds(min_length=10, max_length=1000)]


class AcceptedWarning(Strict):
    """A plan warning that is accepted, with a reason, and no longer shown.

    `path` and `rule` select the warning; `rule` is optional. Known vulnerabilities have their own
    list.
    """

    path: Annotated[str, Bounds(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$", max_length=256)]
    rule: Annotated[str, Bounds(pattern=r"^[a-z][a-z0-9-]*$", max_length=64)] | None = None
    reason: Annotated[str, Bounds(min_length=10, max_length=1000)]

    def is_for(self, warning: Diagnostic) -> bool:
        own = warning.rule in (advisories.RULE, advisories.UNKNOWN_RULE)
        return not own and self.path == warning.where and self.rule in (None, warning.rule)


# What a folder and the last part of a hub name can be called.
ModelName = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=128)]


def _refuse_images_of_no_server(value: dict[str, str]) -> dict[str, str]:
    if unknown := sorted(value.keys() - {*servers.names()}):
        raise ValueError(f"{unknown[0]} is not a server; {nearest(unknown[0], servers.names())}")
    return value


def _refuse_huge_numbers(value: dict[str, Any]) -> dict[str, Any]:
    for path, number in _numbers(value):
        if abs(number) > MAX_NUMBER:
            raise ValueError(f"{path} is {number:.0e}; give at most 2^53")
    return value


def _options_by_target(value: object) -> object:
    """Targets as a mapping: a list of names gets empty options."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        if twice := [name for name in dict.fromkeys(value) if value.count(name) > 1]:
            raise ValueError(f"{', '.join(twice)} is named twice; keep one")
        return {name: {} for name in value}
    if isinstance(value, dict):
        return {name: {} if options is None else options for name, options in value.items()}
    return value


# Engine options that users often write at the top level.
_ENGINE_OPTIONS = (
    *("extra_llm_api_options", "llm_api_args", "tp", "ep"),
    *("tensor_parallel_size", "moe_expert_parallel_size"),
    *("max_batch_size", "max_num_tokens", "max_seq_len"),
    *("kv_cache_config", "cuda_graph_config", "moe_config", "speculative_config"),
)


class Deployment(Strict):
    """A deployment request.

    `checkpoint` is a folder, or a name whose facts ship. `targets` maps each target to its options;
    a file may also have a plain list of names. `role` is what the server does: everything, or one
    side of disaggregated serving. `instances` servers share the GPUs and the workload evenly.
    `engine_config` holds overrides of engine options, `environment` those of the engine's
    environment variables. `images` replaces the published container images of servers, best with a
    digest.

    `accepted_advisories` are versions used despite known vulnerabilities; `strict` also refuses
    versions whose vulnerabilities are unknown. `accepted_warnings` are no longer shown.
    `measured` is the memory of an earlier start, in a file also its path.
    `served_model_name` is the model name that clients use. `objective` is what `choose` optimizes
    within the `slo`; the price of a GPU hour may differ per GPU type. `choice` records the result.
    `notes` are for readers.
    """

    other_names = MappingProxyType(
        dict.fromkeys(("model", "model_path", "model_name", "model_id"), "checkpoint")
        | dict.fromkeys(("gpu", "gpus", "num_gpus"), "hardware")
        | dict.fromkeys(("isl", "osl", "concurrency"), "workload")
        | dict.fromkeys(("env", "envs"), "environment")
        | dict.fromkeys(_ENGINE_OPTIONS, "engine_config")
        | {
            "release": "engine",
            "target": "targets",
            "image": "images",
            "replicas": "instances",
            "speculative_model": "draft",
        }
    )
    examples = MappingProxyType(
        {
            "name": "name: my-deployment",
            "checkpoint": "checkpoint: a folder, or a hub name",
            "targets": "targets: [trtllm_serve, triton]",
            "hardware": "hardware: {gpu: gb200, num_gpus: 4}",
            "engine": "engine: {release: 1.2.1}",
            "workload": "workload: {isl: 800, osl: 1600, concurrency: 64}",
        }
    )

    name: Annotated[str, Bounds(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=63)]
    checkpoint: Annotated[NoNul, Bounds(min_length=1)]
    hardware: Hardware
    engine: Engine
    workload: Workload
    slo: Slo | None = None
    objective: Objective | None = None
    price_per_gpu_hour_usd: Price | dict[GpuName, Price] | None = None
    choice: Choice | None = None
    targets: Annotated[dict[str, dict[str, Any]], Before(_options_by_target), Bounds(min_length=1)]
    role: Literal["agg", "prefill", "decode"] = "agg"
    instances: NumGpus = 1
    draft: Draft | None = None
    served_model_name: ModelName | None = None
    engine_config: Annotated[dict[str, Any], After(_refuse_huge_numbers)] = default(dict)
    environment: Annotated[
        dict[Variable, Annotated[NoNul, NUMBERS_AS_TEXT]], After(refuse_code)
    ] = default(dict)
    images: Annotated[dict[str, ImageReference], After(_refuse_images_of_no_server)] = default(dict)
    accepted_advisories: list[Accepted] = default(list)
    accepted_warnings: list[AcceptedWarning] | None = None
    strict: Literal[True] | None = None
    measured: MeasuredMemory | None = None
    notes: list[str] = default(list)

    @property
    def model_name(self) -> str:
        """The model name for clients: `served_model_name`, or the last part of the checkpoint's
        name."""
        return self.served_model_name or served_name(self.checkpoint)


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Every integer inside a value, with its dotted path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int):
        yield path, value


@dataclass
class Document:
    """A deployment file as written: plain data, and the line of every key.

    A checkpoint path in it is relative to `folder`, which contains the file. `overridden` are the
    paths set on the command line, each with the option used.
    """

    name: str
    data: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    folder: Path = Path()
    overridden: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> Any:
        """The value at a dotted path, or `None`."""
        return value_at(self.data, path)

    def home(self, path: str) -> Path:
        """The folder that a field's path is relative to: the file's, or the current one for
        `--set`."""
        given = (path == item or path.startswith(f"{item}.") for item in self.overridden)
        return Path() if any(given) else self.folder

    def locate_all(self, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
        """The errors in file order without repetitions, with file and line before the path."""
        ordered = sorted(
            dict.fromkeys(diagnostics), key=lambda diagnostic: self._line(diagnostic.where)
        )
        return [replace(row, where=self._place(row.where), path=row.where) for row in ordered]

    def _line(self, path: str) -> int:
        """The line of a path, or of the nearest mapping above it; 0 if neither has one."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path, 0)

    def _place(self, path: str) -> str:
        for item, option in self.overridden.items():
            made = path not in self.lines and item.startswith(f"{path}.")
            if path == item or path.startswith(f"{item}.") or made:
                if option == _SET:
                    return f"{option} {path}"
                return option if path == item else f"{option}: {path}"
        line = self._line(path)
        return ": ".join(filter(None, (f"{self.name}:{line}" if line else self.name, path)))

    def validate(
        self, known: Sequence[str], options_type: Callable[[str], type[Strict]]
    ) -> tuple[Deployment | None, list[Diagnostic]]:
        """The deployment with all target options filled in, or the errors of the file.

        `known` are the existing targets; `options_type` returns the options class of each.
        """
        deployment, diagnostics = Deployment.read(self.data)
        if left := open_choices(self.data, self.name):
            about = (*left, *(("workload.concurrency",) if "workload.request_rate" in left else ()))
            diagnostics = [row for row in diagnostics if not row.where.startswith(about)]
            diagnostics += left.values()
        targets: dict[str, dict[str, Any]] = {}
        for name, given in self.targets().items():
            if name not in known:
                remedy = nearest(name, known)
                diagnostics.append(Diagnostic(f"targets.{name}", "is not a target", remedy))
                continue
            options, found = options_type(name).read(given, f"targets.{name}")
            diagnostics += found
            if options:
                targets[name] = options.data()
        if deployment is None or diagnostics:
            return None, diagnostics
        return deployment.replaced(targets=targets), []

    def targets(self) -> dict[str, dict[str, Any]]:
        given = self.data.get("targets")
        if isinstance(given, list):
            return {name: {} for name in given if isinstance(name, str)}
        if isinstance(given, dict):
            return {str(name): options or {} for name, options in given.items()}
        return {}


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read(
    reference: str, overrides: Iterable[str] = (), more_targets: Sequence[str] = ()
) -> Document:
    """A deployment file or a preset, with targets added and `path=value` overrides applied.

    Raises `BadInput` if it cannot be read or is not a YAML mapping.
    """
    path = Path(reference)
    if reference in preset_names():
        path, name = PRESETS / f"{reference}.yaml", f"preset {reference}"
    elif path.suffix in (".yaml", ".yml", ".json") or is_there(path):
        name = reference
    else:
        what = f"{reference} is neither a file nor a preset"
        raise BadInput(Diagnostic("", what, nearest(reference, preset_names())))
    document = replace(parse(read_text(path), name), folder=path.parent)
    if more_targets:
        document = _with_targets(document, more_targets)
    return _with_measurements(_with_overrides(document, overrides))


def _with_measurements(document: Document) -> Document:
    """The document with the contents of the file of measurements that it names."""
    given = document.get(MEASURED)
    if not isinstance(given, str):
        return document
    contents = load_yaml_mapping(document.home(MEASURED) / given)
    return replace(document, data={**document.data, MEASURED: dict(contents)})


def parse(text: str, name: str) -> Document:
    """A deployment file's text as a document. Raises `BadInput`."""
    document = parse_yaml(text, name)
    if document.diagnostics:
        raise BadInput(document.diagnostics)
    if len(text) > MAX_CHARACTERS:
        what = f"{len(text)} characters are too many"
        raise BadInput(Diagnostic(name, what, f"up to {MAX_CHARACTERS} are read"))
    if not isinstance(document.data, dict):
        kind = "empty" if document.data is None else f"a {type(document.data).__name__}"
        raise BadInput(
            Diagnostic(name, f"is {kind}", "a mapping is expected: name, checkpoint, ...")
        )
    return Document(name, document.data, document.lines)


def _with_targets(document: Document, names: Sequence[str]) -> Document:
    """The document with missing targets added, without options."""
    named = document.targets()
    targets = named | {name: None for name in names if name not in named}
    added = {f"targets.{name}": f"--target {name}" for name in names if name not in named}
    data = {**document.data, "targets": targets}
    return replace(document, data=data, overridden={**document.overridden, **added})


def _with_overrides(document: Document, overrides: Iterable[str]) -> Document:
    data, paths = copy.deepcopy(document.data), dict(document.overridden)
    for item in overrides:
        path, equals, text = item.partition("=")
        option = item.option if isinstance(item, Override) else _SET
        where = f"{_SET} {path.split(maxsplit=1)[0] if path.strip() else ''}".strip()
        where = where if option == _SET else option
        *parents, last = path.split(".")
        if not equals or not all((*parents, last)):
            raise BadInput(Diagnostic(where, "is not an override", "write path=value"))
        if len(parents) > MAX_DEPTH:
            raise BadInput(Diagnostic("--set", "is nested too deeply", "check the path"))
        place = data
        for key in parents:
            inner = place.get(key)
            if isinstance(inner, list) and all(isinstance(name, str) for name in inner):
                inner = dict.fromkeys(inner)  # a list of names: a mapping without options
            place[key] = {} if inner is None else inner
            if not isinstance(place[key], dict):
                raise BadInput(Diagnostic(where, f"{key} is not a mapping", "check the path"))
            place = place[key]
        value = parse_yaml(text, where)
        if value.diagnostics:
            raise BadInput(value.diagnostics)
        paths[path] = option
        if parents == ["targets"] and value.data is None:  # in a file, null is no options
            if last not in place:
                raise BadInput(Diagnostic(where, "is not a target", nearest(last, place)))
            del place[last]
            continue
        place[last] = value.data
    return replace(document, data=data, overridden=paths)
