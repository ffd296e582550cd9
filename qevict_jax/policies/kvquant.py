# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KVQuant (Hooper et al., arXiv:2401.18079): every token is kept as non-uniform codes, one number in a hundred exactly.

Keys are quantized before RoPE, per channel with static ranges; values per token with ranges of their own; both with
one codebook per layer. Ranges and codebooks come from calibration (`qevict_jax.calibration`, ``qevict calibrate
MODEL``); the quantizer is `quantizers.nuq`. A token is quantized when it comes and never again.

Points of the paper: ``bits=3`` (the default here) and ``bits=2``, both with ``outliers=0.01``. ``sink`` is the
original's ``first_few_fp16``: the first tokens stay in full precision, 1 by default, 0 as in the original's older
results.

Calibrated arrays are static to the compiled program: `Calibration` compares by its numbers, and the programs of a
policy hold them as constants, as they hold RoPE's frequencies. Like weights they belong to the model, so a sequence is
not charged for them (8*L*K*D bytes and the codebooks).

Deviations from the original code (github.com/SqueezeAILab/KVQuant):

- Every token keeps the same number of keys exactly, and of values half from each end (`quantizers.nuq`).
- The bias of the key projection comes off before quantization and is added afterwards: the same codes, smaller
  offsets.
- Codebooks are Fisher-weighted only if the calibration was (``qevict calibrate --fisher``). There is no Q-Norm.
- A prompt attends to its own keys and values in full precision; the original quantizes them first.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from pallas_kernels.float_bits import to_bits
from pallas_kernels.layer_slice import layer_slice
from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.coded_attention import coded_attention
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import merge_kv, split_kv
from qevict_jax.policies.kvquant_cache import KVQuantCache, KVQuantLayout, abstract_cache
from qevict_jax.policies.kvquant_cache import Options as Options
from qevict_jax.policies.kvquant_cache import plan_kvquant as plan_kvquant
from qevict_jax.quantizers.calibration_file import FILE, Calibration, load_calibration
from qevict_jax.quantizers.nuq import Codebook, decode_nuq_head, quantize_nuq, split_nuq
from qevict_jax.types import KVShape, QEvictError
from qevict_jax.windows import KeyTransform


def make_kvquant(plan: CachePlan, shape: KVShape, options: Options) -> "KVQuant":
    """The policy with its calibration.

    Raises:
        QEvictError: there is none, or it is of another model or another share of outliers.
    """
    path = options.calibration or str(Path(shape.checkpoint) / FILE)
    calibration = load_calibration(path, shape)
    if calibration.outliers != options.outliers:
        raise QEvictError(
            f"{path} was made for outliers={calibration.outliers}; give that, or run "
            f"`qevict calibrate {shape.checkpoint or 'MODEL'} --outliers {options.outliers}`"
        )
    return KVQuant(plan, calibration)


