# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A policy at work on known tokens: where every position is after each event, and what its windows received."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int8

from qevict_jax.cache import PerWindow, TieredCache
from qevict_jax.evaluation.prompt_record import PromptRecord, admit_record
from qevict_jax.models import LanguageModel
from qevict_jax.models.steps import Program, step_logits
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Policy, Prompt
from qevict_jax.policies.qevict import QEvict
from qevict_jax.types import QEvictError
from qevict_jax.windows import KeyTransform


@dataclass(frozen=True)
class PolicyTrace:
    """One article seen through one policy.

    Attributes:
        placement: ``[E, L, heads, S]`` int8, `Tier` of each position after each event, the first after prefill; heads
            is K, or 1 if the heads of a layer share it.
        interval: decode steps between events.
        window_mass: ``[E-1, L, windows]`` float32, attention that each window received between events, mean over
            heads, under the policy's own execution; None for a policy without windows.
        nll: ``[N]``, minus the log-probability of the token that follows each fed one, nats; None without execution.
        plan: capacities and bytes; None without execution.
        kv_bytes: bytes of the real arrays; 0 without execution.
    """

    placement: Int8[np.ndarray, "E L heads S"]
    interval: int
    window_mass: Float[np.ndarray, "E-1 L windows"] | None = None
    nll: Float[np.ndarray, "N"] | None = None
    plan: CachePlan | None = None
    kv_bytes: int = 0

    @property
    def events(self) -> Int[np.ndarray, "E"]:
        """Decode steps before each event."""
        return np.arange(len(self.placement)) * self.interval


def trace_policy(model: LanguageModel, policy: Policy, record: PromptRecord, tokens: np.ndarray) -> PolicyTrace:
    """Feeds known tokens through a policy.

    Args:
        model: the model.
        policy: any cache policy.
        record: the prompt, from `evaluation.teacher_forcing.record_prompt`, one row.
        tokens: ``[N + 1]``, the tokens after the prompt; the last is only looked up.

    Raises:
        QEvictError: if N is not a multiple of the steps between the policy's events.
    """
    steps, interval = len(tokens) - 1, policy.event_steps
    if steps % interval:
        raise QEvictError(f"steps={steps} must be a multiple of {interval}, the steps between events of this policy")
    watched = Watched(policy) if isinstance(policy, QEvict) else policy
    first, out, cache = _run(model.program, model.params, watched, record, jnp.asarray(tokens, jnp.int32)[None])
    placement = np.concatenate([np.asarray(first)[None], np.asarray(out["placement"])])[:, :, 0]
    mass = out.get("window_mass")
    return PolicyTrace(
        placement,
        interval,
        None if mass is None else np.asarray(mass)[:, :, 0],
        np.asarray(out["nll"]).reshape(-1),
        policy.plan,
        sum(x.nbytes for x in jax.tree.leaves(cache.inner if isinstance(cache, WatchedCache) else cache)),
    )


@partial(jax.jit, static_argnames=("program", "policy"))
def _run(
    program: Program, params: nnx.State, policy: Policy, record: PromptRecord, tokens: Int[Array, "1 fed"]
) -> tuple[Int8[Array, "L 1 heads S"], dict[str, Array], Any]:
    """Placement after prefill, what each block of steps and its event gave, and the last cache."""
    transform = program.transform(program.bind(params))
    width = policy.event_steps
    cache = admit_record(policy, record, transform)
    first = policy.placement(cache)

    def block(cache: Any, start: Array) -> tuple[Any, dict[str, Array]]:
        part = lax.dynamic_slice_in_dim(tokens, start, width + 1, axis=1)
        logits, cache = step_logits(program, params, policy, cache, part[:, :-1], jnp.full((1,), width, jnp.int32))
        nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), part[:, 1:, None], axis=-1)[0, :, 0]
        out = {"nll": nll}
        if isinstance(cache, WatchedCache):
            out["window_mass"] = _by_window(cache, policy.plan.total_len)
        cache = policy.route(cache, transform)
        return cache, out | {"placement": policy.placement(cache)}

    starts = jnp.arange((tokens.shape[1] - 1) // width, dtype=jnp.int32) * width
    cache, out = lax.scan(block, cache, starts)
    return first, out, cache


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class WatchedCache:
    """A tiered cache and the attention that its slots received from the newest tokens."""

    inner: TieredCache
    seen: PerWindow

    @property
    def length(self) -> Int[Array, "B"]:
        """Tokens seen by each row."""
        return self.inner.length


@dataclass(frozen=True)
class Watched:
    """A policy with windows that also keeps what `observe` was told."""

    policy: QEvict

    @property
    def plan(self) -> CachePlan:
        """That of the policy, as everything below."""
        return self.policy.plan

    @property
    def event_steps(self) -> int:
        """W."""
        return self.policy.event_steps

    def init(self, batch: int) -> WatchedCache:
        """An empty cache."""
        inner = self.policy.init(batch)
        return WatchedCache(inner, jax.tree.map(jnp.zeros_like, inner.score))

    def admit(
        self, cache: WatchedCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform
    ) -> WatchedCache:
        """Stores one layer of a prompt."""
        return replace(cache, inner=self.policy.admit(cache.inner, layer, prompt, transform))

    def admitted(self, cache: WatchedCache, length: Int[Array, "B"]) -> WatchedCache:
        """Closes a prefill."""
        return replace(cache, inner=self.policy.admitted(cache.inner, length))

    def attend(
        self,
        cache: WatchedCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[WatchedCache, Float[Array, "B T H D"], PerWindow]:
        """Attends."""
        inner, out, seen = self.policy.attend(cache.inner, layer, q, tokens, valid, transform)
        return replace(cache, inner=inner), out, seen

    def observe(self, cache: WatchedCache, seen: PerWindow, count: Int[Array, "B"]) -> WatchedCache:
        """Keeps the mass."""
        return WatchedCache(self.policy.observe(cache.inner, seen, count), seen)

    def route(self, cache: WatchedCache, transform: KeyTransform) -> WatchedCache:
        """One routing event."""
        return replace(cache, inner=self.policy.route(cache.inner, transform))

    def placement(self, cache: WatchedCache) -> Int8[Array, "L B heads S"]:
        """The tier of every position."""
        return self.policy.placement(cache.inner)


def _by_window(cache: WatchedCache, total_len: int) -> Float[Array, "L B windows"]:
    """The newest mass of each window, wherever it lies; 0 where it is gone."""
    inner, seen, layout = cache.inner, cache.seen, cache.inner.layout
    count = max(0, total_len - layout.sink) // layout.window
    layers, batch = seen.ring.shape[:2]
    base = inner.aged[:, None]
    ring = base + (jnp.arange(layout.ring_windows) - base) % layout.ring_windows
    parts = [(jnp.broadcast_to(ring, (layers, *ring.shape)), seen.ring)]
    if inner.full_window is not None and seen.full is not None:
        parts.append((inner.full_window, seen.full))
    if inner.code_window is not None and seen.quant is not None:
        parts.append((inner.code_window, seen.quant))
    mass = jnp.zeros((layers, batch, count + 1), jnp.float32)
    rows = jnp.arange(layers)[:, None, None], jnp.arange(batch)[:, None]
    for windows, received in parts:
        # slots that are empty or dormant received nothing, and go to the place behind the windows
        mass = mass.at[*rows, jnp.where(windows >= 0, jnp.minimum(windows, count), count)].add(received)
    return mass[:, :, :count]
