# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder in plain NumPy and float64, one sequence at a time, written from the equations and not from our code."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from qevict_jax.models.rope_frequencies import inverse_frequencies
from tests.random_model import RandomModel


class Context(NamedTuple):
    """What one layer can attend to beside the new tokens: keys after bias and RoPE, values, positions."""

    keys: np.ndarray  # [S, K, D]
    values: np.ndarray  # [S, K, D]
    positions: np.ndarray  # [S]
    held: np.ndarray | None = None  # [S, K], which KV head has which token; None if all have all
    own: bool = True  # new tokens are seen as they are; False if they are among these, as they are stored


class LayerTrace(NamedTuple):
    """What happened in one layer: the new keys and values ``[T, K, D]`` and the probabilities ``[H, T, S + T]``."""

    keys: np.ndarray
    values: np.ndarray
    weights: np.ndarray


def rotate(x: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray) -> np.ndarray:
    """RoPE of ``[T, heads, D]``."""
    angles = np.float64(positions)[:, None, None] * np.float64(inv_freq)
    low, high = np.split(np.float64(x), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def softmax_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, seen: np.ndarray) -> tuple:
    """Output ``[T, H, D]`` and probabilities ``[H, T, S]`` of q ``[T, H, D]`` over ``[S, K, D]``.

    What is seen is ``[T, S]``, or of that by head.
    """
    groups = q.shape[1] // keys.shape[1]
    keys, values = (np.repeat(np.float64(x), groups, axis=1) for x in (keys, values))
    logits = np.einsum("thd,shd->hts", np.float64(q), keys) / np.sqrt(q.shape[-1])
    logits = np.where(seen, logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hts,shd->thd", weights, values), weights


class Float64Model:
    """The model of a `RandomModel`."""

    def __init__(self, model: RandomModel) -> None:
        self.config = model.config
        self.inv_freq = inverse_frequencies(model.config)
        self.params = nnx.to_pure_dict(model.params)

    def key_bias(self, layer: int) -> np.ndarray | float:
        """Bias of the key projection, ``[K, D]``."""
        bias = self.params["blocks"]["attn"]["k"].get("bias")
        return 0.0 if bias is None else np.float64(bias[layer]).reshape(self.config.kv_heads, -1)

    def run(
        self, tokens: np.ndarray, first: int = 0, contexts: list[Context] | None = None, dtype: str = "float64"
    ) -> tuple:
        """Feeds tokens at positions ``first ..``.

        Args:
            tokens: ``[T]``.
            first: position of the first.
            contexts: what each layer sees beside them.
            dtype: the new keys and values are rounded to it before anything sees them.

        Returns:
            Logits ``[T, V]`` and a `LayerTrace` per layer.
        """
        config = self.config
        positions = first + np.arange(len(tokens))
        x = np.float64(self.params["embed"]["weight"])[np.asarray(tokens)]
        traces = []
        for layer in range(config.layers):
            normed = self._norm(x, self.params["blocks"]["attn_norm"]["scale"][layer])
            q, k, v = (self._project(part, layer, normed).reshape(len(tokens), -1, config.head_dim) for part in "qkv")
            q, k = rotate(q, positions, self.inv_freq), rotate(k, positions, self.inv_freq)
            k, v = (np.float64(x.astype(jnp.dtype(dtype))) for x in (k, v))
            keys, values, at, held = k, v, positions, None
            if contexts is not None:
                old = contexts[layer]
                keys, values, at, held = old.keys, old.values, old.positions, old.held
                if old.own:
                    keys, values = np.concatenate([keys, k]), np.concatenate([values, v])
                    at = np.concatenate([at, positions])
            seen = at <= positions[:, None]
            if held is not None:
                held = np.concatenate([held, np.ones((len(k), held.shape[1]), bool)])
                seen = seen & np.repeat(held.T, config.heads // config.kv_heads, axis=0)[:, None]
            out, weights = softmax_attention(q, keys, values, seen)
            traces.append(LayerTrace(k, v, weights))
            x = x + self._project("o", layer, out.reshape(len(tokens), -1))
            x = x + self._mlp(layer, self._norm(x, self.params["blocks"]["mlp_norm"]["scale"][layer]))
        x = self._norm(x, self.params["final_norm"]["scale"])
        return x @ np.float64(self.params["lm_head"]["kernel"]), traces

    def _norm(self, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config.rms_eps) * np.float64(scale)

    def _project(self, part: str, layer: int, x: np.ndarray) -> np.ndarray:
        projection = self.params["blocks"]["attn"][part]
        out = x @ np.float64(projection["kernel"][layer])
        return out + np.float64(projection["bias"][layer]) if "bias" in projection else out

    def _mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        kernels = {k: np.float64(v["kernel"][layer]) for k, v in self.params["blocks"]["mlp"].items()}
        gate = x @ kernels["gate"]
        return (gate / (1 + np.exp(-gate)) * (x @ kernels["up"])) @ kernels["down"]
