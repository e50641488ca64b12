"""The facts of a checkpoint: read from its folder, or shipped with the toolkit under its hub name.

Only configuration files and safetensors headers are read, never weights. The index file is not
trusted for tensors: DeepSeek's NVFP4 exports leave their scale tensors out of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from .. import schema
from ..diagnostics import Diagnostic, either, is_misspelling
from ..errors import BadFacts, BadInput
from ..files import is_folder, is_there, load_json_mapping
from . import checkpoint_files, data_file, model_names
from .architecture import NESTED, Architecture, Config, architectures
from .checkpoint_files import CARD, NO_FILES, CheckpointFile, Listing, Stored
from .model_facts import License, ModelFacts
from .model_names import shipped_file
from .quantization import (
    PLAIN_DTYPES,
    Quantization,
    TensorGroup,
    computed_groups,
    stored_groups,
)
from .quantization_config import read_quantization
from .release.support import named_by

QUANT_FILE = "hf_quant_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")


@dataclass(frozen=True)
class Checkpoint:
    """Facts of a checkpoint.

    `path` is its folder, or `None` where only shipped facts are known. `source` says where the
    facts come from, `file` in which file shipped ones are; `listing` is what the folder holds.
    `published_bytes` is the size that its publisher names, `stored_groups` what the tensors of its
    files add up to.
    """

    name: str
    path: Path | None
    architecture: Architecture
    config: Config
    quantization: Quantization
    source: str
    verified: bool = True
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    published_bytes: int | None = None
    notes: tuple[str, ...] = ()
    file: Path | None = None
    listing: Listing = NO_FILES
    stored_groups: tuple[TensorGroup, ...] = ()
    shipped_license: License | None = None

    @property
    def license(self) -> License | None:
        """The license in the shipped facts or else in the model card; `None` if unknown."""
        name = self.listing.license
        named = License(name, f"{CARD} of the checkpoint", verified=True) if name else None
        return self.shipped_license or named

    @cached_property
    def groups(self) -> tuple[TensorGroup, ...]:
        """Its tensors by role and dtype: from its files, or else computed."""
        return self.stored_groups or computed_groups(
            self.architecture, self.config, self.quantization
        )

    @property
    def loaded_groups(self) -> tuple[TensorGroup, ...]:
        """The tensors that an engine loads, MTP layers included."""
        return tuple(group for group in self.groups if group.role != "left_out")

    @cached_property
    def text_config(self) -> Config:
        return self.architecture.text(self.config)

    @property
    def written_config(self) -> Config:
        """The fields of the language model as the file has them, `null` among them."""
        return self.architecture.written(self.config)

    @property
    def is_bare(self) -> bool:
        """Whether it is a folder of configuration files alone, without weights."""
        return self.path is not None and not self.verified

    @property
    def mtp_layers(self) -> int:
        """MTP layers whose weights are in the checkpoint."""
        return self.architecture.mtp_layers(self.config)

    @property
    def digests(self) -> dict[str, str]:
        used = ("config.json", QUANT_FILE)
        return {
            row.name: row.sha256 for row in self.listing.files if row.name in used and row.sha256
        }

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @cached_property
    def parameters(self) -> int:
        return sum(tensors.parameters for tensors in self.architecture.tensors(self.text_config))

    @property
    def precision(self) -> str:
        return self.quantization.quant_algo or "BF16"


def same_model(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints hold the same model in the same precision, whatever their names."""
    return (one.architecture.name, one.precision, one.parameters) == (
        other.architecture.name,
        other.precision,
        other.parameters,
    )


def gather(reference: str, base: Path = Path()) -> Checkpoint:
    """The facts of `reference`: a hub name that ships, or a folder, relative to `base`.

    A name that ships means the same in every working folder; write `./name` for a folder of that
    name. In another spelling, it gives way to a folder. Raises `BadInput` for a path that is no
    folder, else `BadFacts` with every error found.
    """
    if shipped := shipped_file(reference, exact=True):
        return read_shipped(shipped)
    given = base / os.path.expanduser(reference)  # noqa: PTH111, which knows no unknown user
    folder = model_names.checkpoint_folder(given)
    if reference.strip() and is_folder(folder):
        return read_folder(folder)
    if shipped := shipped_file(reference):
        return read_shipped(shipped)
    if model_names.is_path(reference):
        raise BadInput(model_names.no_folder(reference, base))
    raise BadFacts(model_names.unknown(reference))


