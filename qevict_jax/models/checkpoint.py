# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a converted checkpoint into the stacked parameter tree, one leaf at a time.

While a leaf is built, the host holds that leaf and a few source tensors of it; all finished leaves are on
the device. On a CPU, where host and device are the same memory, the peak stays below the weights plus one
stacked leaf. On a mesh every device is given its own parts of every tensor, and no whole one exists anywhere.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from orbax.checkpoint import v1 as ocp

from qevict_jax.mesh import DeviceMesh
from qevict_jax.models import key_map
from qevict_jax.models.config import DTYPES, ModelConfig
from qevict_jax.models.partition import leaf_spec, padded_shape, source_spec
from qevict_jax.types import QEvictError

WEIGHTS = "weights"
CONFIG = "config.json"

# A read of Orbax costs milliseconds whatever its size: small tensors are read together, large ones alone.
_READ_BYTES = 32 * 2**20


def read_config(path: str | Path) -> ModelConfig:
    """The configuration of the checkpoint directory `path`.

    Raises:
        QEvictError: `path` is not a converted checkpoint.
    """
    file = Path(path) / CONFIG
    if not file.is_file():
        raise QEvictError(f"{path} is not a model directory: it has no {CONFIG}")
    try:
        config = ModelConfig.from_json(json.loads(file.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise QEvictError(f"{file} is not valid JSON: {error}") from None
    except QEvictError as error:
        raise QEvictError(f"{path}: {error}") from None
    return replace(config, checkpoint=str(path))


def load_params(
    path: str | Path, config: ModelConfig, dtype: str | None = None, mesh: DeviceMesh | None = None
) -> dict:
    """Loads the weights of a converted checkpoint onto the default device, or onto a mesh.

    Args:
        path: directory written by `python -m convert`.
        config: what `read_config(path)` returned.
        dtype: "float32", "bfloat16" or "float16"; None keeps the dtype of the checkpoint.
        mesh: where they go, as `partition` says.

    Returns:
        Nested dictionary of arrays as `key_map.ROWS` lays it out: projections as [in, out], everything under
        "blocks" with a leading layer axis L. On a mesh token ids are padded with zeros to go evenly.

    Raises:
        QEvictError: the checkpoint lacks a tensor, holds one of another shape, or cannot be read.
    """
    target = numpy_dtype(dtype or config.dtype)
    weights = Path(path).absolute() / WEIGHTS  # Orbax refuses relative paths
    stored = _stored_shapes(weights)
    tree: dict = {}
    for row in key_map.rows(config):
        _check(row, config, stored, path)
        node = tree
        for part in row.path[:-1]:
            node = node.setdefault(part, {})
        if mesh is None:
            leaf = jax.device_put(_read_leaf(weights, row, config, target))
        else:
            leaf = _read_sharded_leaf(weights, row, config, target, mesh)
        # Without waiting, the host copies of all leaves could be alive at once.
        node[row.path[-1]] = leaf.block_until_ready()
    return tree


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of one of `DTYPES`."""
    if name not in DTYPES:
        raise QEvictError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _stored_shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    try:
        return {name: tuple(leaf.shape) for name, leaf in ocp.metadata(str(weights)).metadata.items()}
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(weights, error) from None


def _unreadable(weights: Path, error: Exception) -> QEvictError:
    reason = str(error).strip().split("\n")[0].split(" [tensorstore_spec")[0]
    return QEvictError(f"{weights} is not a readable Orbax checkpoint: {reason}")


def _check(row: key_map.Row, config: ModelConfig, stored: dict, path: str | Path) -> None:
    for name in row.names(config):
        if stored.get(name) != row.shape(config):
            found = f"has shape {stored[name]}" if name in stored else "is missing"
            raise QEvictError(f"{path}: tensor {name} of shape {row.shape(config)} {found}; convert it again")


def _read_leaf(weights: Path, row: key_map.Row, config: ModelConfig, dtype: np.dtype) -> np.ndarray:
    leaf = _empty(row.leaf_shape(config), dtype)
    # Orbax asks for an array to learn shape and dtype; this one takes no memory.
    like = np.broadcast_to(np.zeros((), numpy_dtype(config.dtype)), row.shape(config))
    for layer, source in _read(weights, row.names(config), like):
        target = leaf[layer] if row.per_layer else leaf
        if row.transpose:
            _copy_transposed(target, source)
        else:
            target[...] = source
    return leaf


def _copy_transposed(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source.T`` in strips that stay in the cache: five times faster for a large matrix."""
    for start in range(0, len(source), 16):
        strip = slice(start, start + 16)
        target[:, strip] = source[strip].T


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array at a multiple of 64 bytes: a CPU device takes over such memory instead of copying it."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _read_sharded_leaf(
    weights: Path, row: key_map.Row, config: ModelConfig, dtype: np.dtype, mesh: DeviceMesh
) -> jax.Array:
    spec, sharding = source_spec(row), mesh.sharding(leaf_spec(row))
    like = jax.ShapeDtypeStruct(
        padded_shape(row.shape(config), spec, mesh), numpy_dtype(config.dtype), sharding=mesh.sharding(spec)
    )
    tensors = _read(weights, row.names(config), like)

    def part(tensor: jax.Array) -> jax.Array:
        return (tensor.T if row.transpose else tensor).astype(dtype)

    if not row.per_layer:
        ((_, tensor),) = tensors
        return jax.jit(part, out_shardings=sharding)(tensor)
    shape = padded_shape(row.leaf_shape(config), leaf_spec(row), mesh)
    leaf = jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)()
    write = jax.jit(
        lambda leaf, tensor, layer: leaf.at[layer].set(part(tensor)), out_shardings=sharding, donate_argnums=0
    )
    for layer, tensor in tensors:
        leaf = write(leaf, tensor, layer)
    return leaf


def _read(weights: Path, names: list[str], like: np.ndarray | jax.ShapeDtypeStruct) -> Iterator[tuple[int, Any]]:
    """Yields (index of the name, tensor), holding about `_READ_BYTES` or one tensor at a time."""
    together = max(1, _READ_BYTES // (math.prod(like.shape) * like.dtype.itemsize))
    context = ocp.Context()
    context.pytree.loading.partial_load = True
    context.array.loading.enable_padding_and_truncation = isinstance(like, jax.ShapeDtypeStruct)
    for start in range(0, len(names), together):
        batch = names[start : start + together]
        try:
            with context:
                tensors = ocp.load(str(weights), dict.fromkeys(batch, like))
        except (OSError, ValueError) as error:
            raise _unreadable(weights, error) from None
        for offset, name in enumerate(batch):
            yield start + offset, tensors.pop(name)
