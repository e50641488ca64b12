"""Layers of Mamba-2, whose sizes families have under names of their own.

Names and shapes: nemotron_h, granitemoehybrid and falcon_h1 of Hugging Face transformers 5.23.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Config, layer_kinds
from .tensors import Layers, Recurrent, Tensors, linear

# The names that Granite and Falcon-H1 have the sizes under, in the order of `Mamba2`.
FIELDS = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")

# Transformers 5.23 writes the kinds of layers in words of its own.
_WRITTEN = {"mamba": "linear_attention", "attention": "full_attention"}


def layers_of_kind(config: Config, kind: str) -> tuple[int, ...]:
    """The layers of a kind, by whichever of its words."""
    words = (kind, _WRITTEN.get(kind, kind))
    return tuple(i for i, found in enumerate(layer_kinds(config)) if found in words)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The config fields that a family has the sizes in: heads, their channels, the channels of the
    state, its groups and the width of the convolution.

    `everywhere` says that all layers have such a part, `norm` names the field that says whether its
    output has a norm, where that is not always so.
    """

    heads: str
    head_dim: str
    state: str
    groups: str
    convolution: str
    everywhere: bool = False
    norm: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return self.heads, self.head_dim, self.state, self.groups, self.convolution

    def layers(self, config: Config) -> tuple[int, ...]:
        if self.everywhere:
            return tuple(range(config["num_hidden_layers"]))
        return layers_of_kind(config, "mamba")

    def _sizes(self, config: Config) -> tuple[int, int]:
        """Inner channels of a layer, and those that its convolution mixes."""
        inner = config[self.heads] * config[self.head_dim]
        return inner, inner + 2 * config[self.groups] * config[self.state]

    def recurrent(self, config: Config) -> Recurrent:
        inner, mixed = self._sizes(config)
        window = (config[self.convolution] - 1) * mixed
        return Recurrent(len(self.layers(config)), inner * config[self.state], window)

    def tensors(self, mixer: str, config: Config, some: Layers | None = None) -> list[Tensors]:
        """Those of all its layers, or of some that have sizes of their own."""
        layers = self.layers(config) if some is None else some
        inner, mixed = self._sizes(config)
        hidden, heads, width = config["hidden_size"], config[self.heads], config[self.convolution]
        normed = self.norm is None or bool(config.get(self.norm))
        return [
            linear(f"{mixer}.in_proj", inner + mixed + heads, hidden, "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.weight", (mixed, 1, width), "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.bias", (mixed,), "linear_attention", layers),
            *(
                Tensors(f"{mixer}.{name}", (heads,), "linear_attention", layers)
                for name in ("dt_bias", "A_log", "D")
            ),
            *([Tensors(f"{mixer}.norm.weight", (inner,), "norm", layers)] if normed else []),
            linear(f"{mixer}.out_proj", hidden, inner, "linear_attention", layers),
        ]