@cache
def read_shipped(path: Path) -> Checkpoint:
    """Facts from a file of `builder/data/models`, which all callers share."""
    facts = data_file.load(path, ModelFacts)
    config: Config = facts.config.values
    values = facts.quantization.values if facts.quantization else None
    found, diagnostics = read_quantization(config, {"quantization": values} if values else None)
    architecture = _architecture(config, path.name)
    diagnostics += _missing_fields(architecture, config, path.name)
    if diagnostics:
        raise BadFacts(diagnostics)
    return Checkpoint(
        name=facts.name,
        path=None,
        architecture=architecture,
        config=config,
        quantization=found,
        source=f"shipped facts: {facts.config.source}",
        verified=facts.config.verified,
        published_bytes=facts.checkpoint_bytes.value if facts.checkpoint_bytes else None,
        notes=facts.notes,
        file=path,
        shipped_license=facts.license,
    )


def read_folder(folder: Path) -> Checkpoint:
    """Facts from the files of a folder. Raises `BadFacts` with the list of what is wrong."""
    if not is_there(folder / "config.json"):
        raise BadFacts(model_names.without_config(folder))
    config = load_json_mapping(folder / "config.json")
    quant_file = folder / QUANT_FILE
    hf_quant = load_json_mapping(quant_file) if is_there(quant_file) else None
    generation_file = folder / "generation_config.json"
    generation = load_json_mapping(generation_file) if is_there(generation_file) else {}
    architecture = _architecture(config, str(folder / "config.json"))

    found, diagnostics = read_quantization(config, hf_quant, f"{folder}/")
    diagnostics += _missing_fields(architecture, config, str(folder / "config.json"))
    bare = not any(folder.glob("*.safetensors"))
    notes: tuple[str, ...] = (_BARE_NOTE,) if bare else ()
    stored: dict[str, Stored] = {}
    if not bare:
        if not architecture.draft_head:  # it uses the tokenizer of its target
            diagnostics += _tokenizer_diagnostics(folder)
        stored, unreadable = _read_headers(folder)
        diagnostics += unreadable
        if not diagnostics:
            if not _has_mtp(architecture, config, stored):
                config, notes = _without_mtp(architecture, config), (_NO_MTP,)
            diagnostics += _tensor_diagnostics(folder, architecture, config, found, stored)
    if diagnostics:
        raise BadFacts(diagnostics)
    return Checkpoint(
        name=model_names.folder_name(folder),
        path=folder.resolve(),
        architecture=architecture,
        config=config,
        quantization=found,
        stored_groups=stored_groups(architecture, config, stored.values()),
        source=_BARE if bare else f"config.json and the headers of {len(stored)} tensors",
        verified=not bare,
        published_bytes=_indexed_bytes(folder) if bare else None,
        notes=notes,
        generation_config=generation,
        listing=checkpoint_files.read(folder),
    )


_BARE = "config.json; the weights are computed from the architecture, as the folder has none"
_BARE_NOTE = (
    "no *.safetensors files in this folder: names and sizes of the weights are assumed to be those "
    "of the architecture; copy the weights and the tokenizer before you start a server"
)


# Exporters that work on the classes of transformers lose these layers and not their count.
_NO_MTP = "config.json counts MTP layers, but their weights are not in this folder: it has none"


def _without_mtp(architecture: Architecture, config: Config) -> Config:
    nested, none = architecture.nested(config), {str(architecture.mtp_field): 0}
    return {**config, nested: {**config[nested], **none}} if nested else {**config, **none}


def _architecture(config: Config, where: str) -> Architecture:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if isinstance(name, str) and name in architectures():
        return architectures()[name].of(config)
    what = f"architecture {name} is not supported" if name else "names no architecture"
    raise BadFacts(Diagnostic(where, what, _other_architecture(config, str(name))))


