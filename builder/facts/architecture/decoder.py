"""A decoder whose layers are alike but for their MLPs, described by what its family changes.

Rows of `builder/data/architectures.yaml` hold these descriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...schema import Text
from . import tensors as parts
from .fields import Config
from .tensors import Layers, Recurrent, Tensors, linear

Mlps = Callable[[str, Config, Layers], list[Tensors]]
"""The tensors of the MLPs of some layers, by the pattern of a layer's name."""


@dataclass(frozen=True, slots=True)
class DenseLayers:
    """Tells the layers that have an MLP instead of experts, by whichever field a config has.

    `flags` names a list with a flag for each layer, set for one with experts; `numbers` a list of
    the dense layers; `field` the count of dense layers at the start, `first` where it is missing.
    With `step`, the field of that name says that every n-th layer has experts unless it is listed.
    """

    first: int = 0
    field: Text = "first_k_dense_replace"
    flags: str = ""
    numbers: str = ""
    step: str = ""

    def has(self, config: Config, layer: int) -> bool:
        numbers = config.get(self.numbers)
        if self.step:
            listed = isinstance(numbers, list) and layer in numbers
            return listed or (layer + 1) % config.get(self.step, 1) != 0
        kinds, flags = config.get("mlp_layer_types"), config.get(self.flags)
        if isinstance(kinds, list):
            return bool(kinds[layer] == "dense")
        if isinstance(flags, list):
            return not flags[layer]
        if isinstance(numbers, list):
            return layer in numbers
        return layer < int(config.get(self.field, self.first))