@dataclass(frozen=True)
class KVQuant:
    """KVQuant behind the policy interface. No event happens; ``event_steps`` steps are compiled together."""

    plan: CachePlan
    calibration: Calibration
    event_steps: int = 8

    @property
    def layout(self) -> KVQuantLayout:
        """Static numbers."""
        return self.plan.layout

    def init(self, batch: int) -> KVQuantCache:
        """An empty cache."""
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_cache(self.layout, batch))

    def admit(
        self, cache: KVQuantCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform
    ) -> KVQuantCache:
        """Quantizes the prompt; what lies beyond a row's length is overwritten before it is seen."""
        batch, size = prompt.k.shape[:2]
        positions = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
        tokens = merge_kv(prompt.k.astype(jnp.float32), prompt.v.astype(jnp.float32))
        return self._write(cache, layer, tokens, positions, jnp.ones((batch, size), bool), transform)

    def admitted(self, cache: KVQuantCache, length: Int[Array, "B"]) -> KVQuantCache:
        """Sets the lengths."""
        return replace(cache, length=length)

    def attend(
        self,
        cache: KVQuantCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[KVQuantCache, Float[Array, "B T H D"], None]:
        """Quantizes the new tokens, then attends to everything, those included."""
        layout, shape = self.layout, self.layout.shape
        batch = valid.shape[0]
        positions = cache.length[:, None] + jnp.arange(valid.shape[1], dtype=jnp.int32)
        cache = self._write(cache, layer, tokens, positions, valid, transform)
        at = layout.sink + jnp.arange(layout.slots, dtype=jnp.int32)
        cos, sin = (x.T for x in cos_sin(at, transform.inv_freq))
        book = self._book(layer)
        bias = jnp.zeros_like(book.center) if transform.bias is None else transform.bias[layer].astype(jnp.float32)

        def decode(head: tuple) -> tuple[Float[Array, "D S"], Float[Array, "D S"]]:
            part, center, radius, bias = head
            keys, values = decode_nuq_head(part, center, radius, book.key_poles, book.value_poles)
            low, high = jnp.split(keys + bias[:, None], 2)
            return jnp.concatenate([low * cos - high * sin, high * cos + low * sin]), values

        codes = split_nuq(jax.tree.map(lambda x: layer_slice(x, layer), cache.codes), shape.kv_heads, shape.head_dim)
        out, _ = coded_attention(
            q,
            positions,
            valid,
            coded=(codes, *(jnp.tile(x, (batch, 1)) for x in (book.center, book.radius, bias))),
            coded_positions=jnp.broadcast_to(at, (batch, layout.slots)),
            decode=decode,
            plain=None if cache.sinks is None else layer_slice(cache.sinks, layer),
            plain_positions=jnp.broadcast_to(jnp.arange(layout.sink, dtype=jnp.int32), (batch, layout.sink)),
            kv_heads=shape.kv_heads,
            kv_dtype=shape.dtype,
        )
        return cache, out, None

    def observe(self, cache: KVQuantCache, seen: None, count: Int[Array, "B"]) -> KVQuantCache:
        """Advances the lengths."""
        return replace(cache, length=cache.length + count)

    def route(self, cache: KVQuantCache, transform: KeyTransform) -> KVQuantCache:
        """Nothing moves."""
        return cache

    def placement(self, cache: KVQuantCache) -> Int8[Array, "L B 1 S"]:
        """Sinks, then codes."""
        position = jnp.arange(self.plan.total_len)
        tier = jnp.where(position < self.layout.sink, jnp.int8(Tier.SINK), jnp.int8(Tier.QUANTIZED))
        tier = jnp.where(position < cache.length[:, None], tier, jnp.int8(Tier.UNSEEN))
        return jnp.broadcast_to(tier[None, :, None], (self.layout.shape.layers, tier.shape[0], 1, tier.shape[1]))

    def _book(self, layer: Int[Array, ""]) -> Codebook:
        made = self.calibration
        low, high = jnp.asarray(made.key_range)[:, layer]
        poles = (jnp.asarray(x[self.layout.bits])[layer] for x in (made.key_poles, made.value_poles))
        return Codebook((low + high) / 2, (high - low) / 2, *poles)

    def _write(
        self,
        cache: KVQuantCache,
        layer: Int[Array, ""],
        tokens: Float[Array, "B T K_2_D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> KVQuantCache:
        """Stores tokens at positions; those that are not valid are dropped."""
        layout, shape = self.layout, self.layout.shape
        batch = jnp.arange(tokens.shape[0])[:, None]
        keys, values = split_kv(tokens, shape.kv_heads)
        cos, sin = cos_sin(positions, transform.inv_freq)
        keys = rotate(keys, cos, -sin)
        if transform.bias is not None:
            keys = keys - transform.bias[layer].astype(jnp.float32)
        made = quantize_nuq(keys, values, self._book(layer), layout.outliers)
        slot = jnp.where(valid & (positions >= layout.sink), positions - layout.sink, layout.slots)
        codes = jax.tree.map(lambda stack, new: stack.at[layer, batch, slot].set(new, mode="drop"), cache.codes, made)
        sinks = cache.sinks
        if sinks is not None:
            row = jnp.where(valid, positions, layout.sink)
            sinks = sinks.at[layer, batch, row].set(to_bits(tokens, shape.dtype), mode="drop")
        return replace(cache, sinks=sinks, codes=codes)
