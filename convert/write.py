# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Streams the tensors of a source into an Orbax checkpoint in small groups.

Nothing is compressed: weights shrink by a fifth at several times the time. Arrays are handed to Orbax without
a defensive copy, since each save waits until the group is on disk; so memory holds one group and no more.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from orbax.checkpoint import v1 as ocp
from tqdm import tqdm

from convert.source import Source
from qevict_jax.models.checkpoint import numpy_dtype
from qevict_jax.models.key_map import expected_tensors
from qevict_jax.types import QEvictError

GROUP_BYTES = 512 * 2**20
_CHUNK_BYTES = 64 * 2**20  # a large tensor is stored in chunks, so that reading it needs no second copy


def write_weights(source: Source, directory: Path, *, group_bytes: int = GROUP_BYTES, progress: bool = True) -> None:
    """Writes every tensor of `source`, cast to `source.config.dtype`, as the Orbax checkpoint `directory`.

    Host memory: the larger of `group_bytes` and the largest tensor, and a few pieces of 32 MiB.

    Raises:
        QEvictError: a value does not fit into float16, the source ended early, or the disk is full.
    """
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.array.saving.storage_options.chunk_byte_size = _CHUNK_BYTES
    context.memory.deepcopy_host_arrays = False
    dtype = numpy_dtype(source.config.dtype)
    total = sum(source.tensors[name].size for name in expected_tensors(source.config)) * dtype.itemsize
    bar = tqdm(total=total, unit="B", unit_scale=True, desc="converting", disable=not progress)
    with bar, context, _reported_once():
        for group in _groups(source, dtype.itemsize, group_bytes):
            arrays = {}
            for name in group:
                arrays[name] = _read(source, name, dtype)
                bar.update(arrays[name].nbytes)
            _save(directory, arrays)
            del arrays  # before the next group is read
        ocp.partial.finalize(str(directory))


@contextlib.contextmanager
def _reported_once() -> Iterator[None]:
    """Leaves a failed write to our error: Orbax logs it too, and its other writes call a loop that is closed."""
    log, hook = logging.getLogger("absl"), sys.unraisablehook
    level = log.level

    def quiet(unraisable) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            hook(unraisable)

    log.setLevel(logging.CRITICAL)
    sys.unraisablehook = quiet
    try:
        yield
        sys.unraisablehook = hook  # after a failure the late calls are still to come
    finally:
        log.setLevel(level)


def _save(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        ocp.partial.save(str(directory), arrays)
    except (OSError, ValueError) as error:  # a full disk is a ValueError of tensorstore
        reason = str(error).split("\n")[0].split(" [tensorstore_spec")[0]
        raise QEvictError(f"writing the checkpoint failed: {reason}") from None


def _groups(source: Source, itemsize: int, limit: int) -> Iterator[list[str]]:
    """Consecutive tensors of at most `limit` bytes together; a larger one is alone."""
    group, size = [], 0
    for name in expected_tensors(source.config):
        nbytes = source.tensors[name].size * itemsize
        if group and size + nbytes > limit:
            yield group
            group, size = [], 0
        group.append(name)
        size += nbytes
    yield group


def _read(source: Source, name: str, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):  # reported below, by name
        tensor = source.read(name, dtype)
    info = source.tensors[name]
    if dtype == np.float16 and info.dtype != "float16" and not np.isfinite(tensor).all():
        raise QEvictError(f"{info.where}: tensor {name} has values beyond float16; use --dtype bfloat16")
    return tensor
