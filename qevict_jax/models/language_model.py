# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A loaded model: configuration, parameters and tokenizer in one handle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from qevict_jax.head_split import ONE_DEVICE, HeadSplit
from qevict_jax.mesh import DeviceMesh, MeshShape
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.partition import local_config, param_specs, spread_params
from qevict_jax.models.steps import Program, all_logits, to_state
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """What `load` returns.

    Attributes:
        config: the architecture.
        program: the static half, an argument of the functions in `steps`.
        params: the parameters, stacked over layers.
        tokenizer: text to token ids and back, None for a model without one.
        mesh: the devices that the parameters are spread over, None for one device. ``program`` is then the program of
            one of them, to be called under `jax.shard_map`.
    """

    config: ModelConfig
    program: Program
    params: nnx.State
    tokenizer: Tokenizer | None = None
    mesh: DeviceMesh | None = None

    @property
    def dtype(self) -> str:
        """Dtype of the parameters and of computation outside softmax, norms and scores."""
        return str(jax.tree.leaves(self.params)[0].dtype)

    @property
    def split(self) -> HeadSplit:
        """How the heads of a row lie on devices."""
        return ONE_DEVICE if self.mesh is None else self.mesh.split

    def even(self, rows: int) -> int:
        """The least number of rows, at least so many, that goes evenly onto the parts of a batch."""
        data = 1 if self.mesh is None else self.mesh.shape.data
        return -(-rows // data) * data

    def check_one_device(self, what: str) -> None:
        """Stops what does not know of meshes.

        Raises:
            QEvictError: the model is on one.
        """
        if self.mesh is not None:
            raise QEvictError(f"{what} runs on one device; load the model without a mesh")

    def logits(
        self, tokens: Int[Array, "B S"] | np.ndarray, positions: Int[Array, "S"] | np.ndarray | None = None
    ) -> Float[Array, "B S V"]:
        """Next-token logits at every position, from a plain causal pass without a cache; float32."""
        tokens = np.asarray(tokens, np.int32)
        positions = np.arange(tokens.shape[1], dtype=np.int32) if positions is None else np.asarray(positions)
        return _all_logits(self.program, self.mesh, self.params, tokens, positions)

    def on(self, mesh: MeshShape, devices: Sequence[Any] | None = None) -> "LanguageModel":
        """This model on a mesh, for one that is in memory already; `load_model` puts a checkpoint there directly.

        Raises:
            QEvictError: there are too few devices, or the model does not go evenly onto them.
        """
        placed, program = _on_mesh(self.config, mesh, devices)
        return replace(self, program=program, params=spread_params(self.params, placed), mesh=placed)


@partial(jax.jit, static_argnums=(0, 1))
def _all_logits(program: Program, mesh: DeviceMesh | None, params: nnx.State, tokens: Array, positions: Array) -> Array:
    local = partial(all_logits, program)
    if mesh is not None:
        specs = (param_specs(params), P(), P())
        local = jax.shard_map(local, mesh=mesh.mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return local(params, tokens, positions)


def load_model(path: str | Path, dtype: str | None = None, *, mesh: str | MeshShape | None = None) -> LanguageModel:
    """Loads what ``qevict convert`` wrote.

    Args:
        path: a converted checkpoint.
        dtype: "float32", "bfloat16" or "float16"; default float32 on a CPU, where 16-bit products are about ten times
            slower, and the dtype of the checkpoint elsewhere.
        mesh: devices to spread the model and what it decodes over, e.g. "data=2,model=4"; default one device.

    Raises:
        QEvictError: if the path is not a checkpoint of this library, or is damaged; if there is no such mesh, or the
            model does not go evenly onto it.
    """
    config = read_config(path)
    if dtype is None and jax.default_backend() == "cpu":
        dtype = "float32"
    tokenizer = Tokenizer.load(path)
    if mesh is None:
        return LanguageModel(config, Program.of(config), to_state(load_params(path, config, dtype)), tokenizer)
    shape = MeshShape.parse(mesh) if isinstance(mesh, str) else mesh
    placed, program = _on_mesh(config, shape, None)
    return LanguageModel(config, program, to_state(load_params(path, config, dtype, placed)), tokenizer, placed)


def _on_mesh(config: ModelConfig, shape: MeshShape, devices: Sequence[Any] | None) -> tuple[DeviceMesh, Program]:
    """A mesh, and the program of one of its devices."""
    mesh = DeviceMesh.make(shape, config.kv_heads, devices)
    return mesh, Program.of(local_config(config, mesh.split), mesh.split.axes)