def _other_architecture(config: Config, name: str) -> str:
    """What to do about a model that cannot be planned as it is."""
    if near := next((other for other in architectures() if _is_misspelt(name, other)), None):
        return f"did you mean {near}?"
    others = len(architectures())
    by_hand = (
        f"{others} others are, each a row of builder/data/architectures.yaml. Until it has one, "
        "write the engine's options by hand and have `builder check` read them"
    ) + _readers(name)
    if "pretrained_config" in config or "architecture" in config:
        return "this is of an engine or of TensorRT-LLM's own format: give the checkpoint before it"
    model_type = str(config.get("model_type", "")).replace("_", "")
    if meant := _by_class(f"{model_type}ForCausalLM"):
        return f'if it is one of these, add "architectures": ["{meant}"]; {by_hand}'
    for part in NESTED:
        inner = config.get(part)
        classes = inner.get("architectures") if isinstance(inner, Mapping) else None
        found = _by_class(str(classes[0])) if isinstance(classes, list) and classes else None
        if found:
            return (
                f"its language model is a {found}: to plan for that part alone, write {part} "
                f"into a separate config.json; {by_hand}"
            )
    return by_hand


def _readers(name: str) -> str:
    """The releases that serve an architecture, whether or not it can be planned here."""
    found = [f"{engine.title} {either(names)}" for engine, names in named_by(name).items()]
    return f"; it is served by {' and '.join(found)}" if found else ""


def _by_class(name: str) -> str | None:
    return next((other for other in architectures() if other.lower() == name.lower()), None)


def _is_misspelt(name: str, other: str) -> bool:
    """Whether an architecture's name is another one, mistyped: one more letter in the model's own
    part, as in Mllama, is another model."""
    if not is_misspelling(name, other):
        return False
    ours, theirs = (sorted(each.lower().partition("for")[0]) for each in (name, other))
    return ours == theirs


def _missing_fields(architecture: Architecture, config: Config, where: str) -> list[Diagnostic]:
    remedy = "take config.json from the model's repository"
    return [
        Diagnostic(where, f"field {name} is missing or not a plausible count", remedy)
        for name in architecture.missing_fields(config)
    ]


def _tokenizer_diagnostics(folder: Path) -> list[Diagnostic]:
    if any((folder / name).is_file() for name in TOKENIZER_FILES):
        return []
    what = f"no tokenizer: none of {', '.join(TOKENIZER_FILES)}"
    return [Diagnostic(str(folder), what, "copy the tokenizer files as well")]


def to_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """The facts as a bundle carries them: enough to make a miniature of the checkpoint, and to
    plan again where its folder is not."""
    found = checkpoint.quantization
    stored = {
        "generation_config": dict(checkpoint.generation_config),
        "groups": [asdict(group) for group in checkpoint.groups],
        "files": [asdict(file) for file in checkpoint.listing.files],
        "revision": checkpoint.listing.revision,
        "licence": checkpoint.listing.license,
    }
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "nbytes": checkpoint.nbytes,
        "config": dict(checkpoint.config),
        "quantization": {
            "quant_algo": found.quant_algo,
            "kv_cache_quant_algo": found.kv_cache_quant_algo,
            "exclude_modules": list(found.exclude_modules),
            "source": found.source,
            **({"parts": dict(found.parts), "rest": found.rest} if found.parts else {}),
            **({"writer": found.writer} if found.writer else {}),
            **({"group_size": found.group_size} if found.group_size else {}),
            **({"zero_points": True} if found.zero_points else {}),
            **({"groups": asdict(found)["groups"]} if found.groups else {}),
        },
        **(stored if checkpoint.listing.files else {}),
    }


def from_document(document: Mapping[str, Any]) -> Checkpoint:
    """The facts that `to_document` wrote."""
    found, wrong = schema.build(Quantization, document["quantization"])
    if wrong:
        file = "checkpoint.json"
        raise BadFacts([replace(row, where=f"{file}: quantization.{row.path}") for row in wrong])
    config = document["config"]
    architecture = _architecture(config, "checkpoint.json")
    if wrong := _missing_fields(architecture, config, "checkpoint.json"):
        raise BadFacts(wrong)
    files = tuple(CheckpointFile(**row) for row in document.get("files", ()))
    return Checkpoint(
        name=document["name"],
        path=None,
        architecture=architecture,
        config=config,
        quantization=found,
        stored_groups=tuple(TensorGroup(**row) for row in document.get("groups", ())),
        source=document["source"],
        generation_config=document.get("generation_config", {}),
        listing=Listing(files, document.get("revision"), document.get("licence")),
    )


def from_bundle(folder: Path) -> Checkpoint:
    return in_bundle(folder)["checkpoint"]


