# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A model on a mesh: what one device has of every parameter, after Megatron-LM (arXiv:1909.08053).

Projections to heads and into the MLP are split by their outputs, those back by their inputs, embedding and output
projection by token ids. So a layer needs two sums over devices. Norms are on every device.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jax.tree_util import DictKey, tree_map_with_path

from qevict_jax.head_split import HeadSplit
from qevict_jax.mesh import KV, MODEL, DeviceMesh
from qevict_jax.models import key_map
from qevict_jax.models.config import ModelConfig
from qevict_jax.types import QEvictError

# size letters of `key_map` -> the mesh axes that split such an axis
_SPLIT = {"Q": MODEL, "M": MODEL, "V": MODEL, "N": (KV,), "E": ()}


def local_config(config: ModelConfig, split: HeadSplit) -> ModelConfig:
    """The model as one device sees it; its vocabulary stays whole, since logits are brought together.

    Raises:
        QEvictError: heads or the MLP do not go evenly onto the devices.
    """
    for name, size in (("query heads", config.heads), ("channels of the MLP", config.mlp)):
        if size % split.devices:
            raise QEvictError(f"{size} {name} do not go evenly onto model={split.devices}")
    return replace(
        config,
        heads=config.heads // split.devices,
        kv_heads=config.kv_heads // split.kv_shards,
        mlp=config.mlp // split.devices,
    )


def local_numbers(config: ModelConfig, split: HeadSplit) -> int:
    """Parameters that one device holds."""
    parts = {MODEL: split.devices, (KV,): split.kv_shards, (): 1}
    total = 0
    for row in key_map.rows(config):
        size = math.prod(
            -(-whole // parts[_SPLIT[axis]]) for axis, whole in zip(row.axes, row.shape(config), strict=True)
        )
        total += size * len(row.names(config))
    return total


def leaf_spec(row: key_map.Row) -> P:
    """How the leaf of a kind of tensor is split."""
    axes = [_SPLIT[axis] for axis in row.axes[:: -1 if row.transpose else 1]]
    return P(*[None] * row.per_layer, *axes)


def source_spec(row: key_map.Row) -> P:
    """The same for one tensor of the checkpoint."""
    return P(*(_SPLIT[axis] for axis in row.axes))


_BY_PATH = {row.path: leaf_spec(row) for row in key_map.ROWS}


def param_specs(params: nnx.State) -> nnx.State:
    """A spec for every parameter."""

    def spec(path: tuple, leaf: Any) -> P:
        names = tuple(str(key.key) for key in path if isinstance(key, DictKey))
        return _BY_PATH[names]

    return tree_map_with_path(spec, params)


def spread_params(params: nnx.State, mesh: DeviceMesh) -> nnx.State:
    """Parameters of one device, or of the host, on a mesh; token ids are padded with zeros to go evenly."""

    def spread(leaf: Any, spec: P) -> jax.Array:
        whole = padded_shape(leaf.shape, spec, mesh)
        if whole != leaf.shape:
            leaf = jnp.pad(leaf, [(0, padded - size) for size, padded in zip(leaf.shape, whole, strict=True)])
        return mesh.put(leaf, spec)

    return jax.tree.map(spread, params, param_specs(params))


def padded_shape(shape: tuple[int, ...], spec: P, mesh: DeviceMesh) -> tuple[int, ...]:
    """The smallest shape at least as large that goes evenly onto the devices."""
    named = ((axes,) if isinstance(axes, str) else axes or () for axes in spec)
    parts = (math.prod(mesh.mesh.shape[axis] for axis in axes) for axes in named)
    return tuple(-(-size // count) * count for size, count in zip(shape, parts, strict=True))
