# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A loaded model: configuration, parameters and tokenizer in one handle."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from qevict_jax.mesh import DeviceMesh, MeshShape
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.partition import local_config, spread_params
from qevict_jax.models.steps import Program, all_logits, to_state
from qevict_jax.models.tokenizer import Tokenizer


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

    def logits(
        self, tokens: Int[Array, "B S"] | np.ndarray, positions: Int[Array, "S"] | np.ndarray | None = None
    ) -> Float[Array, "B S V"]:
        """Next-token logits at every position, from a plain causal pass without a cache; float32."""
        tokens = jnp.asarray(tokens, jnp.int32)
        return _all_logits(self.program, self.params, tokens, positions)

    def on(self, mesh: MeshShape, devices: Sequence[Any] | None = None) -> "LanguageModel":
        """This model on a mesh, for one that is in memory already; `load_model` puts a checkpoint there directly.

        Raises:
            QEvictError: there are too few devices, or the model does not go evenly onto them.
        """
        placed = DeviceMesh.make(mesh, self.config.kv_heads, devices)
        program = Program.of(local_config(self.config, placed), placed.split.axes)
        return replace(self, program=program, params=spread_params(self.params, placed), mesh=placed)


_all_logits = partial(jax.jit, static_argnames="program")(all_logits)


def load_model(path: str | Path, dtype: str | None = None) -> LanguageModel:
    """Loads what ``qevict convert`` wrote.

    Args:
        path: a converted checkpoint.
        dtype: "float32", "bfloat16" or "float16"; default float32 on a CPU, where 16-bit products are about ten times
            slower, and the dtype of the checkpoint elsewhere.

    Raises:
        QEvictError: if the path is not a checkpoint of this library, or is damaged.
    """
    config = read_config(path)
    if dtype is None and jax.default_backend() == "cpu":
        dtype = "float32"
    params = to_state(load_params(path, config, dtype))
    return LanguageModel(config, Program.of(config), params, Tokenizer.load(path))