# Where a deployment names the models whose facts a bundle may hold.
REFERENCES = {"checkpoint": "checkpoint", "draft": "draft.checkpoint"}


def in_bundle(folder: Path) -> dict[str, Checkpoint]:
    file = folder / "checkpoint.json"
    document = load_json_mapping(file)
    draft = {"draft": document["draft"]} if "draft" in document else {}
    try:
        return {name: from_document(row) for name, row in {"checkpoint": document, **draft}.items()}
    except (KeyError, TypeError, AttributeError) as error:
        what = f"holds no facts of a checkpoint: {error}"
        raise BadFacts(Diagnostic(str(file), what, "render the bundle again")) from None


INDEX = "model.safetensors.index.json"
MOST_NAMED = 20  # of the files that are missing


def _read_headers(folder: Path) -> tuple[dict[str, Stored], list[Diagnostic]]:
    """Every tensor of the folder's safetensors files, and what is wrong with the files."""
    files = sorted(folder.glob("*.safetensors"))
    missing = sorted(_indexed_files(folder) - {file.name for file in files})
    wrong = [
        Diagnostic(str(folder / name), "is named in the index, but missing", "copy it as well")
        for name in missing[:MOST_NAMED]
    ]
    if more := len(missing) - len(wrong):
        what = f"lacks {more} more files that its index names"
        wrong.append(Diagnostic(str(folder), what, "copy them as well"))
    stored: dict[str, Stored] = {}
    for file in files:
        try:
            stored |= {tensor.name: tensor for tensor in checkpoint_files.read_header(file)}
        except BadFacts as error:
            wrong += error.diagnostics
    return stored, wrong


def _indexed_files(folder: Path) -> set[str]:
    index = folder / INDEX
    if not is_there(index):
        return set()
    weight_map = load_json_mapping(index).get("weight_map")
    return set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()


def _has_mtp(architecture: Architecture, config: Config, stored: Mapping[str, Stored]) -> bool:
    """Whether the folder has the MTP layers that the config counts: their projection, anywhere."""
    rows = [row for row in architecture.tensors(architecture.text(config)) if row.mtp]
    modules = {
        row.pattern.removesuffix(".weight").rpartition("}")[2]
        for row in rows
        if row.role == "mtp_projection"
    }
    return not rows or any(any(module in name for module in modules) for name in stored)


def _tensor_diagnostics(
    folder: Path,
    architecture: Architecture,
    config: Config,
    found: Quantization,
    stored: Mapping[str, Stored],
) -> list[Diagnostic]:
    """Tensors that the architecture needs and that are missing or of another shape, by pattern."""
    missing: dict[str, list[str]] = {}
    different: dict[str, list[str]] = {}
    for tensors in architecture.tensors(architecture.text(config)):
        for name in tensors.names():
            for expected in found.stored(tensors, name):
                actual = stored.get(expected.name)
                if actual is None:
                    missing.setdefault(_pattern(expected.name), []).append(expected.name)
                elif _differs(actual, expected):
                    text = (
                        f"{expected.name} is {actual.dtype} {list(actual.shape)}, "
                        f"expected {expected.dtype} {list(expected.shape)}"
                    )
                    different.setdefault(_pattern(expected.name), []).append(text)
    remedy = f"compare {found.source} and config.json with the exporter's log"
    return [
        Diagnostic(
            str(folder), f"{len(names)} tensors missing, first {names[0]}", "copy them as well"
        )
        for names in missing.values()
    ] + [
        Diagnostic(
            str(folder), f"{len(texts)} tensors contradict the configuration: {texts[0]}", remedy
        )
        for texts in different.values()
    ]


def _differs(actual: Stored, expected: Stored) -> bool:
    """Whether a tensor is stored otherwise than it should be.

    A scalar may have the shape `[]` or `[1]`, and what is not quantized any plain dtype.
    """
    same_shape = actual.shape == expected.shape or (expected.shape, actual.shape) == ((), (1,))
    plain = {actual.dtype, expected.dtype} <= PLAIN_DTYPES
    return not same_shape or not (plain or actual.dtype == expected.dtype)


def _pattern(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)


def _indexed_bytes(folder: Path) -> int | None:
    """The size of all weights that the index of a folder without them tells."""
    index = folder / INDEX
    metadata = load_json_mapping(index).get("metadata") if is_there(index) else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return total if isinstance(total, int) and total > 0 else None