@dataclass(frozen=True, slots=True)
class Experts:
    """The MLPs of a mixture of experts.

    `module` holds the experts, `gate` routes to them, `count` and `width` are their config fields.
    `score` names the bias of the router's scores, in `score_rank` dimensions; with `score_if` it is
    there where that field is set. `shared` is the module of the expert that every token takes, with
    the channels of the field `shared_width`, or of as many experts as the field `shared_count`
    says, `shared_default` where it is missing. Layers in `dense` have an MLP instead, with
    `dense_width` channels. `fused` experts lie in one tensor, `[experts, in, out]`.
    """

    count: Text
    width: Text = "moe_intermediate_size"
    module: Text = "mlp"
    gate: Text = "gate"
    score: Text | None = None
    score_if: Text | None = None
    score_rank: int = 1
    names: tuple[str, str, str] = parts.GATED
    shared: Text = "shared_experts"
    shared_width: Text | None = None
    shared_count: Text | None = None
    shared_default: int = 0
    shared_gate: Text | None = None
    dense: DenseLayers | None = None
    dense_width: Text = "intermediate_size"
    dense_module: Text = "mlp"
    fused: bool = False

    def mlps(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        if self.dense is None:
            return self.sparse(layer, config, layers)
        has_mlp = self.dense.has
        dense, sparse = parts.split(layers, lambda i: has_mlp(config, i))
        return [*self.plain(layer, config, dense), *self.sparse(layer, config, sparse)]

    def plain(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        """The MLPs of layers without experts."""
        if not layers:
            return []
        module, hidden = f"{layer}.{self.dense_module}", config["hidden_size"]
        return parts.gated_mlp(module, hidden, config[self.dense_width], "dense_mlp", layers)

    def sparse(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        """Router and experts of layers that have them."""
        moe = f"{layer}.{self.module}"
        hidden, count, width = config["hidden_size"], config[self.count], config[self.width]
        tensors = [linear(f"{moe}.{self.gate}", count, hidden, "router", layers)]
        if self.score and (self.score_if is None or config.get(self.score_if)):
            shape = (*(1,) * (self.score_rank - 1), count)
            tensors.append(Tensors(f"{moe}.{self.score}", shape, "router", layers))
        if self.fused:
            shapes = {
                "gate_up_proj": (count, hidden, 2 * width),
                "down_proj": (count, width, hidden),
            }
            for name, shape in shapes.items():
                tensors.append(parts.fused(f"{moe}.experts.{name}", shape, layers))
        else:
            expert, names = f"{moe}.experts.{{expert}}", self.names
            tensors += parts.gated_mlp(expert, hidden, width, "routed_expert", layers, count, names)
        if shared := self._shared(config):
            module = f"{moe}.{self.shared}"
            tensors += parts.gated_mlp(module, hidden, shared, "shared_expert", layers)
        if self.shared_gate:
            tensors.append(linear(f"{moe}.{self.shared_gate}", 1, hidden, "router", layers))
        return tensors

    def _shared(self, config: Config) -> int:
        """The channels of the expert that every token takes."""
        if self.shared_count:
            return int(config[self.width] * config.get(self.shared_count, self.shared_default))
        return int(config.get(self.shared_width) or 0) if self.shared_width else 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """The tensors of a decoder whose layers are alike but for their MLPs.

    `bias` names the attention projections that have one: those of `qkv`, `all`, or where
    `attention_bias` of the config says so, of all (`config`) or of `qkv` (`config_qkv`). `qk_norm`
    is over a `head`, over each of the `heads` by itself, or over the `width` of all heads; with
    `qk_norm_if` it is there where that field is set. `fused` are models that store query, key and
    value in one tensor, and gate and up projection. `tied` is what a config without
    `tie_word_embeddings` means.
    """

    root: Text = "model"
    head: Text = "lm_head"
    ends: tuple[str, str] = ("embed_tokens", "norm")
    norms: tuple[Text, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    attention: Text = "self_attn"
    bias: Literal["config", "config_qkv", "none", "qkv", "all"] = "config"
    qk_norm: Literal["none", "head", "width", "heads"] = "none"
    qk_norm_if: Text | None = None
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    fused: bool = False
    fused_mlp: bool = False
    mlp: Literal["gated", "plain"] = "gated"
    mlp_names: tuple[str, str] = ("up_proj", "down_proj")
    mlp_bias: Text = "mlp_bias"
    tied: bool = False
    experts: Experts | None = None

    @property
    def layer(self) -> str:
        """The pattern of a layer's name."""
        return f"{self.root}.layers.{{layer}}"

    def tensors(self, config: Config, mlps: Mlps | None = None) -> list[Tensors]:
        """All tensors, with other MLPs than the usual ones where `mlps` gives them."""
        attention = self.attention_tensors(self.layer, config, parts.decoder_layers(config))
        return [*self.without_attention(config, mlps), *attention]

    def without_attention(self, config: Config, mlps: Mlps | None = None) -> list[Tensors]:
        """All other tensors, for models with unusual attention or with attention in some layers."""
        every = parts.decoder_layers(config)
        return [
            *self.end_tensors(config),
            *self.norm_tensors(self.layer, config, every),
            *(mlps or self.mlps)(self.layer, config, every),
        ]

    def end_tensors(self, config: Config) -> list[Tensors]:
        """Embedding, final norm and, unless it is tied to the embedding, the output head."""
        vocabulary, hidden = config["vocab_size"], config["hidden_size"]
        embedding, norm = (f"{self.root}.{name}" for name in self.ends)
        tensors = [
            Tensors(f"{embedding}.weight", (vocabulary, hidden), "embedding"),
            Tensors(f"{norm}.weight", (hidden,), "norm"),
        ]
        if not config.get("tie_word_embeddings", self.tied):
            tensors.append(linear(self.head, vocabulary, hidden, "lm_head"))
        if self.norm_bias:
            tensors.append(Tensors(f"{norm}.bias", (hidden,), "norm"))
        return tensors

    def norm_tensors(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden = (config["hidden_size"],)
        tensors: list[Tensors] = []
        for name in self.norms:
            tensors.append(Tensors(f"{layer}.{name}.weight", hidden, "norm", layers))
            if self.norm_bias:
                tensors.append(Tensors(f"{layer}.{name}.bias", hidden, "norm", layers))
        return tensors

    def attention_tensors(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden, width = config["hidden_size"], parts.head_dim(config)
        query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
        module = f"{layer}.{self.attention}"
        sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
        if self.fused:
            sizes = {"qkv_proj": query + 2 * key}
        tensors = []
        for name, rows in {**sizes, "o_proj": hidden}.items():
            columns = query if name == "o_proj" else hidden
            tensors.append(linear(f"{module}.{name}", rows, columns, "attention", layers))
            if self._is_biased(config, name):
                tensors.append(Tensors(f"{module}.{name}.bias", (rows,), "attention", layers))
        if self.qk_norm == "none" or not (self.qk_norm_if is None or config.get(self.qk_norm_if)):
            return tensors
        for name, size in zip(self.qk_norm_names, (query, key), strict=True):
            shapes = {"width": (size,), "heads": (size // width, width), "head": (width,)}
            norm = Tensors(f"{module}.{name}.weight", shapes[self.qk_norm], "norm", layers)
            tensors.append(norm)
        return tensors

    def _is_biased(self, config: Config, projection: str) -> bool:
        if projection == "o_proj" and self.bias.endswith("qkv"):
            return False
        if self.bias.startswith("config"):
            other = "use_bias" if self.bias == "config" else ""
            return bool(config.get("attention_bias", config.get(other)))
        return self.bias != "none"

    def mlps(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        if self.experts:
            return self.experts.mlps(layer, config, layers)
        hidden, width, mlp = config["hidden_size"], config["intermediate_size"], f"{layer}.mlp"
        has_bias = bool(config.get(self.mlp_bias))
        if self.mlp == "plain":
            names = self.mlp_names
            return parts.plain_mlp(mlp, hidden, width, "dense_mlp", layers, 0, names, has_bias)
        if self.fused or self.fused_mlp:
            return [
                linear(f"{mlp}.gate_up_proj", 2 * width, hidden, "dense_mlp", layers),
                linear(f"{mlp}.down_proj", hidden, width, "dense_mlp", layers),
            ]
        tensors = parts.gated_mlp(mlp, hidden, width, "dense_mlp", layers)
        biases = {"gate_proj": width, "up_proj": width, "down_proj": hidden} if has_bias else {}
        for name, size in biases.items():
            tensors.append(Tensors(f"{mlp}.{name}.bias", (size,), "dense_mlp", layers))
        return tensors


@dataclass(frozen=True, slots=True)
class Family:
    """What a row of data cannot describe of some architectures: their tensors, and their caches.

    `cached_layers` counts the layers that have a KV cache, `cached_values` the values that one of
    them keeps of a token where it is neither grouped-query nor plain latent attention,
    `cached_heads` lists the key-value heads of each of them and their width where they differ,
    `recurrent` tells of the layers that have none.
    """

    tensors: Callable[[Decoder, Config], list[Tensors]] = Decoder.tensors
    cached_layers: Callable[[Config], int] | None = None
    cached_values: Callable[[Config], float] | None = None
    cached_heads: Callable[[Config], list[tuple[int, int]]] | None = None
    recurrent: Callable[[Config], Recurrent] | None = None
