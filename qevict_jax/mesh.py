# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Meshes of devices: ``data`` splits the rows of a batch, ``model`` the heads and the MLP of every row.

Where there are more devices along ``model`` than KV heads, every KV head is on several of them, which share its query
heads; along a third axis, ``group``, so that what they agree on is a mean over that axis.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from qevict_jax.head_split import HeadSplit
from qevict_jax.types import QEvictError

_PROCESS = re.compile(r"(?P<coordinator>\S+:\d+),(?P<count>\d+),(?P<index>\d+)")

DATA, KV, GROUP = "data", "model", "group"
MODEL = (KV, GROUP)  # together what a user calls model


@dataclass(frozen=True)
class MeshShape:
    """What a user asks for.

    Attributes:
        data: parts of a batch.
        model: devices that share a row.
    """

    data: int = 1
    model: int = 1

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """Reads ``"data=2,model=4"``; an axis that is not named has size 1.

        Raises:
            QEvictError: anything else; the message says what.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", part)
            if match is None or int(match[2]) < 1:
                raise QEvictError(f"mesh {text!r}: {part.strip()!r} is no axis and size; write e.g. data=2,model=4")
            name = match[1]
            if name not in ("data", "model"):
                raise QEvictError(f"mesh {text!r}: there is no axis {name!r}; there are data and model")
            if name in sizes:
                raise QEvictError(f"mesh {text!r}: {name} is there twice")
            sizes[name] = int(match[2])
        return cls(**sizes)

    def split_heads(self, kv_heads: int) -> HeadSplit:
        """How a row's heads lie on its devices, without the names of axes.

        Raises:
            QEvictError: ``model`` neither divides the KV heads nor is a multiple of them.
        """
        if kv_heads % self.model and self.model % kv_heads:
            raise QEvictError(
                f"mesh {self}: {kv_heads} KV heads do not go evenly onto model={self.model}; it must be a divisor or a "
                "multiple of them"
            )
        return HeadSplit(self.model, min(self.model, kv_heads))

    def __str__(self) -> str:
        return f"data={self.data},model={self.model}"


@dataclass(frozen=True)
class DeviceMesh:
    """Devices in the axes ``data``, ``model`` and ``group``; hashable, a part of the key of compiled programs."""

    mesh: Mesh

    @classmethod
    def make(cls, shape: MeshShape, kv_heads: int, devices: Sequence[Any] | None = None) -> "DeviceMesh":
        """A mesh for a model with so many KV heads.

        Args:
            shape: its axes.
            kv_heads: K; ``model`` must divide it or be a multiple of it.
            devices: as many or more; default all that JAX has.

        Raises:
            QEvictError: there are too few devices, or KV heads do not go evenly.
        """
        devices = jax.devices() if devices is None else devices
        count = shape.data * shape.model
        if count > len(devices):
            raise QEvictError(f"mesh {shape} needs {count} devices and there are {len(devices)}")
        if count < len(devices) and jax.process_count() > 1:
            raise QEvictError(f"mesh {shape} takes {count} of the {len(devices)} devices of these processes; take all")
        kv_shards = shape.split_heads(kv_heads).kv_shards
        axes = (shape.data, kv_shards, shape.model // kv_shards)
        return cls(jax.make_mesh(axes, (DATA, *MODEL), (AxisType.Auto,) * 3, devices=devices[:count]))

    @property
    def shape(self) -> MeshShape:
        """The axes as a user knows them."""
        return MeshShape(self.mesh.shape[DATA], math.prod(self.mesh.shape[axis] for axis in MODEL))

    @property
    def split(self) -> HeadSplit:
        """How the heads of a row lie on the devices; axes of size 1 need no communication and are left out."""
        wide = tuple(axis for axis in MODEL if self.mesh.shape[axis] > 1)
        group = tuple(axis for axis in wide if axis == GROUP)
        return HeadSplit(self.shape.model, self.mesh.shape[KV], wide, group)

    def rows(self, count: int) -> P:
        """Where the rows of a batch are: split over ``data``, or, if that does not divide them, all on every part."""
        return P(DATA) if count % self.shape.data == 0 else P()

    def sharding(self, spec: P) -> NamedSharding:
        """A spec on this mesh."""
        return NamedSharding(self.mesh, spec)

    def put(self, x: Any, spec: P) -> jax.Array:
        """An array as the devices are to hold it; from an array of the host every process takes what is its own."""
        wanted = self.sharding(spec)
        if isinstance(x, jax.Array):
            if x.sharding.is_equivalent_to(wanted, x.ndim):
                return x
            if x.is_fully_addressable == wanted.is_fully_addressable:
                return jax.device_put(x, wanted)
        held = np.asarray(x)
        return jax.make_array_from_callback(held.shape, wanted, lambda index: held[index])

    def fetch(self, x: jax.Array) -> np.ndarray:
        """The whole array on every host."""
        if not x.is_fully_addressable:
            x = jax.jit(_same, out_shardings=self.sharding(P()))(x)
        return np.asarray(x)


def join_processes(text: str) -> int:
    """Makes this process one of several that run the same program on the devices of all; call it before all else.

    Args:
        text: "auto" where the machines know of each other (TPU slices, Slurm, Open MPI, Kubernetes), or
            "HOST:PORT,COUNT,INDEX": where process 0 listens, how many there are, which of them this is.

    Returns:
        Which of the processes this is.

    Raises:
        QEvictError: the text is neither, or there is nothing that the machines know.
    """
    match = _PROCESS.fullmatch(text)
    if match is None and text != "auto":
        raise QEvictError(f"distributed {text!r}: give auto, or HOST:PORT,COUNT,INDEX, e.g. 10.0.0.1:1234,4,0")
    try:
        if match is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(match["coordinator"], int(match["count"]), int(match["index"]))
    except (RuntimeError, ValueError) as error:
        raise QEvictError(f"distributed {text!r}: {error}") from None
    return jax.process_index()


def _same(x: jax.Array) -> jax.Array:
    return x
