# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled programs of generation, all built from one decode step and one routing event.

`read` takes prompts in and `begin` draws the first tokens; `run` decodes to the end under one `lax.while_loop`;
`block` is its body, used from Python where stop strings must be looked at or rows come and go; `token` and `event` are
the same step and event one by one, for streaming; `feed` takes given tokens, for a chat turn; `insert` and `release`
let a row join and leave a running batch. `qevict_jax.engine` calls them.
"""

import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from qevict_jax.decode_state import DecodeState, Rows
from qevict_jax.mesh import DATA, DeviceMesh
from qevict_jax.models import steps
from qevict_jax.policies import Policy
from qevict_jax.rows import put_row, row_axes
from qevict_jax.sampling import Filters, Numbers, Sampling, sample
from qevict_jax.sharded_programs import make_sharded, place_arguments, shard_program


@dataclass(frozen=True)
class Decoder:
    """The static half of generation; hashable, the key under which its programs are compiled.

    Attributes:
        program: the model.
        policy: the cache policy.
        filters: the sampling filters in use.
        eos: ids that end a row.
        capacity: M, the most tokens drawn.
        log_probs: whether log-probabilities are kept.
        mesh: the devices that share the work, if there are several; the methods are then the programs of one of them.
    """

    program: steps.Program
    policy: Policy
    filters: Filters
    eos: tuple[int, ...]
    capacity: int
    log_probs: bool = False
    mesh: DeviceMesh | None = None

    def read(
        self, params: nnx.State, prompts: Int[Array, "B S"], length: Int[Array, "B"]
    ) -> tuple[Float[Array, "B V"], Any]:
        """Reads prompts, padded on the right, into a fresh cache; logits after the last token of each."""
        return steps.prefill(self.program, params, self.policy, prompts, length)

    def begin(
        self,
        params: nnx.State,
        cache: Any,
        logits: Float[Array, "B V"],
        active: Bool[Array, "B"],
        limit: Int[Array, "B"],
        numbers: Numbers,
    ) -> DecodeState:
        """Draws the first token of every active row from the logits of what was read or fed."""
        return self.draw(self._state(cache, active & (limit > 0), limit), logits, numbers)

    def _state(self, cache: Any, active: Bool[Array, "B"], limit: Int[Array, "B"]) -> DecodeState:
        """Nothing drawn yet."""
        (batch,) = limit.shape
        return DecodeState(
            cache=cache,
            last=jnp.zeros((batch,), jnp.int32),
            tokens=jnp.zeros((batch, self.capacity), jnp.int32),
            log_probs=jnp.zeros((batch, self.capacity), jnp.float32) if self.log_probs else None,
            count=jnp.zeros((batch,), jnp.int32),
            active=active,
            limit=limit,
        )

    def draw(self, state: DecodeState, logits: Float[Array, "B V"], numbers: Numbers) -> DecodeState:
        """Draws the next token of every active row."""
        # a row that has ended asks for no random numbers any more
        numbers = numbers._replace(temperature=jnp.where(state.active, numbers.temperature, 0.0))
        chosen = jnp.where(state.active, sample(logits, self.filters, numbers, state.count), state.last)
        rows = jnp.arange(chosen.shape[0])
        column = jnp.where(state.active, state.count, self.capacity)
        log_probs = state.log_probs
        if log_probs is not None:
            log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)[:, 0]
            log_probs = log_probs.at[rows, column].set(log_prob, mode="drop")
        count = state.count + state.active.astype(jnp.int32)
        ended = jnp.isin(chosen, jnp.asarray(self.eos, jnp.int32)) | (count >= state.limit)
        return replace(
            state,
            last=chosen,
            tokens=state.tokens.at[rows, column].set(chosen, mode="drop"),
            log_probs=log_probs,
            count=count,
            active=state.active & ~ended,
        )

    def token(self, params: nnx.State, state: DecodeState, numbers: Numbers) -> DecodeState:
        """One decode step: feeds the newest token of every active row and draws the next."""
        fed = state.active.astype(jnp.int32)
        logits, cache = steps.step(self.program, params, self.policy, state.cache, state.last[:, None], fed)
        return self.draw(replace(state, cache=cache), logits, numbers)

    def event(self, params: nnx.State, state: DecodeState) -> DecodeState:
        """The routing event that follows every ``policy.event_steps`` decode steps."""
        return replace(state, cache=steps.route(self.program, params, self.policy, state.cache))

    def block(self, params: nnx.State, state: DecodeState, numbers: Numbers) -> DecodeState:
        """``policy.event_steps`` decode steps, or as many as any row still wants, and one event."""
        wanted = jnp.max(jnp.where(state.active, state.limit - state.count, 0))
        if self.mesh is not None:  # all devices in step
            wanted = lax.pmax(wanted, DATA)
        count = jnp.minimum(wanted, self.policy.event_steps)
        state = lax.fori_loop(0, count, lambda _, state: self.token(params, state, numbers), state)
        return self.event(params, state)

    def run(self, params: nnx.State, state: DecodeState, numbers: Numbers) -> DecodeState:
        """Decodes until every row has ended."""

        def goes_on(state: DecodeState) -> Bool[Array, ""]:
            some = state.active.any()
            return some if self.mesh is None else lax.pmax(some, DATA)

        return lax.while_loop(goes_on, lambda state: self.block(params, state, numbers), state)

    def feed(
        self, params: nnx.State, cache: Any, tokens: Int[Array, "B T"], count: Int[Array, "B"]
    ) -> tuple[Float[Array, "B V"], Any]:
        """Takes up to ``policy.event_steps`` given tokens a row and routes; logits after the last of them."""
        logits, cache = steps.step(self.program, params, self.policy, cache, tokens, count)
        return logits, steps.route(self.program, params, self.policy, cache)

    def empty(self, batch: int) -> Rows:
        """A batch in which no row is active."""
        zeros = jnp.zeros((batch,), jnp.int32)
        state = self._state(self.policy.init(batch), jnp.zeros((batch,), bool), zeros)
        return Rows(state, Numbers.of(*[Sampling()] * batch))

    def insert(self, running: Rows, rows: Rows, row: Int[Array, ""], slot: Int[Array, ""]) -> Rows:
        """Row ``row`` of some rows takes the place of row ``slot`` of the running batch; no other row is touched."""
        count = running.state.count.shape[0]
        here = None
        if self.mesh is not None:
            slot = slot - self._first(count)
            here = (slot >= 0) & (slot < count)
        return put_row(running, rows, row_axes(self.empty), row, slot, here)

    def release(self, state: DecodeState, slot: Int[Array, ""]) -> DecodeState:
        """Ends a row."""
        (count,) = state.active.shape
        ended = self._first(count) + jnp.arange(count, dtype=jnp.int32) == slot
        return replace(state, active=state.active & ~ended)

    def _first(self, count: int) -> Array | int:
        """Number of the first of the ``count`` rows that this device has of a running batch."""
        return 0 if self.mesh is None else lax.axis_index(DATA) * count


# programs that draw nothing: how tokens are drawn does not make them new ones
_DRAWLESS = ("read", "event", "feed")
# name of a program -> position of the argument whose memory the result reuses
DONATED = {
    **{name: (1,) for name in ("begin", "token", "event", "block", "run", "feed")},
    **{name: (0,) for name in ("insert", "release")},
    "read": (),
}


class Compiled:
    """The programs of a decoder, compiled when first called with new shapes; adds up what that took."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.seconds = 0.0

    def __call__(self, name: str, *args: Any) -> Any:
        """Runs a program of the decoder, compiling it first if these shapes are new."""
        executable = self.prepare(name, *args)
        if self.decoder.mesh is not None:
            args = place_arguments(self.decoder.mesh, self.decoder.policy, name, args)
        return executable(*args)

    def prepare(self, name: str, *args: Any) -> Any:
        """The executable of a program for arguments of these shapes, which may be `jax.ShapeDtypeStruct`."""
        leaves, tree = jax.tree.flatten(args)
        shapes = tuple((x.shape, x.dtype) for x in leaves)
        started = time.perf_counter()
        decoder = self.decoder
        if name in _DRAWLESS:
            decoder = replace(decoder, filters=Filters.of(Sampling()), eos=(), capacity=0, log_probs=False)
        executable = _executable(decoder, name, tree, shapes)
        self.seconds += time.perf_counter() - started
        return executable

    def empty(self, slots: int) -> Rows:
        """A running batch in which no row is active."""
        if self.decoder.mesh is None:
            return jax.jit(partial(self.decoder.empty, slots))()
        return make_sharded(self.decoder.mesh, self.decoder.policy, self.decoder.empty, slots)


@lru_cache(maxsize=256)
def _executable(decoder: Decoder, name: str, tree: Any, shapes: tuple) -> Any:
    """Ahead-of-time compilation, so that its time can be told from that of running."""
    abstract = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes])
    program = getattr(decoder, name)
    if decoder.mesh is None:
        jitted = jax.jit(program, donate_argnums=DONATED[name])
    else:
        jitted = shard_program(decoder.mesh, decoder.policy, name, program, abstract, DONATED[name])
    return jitted.lower(*abstract).compile()
