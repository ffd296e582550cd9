# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The one table between Hugging Face tensor names and the stacked parameter tree.

Sizes are letters: V vocabulary, E model width, M MLP width, Q = H*D query channels, N = K*D key channels.
Shapes are those of the source, projections as [out, in]; the tree holds projections as [in, out].
"""

from dataclasses import dataclass

from qevict_jax.models.config import ModelConfig


@dataclass(frozen=True)
class Row:
    """One kind of tensor.

    Attributes:
        name: Hugging Face name, with ``{layer}`` where the layer number stands.
        axes: one size letter per axis of the source tensor.
        path: where the leaf stands in the parameter tree; leaves under "blocks" are stacked over layers.
        transpose: the leaf is the transpose of the source tensor.
        when: "always", "biased" (only with qkv_bias) or "untied" (only without tied embeddings).
    """

    name: str
    axes: str
    path: tuple[str, ...]
    transpose: bool = False
    when: str = "always"

    @property
    def per_layer(self) -> bool:
        """Whether every layer has such a tensor."""
        return "{layer}" in self.name

    def names(self, config: ModelConfig) -> list[str]:
        """Source names in layer order; a single one for a tensor outside the layers."""
        return [self.name.format(layer=i) for i in range(config.layers)] if self.per_layer else [self.name]

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape of the source tensor."""
        sizes = {
            "V": config.vocab,
            "E": config.hidden,
            "M": config.mlp,
            "Q": config.heads * config.head_dim,
            "N": config.kv_heads * config.head_dim,
        }
        return tuple(sizes[axis] for axis in self.axes)

    def leaf_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape of the leaf in the parameter tree."""
        shape = self.shape(config)[:: -1 if self.transpose else 1]
        return (config.layers, *shape) if self.per_layer else shape


def _block(name: str, axes: str, *path: str, **options) -> Row:
    return Row("model.layers.{layer}." + name, axes, ("blocks", *path), **options)


ROWS: tuple[Row, ...] = (
    Row("model.embed_tokens.weight", "VE", ("embed", "weight")),
    _block("input_layernorm.weight", "E", "attn_norm", "scale"),
    _block("self_attn.q_proj.weight", "QE", "attn", "q", "kernel", transpose=True),
    _block("self_attn.q_proj.bias", "Q", "attn", "q", "bias", when="biased"),
    _block("self_attn.k_proj.weight", "NE", "attn", "k", "kernel", transpose=True),
    _block("self_attn.k_proj.bias", "N", "attn", "k", "bias", when="biased"),
    _block("self_attn.v_proj.weight", "NE", "attn", "v", "kernel", transpose=True),
    _block("self_attn.v_proj.bias", "N", "attn", "v", "bias", when="biased"),
    _block("self_attn.o_proj.weight", "EQ", "attn", "o", "kernel", transpose=True),
    _block("post_attention_layernorm.weight", "E", "mlp_norm", "scale"),
    _block("mlp.gate_proj.weight", "ME", "mlp", "gate", "kernel", transpose=True),
    _block("mlp.up_proj.weight", "ME", "mlp", "up", "kernel", transpose=True),
    _block("mlp.down_proj.weight", "EM", "mlp", "down", "kernel", transpose=True),
    Row("model.norm.weight", "E", ("final_norm", "scale")),
    Row("lm_head.weight", "VE", ("lm_head", "kernel"), transpose=True, when="untied"),
)


def rows(config: ModelConfig) -> list[Row]:
    """The rows of the table that a model has."""
    present = {"always": True, "biased": config.qkv_bias, "untied": not config.tie_embeddings}
    return [row for row in ROWS if present[row.when]]


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this model holds, in the order of the model."""
    outside = {True: [], False: []}
    for row in rows(config):
        outside[row.per_layer].append(row)
    head, *tail = outside[False]
    shapes = {head.name: head.shape(config)}
    for layer in range(config.layers):
        shapes |= {row.name.format(layer=layer): row.shape(config) for row in outside[True]}
    return shapes | {row.name: row.shape(config) for row in tail}
