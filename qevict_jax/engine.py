# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A running batch that sequences join and leave between blocks of decode steps, without compiling anything anew.

A block ends with the routing event, so a row that joins stands where it would stand after reading its prompt alone.
Every program works on all slots, each row by itself: a row gives the same bits whoever is in the other slots.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.decode_state import Rows
from qevict_jax.decoding import Compiled, Decoder
from qevict_jax.interrupts import interrupts_deferred
from qevict_jax.models import LanguageModel
from qevict_jax.plan import CachePlan
from qevict_jax.policies import Policy, make_policy
from qevict_jax.sampling import ANY_SAMPLING, Filters, Numbers, Sampling
from qevict_jax.types import QEvictError

_MIN_BUCKET = 64


@dataclass(frozen=True)
class Request:
    """What one row is asked for.

    Attributes:
        ids: token ids of the prompt.
        max_new_tokens: the most tokens drawn.
        sampling: how they are drawn.
        row: tells requests with the same seed apart.
    """

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    row: int = 0


@dataclass(frozen=True)
class Drawn:
    """What a row has drawn since it was last looked at.

    Attributes:
        tokens: ids, in order; the one that ended the row included.
        log_probs: their natural log-probabilities under the model, if the engine keeps them.
        active: the row goes on.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    active: bool


class Spent(NamedTuple):
    """Seconds that an engine has spent.

    Attributes:
        prefill: on reading prompts and drawing first tokens; this and the next without compilation.
        decode: on decoding.
        compile: on compiling its programs.
    """

    prefill: float = 0.0
    decode: float = 0.0
    compile: float = 0.0

    def since(self, before: "Spent") -> "Spent":
        """The difference."""
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))


NOTHING_SPENT = Spent()


class Engine:
    """Slots in which sequences decode together.

    Attributes:
        slots: B, sequences that decode at once.
        max_context: tokens of prompt and output of a sequence; a budget ratio counts against a full cache of as many.
        eos: ids that end a row.
        compiled: the programs.
        since_event: decode steps since the last routing event; rows join when it is 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: CacheConfig | None = None,
        *,
        slots: int,
        max_context: int,
        max_new_tokens: int | None = None,
        filters: Filters = ANY_SAMPLING,
        log_probs: bool = False,
        eos: Iterable[int] | None = None,
        prompt_sizes: Sequence[int] = (),
    ):
        """An engine without rows; their cache is made when the first one joins.

        Args:
            model: from `load`.
            cache: how the KV cache is held, default `CacheConfig.tuned`.
            slots: sequences that decode at once.
            max_context: tokens of prompt and output of a sequence.
            max_new_tokens: the most that a request may draw, default ``max_context``.
            filters: the parts of `Sampling` that requests may use; fewer make a smaller program.
            log_probs: keep log-probabilities.
            eos: ids that end a row, default those of the model's tokenizer.
            prompt_sizes: ascending numbers of tokens that prompts are padded to, default those of `bucket`.

        Raises:
            QEvictError: a size that makes no sense, a context beyond the model's, or a budget too small for the cache.
        """
        if slots < 1:
            raise QEvictError(f"slots={slots} must be at least 1")
        if not 1 <= max_context <= model.config.max_position:
            raise QEvictError(
                f"max_context={max_context} must lie in 1 .. {model.config.max_position}, the model's own"
            )
        self.slots, self.max_context, self._prompt_sizes = slots, max_context, tuple(prompt_sizes)
        self._model, self._params = model, model.params
        if slots != (even := model.even(slots)):
            raise QEvictError(f"{slots} sequences at once do not go evenly onto the mesh; {even} do")
        self._policy = make_policy(model.config.kv_shape(), cache or CacheConfig(), max_context, split=model.split)
        if eos is None:
            eos = () if model.tokenizer is None else model.tokenizer.eos_ids
        self.eos, capacity = frozenset(eos), max_new_tokens or max_context
        ends = tuple(sorted(self.eos))
        decoder = Decoder(model.program, self._policy, filters, ends, capacity, log_probs, model.mesh)
        self.compiled = Compiled(decoder)
        self._prefill_seconds = self._decode_seconds = 0.0
        self.since_event = 0
        self._running: Rows | None = None
        self._seen: dict[int, int] = {}  # slots that are taken, and how many of their tokens were looked at
        self._ended: set[int] = set()  # slots of rows that are known to have ended

    @property
    def plan(self) -> CachePlan:
        """Capacities and bytes of a row's cache, on all devices that share it."""
        return self._policy.plan.on(self._model.split.devices)

    @property
    def spent(self) -> Spent:
        """Seconds since the engine was made."""
        return Spent(self._prefill_seconds, self._decode_seconds, self.compiled.seconds)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the real cache arrays, per slot; 0 before the first row."""
        return 0 if self._running is None else nbytes(self._running.state.cache) // self.slots

    @property
    def policy(self) -> Policy:
        """The cache policy."""
        return self._policy

    @property
    def cache(self) -> Any:
        """The cache of all slots; the next call that decodes takes it.

        Raises:
            ValueError: no row has joined yet.
        """
        return self._batch.state.cache

    @property
    def _batch(self) -> Rows:
        if self._running is None:
            raise ValueError("no row has joined yet")
        return self._running

    @property
    def free(self) -> list[int]:
        """Slots that a row may join."""
        return [slot for slot in range(self.slots) if slot not in self._seen]

    def check(self, request: Request) -> None:
        """Whether a row of this engine can hold a request.

        Raises:
            QEvictError: it cannot; the message says what would fit.
        """
        length, most = len(request.ids), self.compiled.decoder.capacity
        if length < 1:
            raise QEvictError("the prompt is empty: there is no token to continue from")
        if not 1 <= request.max_new_tokens <= most:
            raise QEvictError(f"max_new_tokens={request.max_new_tokens} must lie in 1 .. {most}")
        if length + request.max_new_tokens > self.max_context:
            raise QEvictError(
                f"a prompt of {length} tokens with max_new_tokens={request.max_new_tokens} is over the context of "
                f"{self.max_context} tokens; a prompt of up to {self.max_context - request.max_new_tokens} fits"
            )
        sampling, compiled = Filters.of(request.sampling), self.compiled.decoder.filters
        missing = [name for name in ("top_k", "top_p", "min_p") if getattr(sampling, name) > getattr(compiled, name)]
        missing += ["temperature"] if compiled.greedy and not sampling.greedy else []
        if missing:
            raise QEvictError(f"this engine was made without {', '.join(missing)}")

    def prefill(self, requests: Sequence[Request], *, size: int | None = None) -> Rows:
        """Reads prompts and draws the first token of each.

        Args:
            requests: one or several, read together.
            size: tokens that prompts are padded to, default the smallest size that holds the longest.

        Returns:
            Rows for `insert`.

        Raises:
            QEvictError: as `check`.
        """
        for request in requests:
            self.check(request)
        return self.begin(*self.read([request.ids for request in requests], size=size), requests)

    def read(self, prompts: Sequence[Sequence[int]], *, size: int | None = None) -> tuple[jax.Array, Any]:
        """Reads prompts into a fresh cache; logits ``[n, V]`` after each, and the cache, for `feed` or `begin`."""
        lengths = np.array([len(ids) for ids in prompts], np.int32)
        padded = np.zeros((len(prompts), size or self._prompt_size(int(lengths.max()))), np.int32)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids)] = ids
        return self._prefill("read", padded, lengths)

    def _prompt_size(self, longest: int) -> int:
        given = next((size for size in self._prompt_sizes if size >= longest), bucket(longest))
        return min(given, self.max_context)

    def prepare_reading(self) -> None:
        """Compiles reading one prompt of every one of ``prompt_sizes``, so that no request has to wait for it."""
        for size in self._prompt_sizes:
            shapes = (jax.ShapeDtypeStruct(axes, jnp.int32) for axes in ((1, size), (1,)))
            self.compiled.prepare("read", self._params, *shapes)

    def prepare_release(self) -> None:
        """Compiles ending a row before its time.

        Raises:
            ValueError: no row has joined yet.
        """
        self.compiled.prepare("release", self._batch.state, np.int32(0))

    def feed(self, cache: Any, rows: Sequence[Sequence[int]]) -> tuple[jax.Array, Any]:
        """Given ids go to a cache that was read, with a routing event after them.

        Args:
            cache: from `read` or `feed`, which takes it over.
            rows: up to ``policy.event_steps`` ids for each row; none for a row leaves it as it is.

        Returns:
            Logits after the last id of each row, meaningless for a row without any, and the cache.
        """
        padded = np.zeros((len(rows), self._policy.event_steps), np.int32)
        for row, ids in enumerate(rows):
            padded[row, : len(ids)] = ids
        return self._prefill("feed", cache, padded, np.array([*map(len, rows)], np.int32))

    def extend(self, logits: jax.Array, cache: Any, rows: Sequence[Sequence[int]]) -> tuple[jax.Array, Any]:
        """`feed` for any number of ids a row, in chunks; a row without any keeps its logits."""
        chunk = self._policy.event_steps
        for start in range(0, max(map(len, rows)), chunk):
            part = [ids[start : start + chunk] for ids in rows]
            after, cache = self.feed(cache, part)
            logits = jnp.where(np.array([*map(bool, part)])[:, None], after, logits)
        return logits, cache

    def begin(self, logits: jax.Array, cache: Any, requests: Sequence[Request]) -> Rows:
        """Draws the first token of each request from the logits after what it has read; takes the cache over."""
        numbers = Numbers.batch([request.sampling for request in requests], [request.row for request in requests])
        limit = np.array([request.max_new_tokens for request in requests], np.int32)
        active = np.ones((len(requests),), bool)
        return Rows(self._prefill("begin", cache, logits, active, limit, numbers), numbers)

    def _prefill(self, name: str, *args: Any) -> Any:
        began, before = time.perf_counter(), self.compiled.seconds
        with interrupts_deferred():
            result = jax.block_until_ready(self.compiled(name, self._params, *args))
        self._prefill_seconds += time.perf_counter() - began - (self.compiled.seconds - before)
        return result

    def insert(self, rows: Rows, slots: Sequence[int]) -> None:
        """Rows join the running batch in free slots, one for each.

        Rows for all slots of an empty engine become its batch themselves, without a copy. Otherwise they are copied,
        and may be inserted again.

        Raises:
            ValueError: the slots are taken, are not as many as the rows, or a block is not finished.
        """
        count = rows.state.count.shape[0]
        if len(slots) != count or len(set(slots)) != count or not set(slots) <= set(self.free):
            raise ValueError(f"{count} rows do not fit slots {list(slots)}; free are {self.free}")
        if self.since_event:
            raise ValueError(f"rows join between blocks, not {self.since_event} steps after one")
        with interrupts_deferred():
            if list(slots) == list(range(self.slots)):
                self._running = rows
            else:
                if self._running is None:
                    self._running = self.compiled.empty(self.slots)
                for row, slot in enumerate(slots):
                    self._running = self.compiled("insert", self._running, rows, np.int32(row), np.int32(slot))
            self._seen |= {slot: 0 for slot in slots}

    def drawn(self) -> dict[int, Drawn]:
        """What every taken slot has drawn since this was last asked."""
        if not self._seen:
            return {}
        with interrupts_deferred():
            news = self._news(self._seen)
            for slot, drawn in news.items():
                self._seen[slot] += len(drawn.tokens)
                if not drawn.active:
                    self._ended.add(slot)
        return news

    def row(self, slot: int) -> Drawn:
        """All that a row has drawn since it joined.

        Raises:
            ValueError: the slot is not taken.
        """
        self._check_taken(slot)
        return self._news({slot: 0})[slot]

    def _news(self, since: Mapping[int, int]) -> dict[int, Drawn]:
        state = self._batch.state
        # whole arrays to the host: slicing on the device would compile per length
        tokens, counts, active = (self._fetch(x) for x in (state.tokens, state.count, state.active))
        log_probs = None if state.log_probs is None else self._fetch(state.log_probs)
        news = {}
        for slot, seen in since.items():
            new = slice(seen, int(counts[slot]))
            given = None if log_probs is None else tuple(log_probs[slot, new].tolist())
            news[slot] = Drawn(tuple(tokens[slot, new].tolist()), given, bool(active[slot]))
        return news

    def _fetch(self, x: jax.Array) -> np.ndarray:
        return np.asarray(x) if self._model.mesh is None else self._model.mesh.fetch(x)

    def decode_block(self) -> dict[int, Drawn]:
        """Decode steps up to the next routing event, which ends the block; what was drawn, as `drawn`."""
        if self.since_event:
            raise ValueError(f"a block cannot begin {self.since_event} steps after the last one; use decode_step")
        self._decode("block")
        return self.drawn()

    def decode_step(self) -> dict[int, Drawn]:
        """One decode step, and the routing event if it is due."""
        self._decode("token")
        return self.drawn()

    def decode_all(self) -> dict[int, Drawn]:
        """Decodes until every row has ended."""
        self._decode("run")
        return self.drawn()

    def finish_block(self) -> None:
        """The routing event for decode steps since the last one, if there are any."""
        if self.since_event:
            self._decode("event")

    def _decode(self, name: str) -> None:
        state, numbers = self._batch
        began, before = time.perf_counter(), self.compiled.seconds
        with interrupts_deferred():
            state = self.compiled(name, self._params, state, *(() if name == "event" else (numbers,)))
            self.since_event = self.since_event + 1 if name == "token" else 0
            if self.since_event == self._policy.event_steps:
                state, self.since_event = self.compiled("event", self._params, state), 0
            self._running = Rows(jax.block_until_ready(state), numbers)
        self._decode_seconds += time.perf_counter() - began - (self.compiled.seconds - before)

    def release(self, slot: int) -> None:
        """Ends a row, if it has not ended, and frees its slot.

        Raises:
            ValueError: the slot is not taken.
        """
        self._check_taken(slot)
        with interrupts_deferred():
            if slot not in self._ended:
                state = self.compiled("release", self._batch.state, np.int32(slot))
                self._running = self._batch._replace(state=state)
            self._ended.discard(slot)
            del self._seen[slot]

    def withdraw(self) -> Rows:
        """Takes all rows out; the engine has none, as when it was made, and keeps its programs.

        Raises:
            ValueError: no row has joined yet.
        """
        rows = self._batch
        with interrupts_deferred():
            self._running, self.since_event = None, 0
            self._seen.clear()
            self._ended.clear()
        return rows

    def _check_taken(self, slot: int) -> None:
        if slot not in self._seen:
            raise ValueError(f"slot {slot} holds no row")


def bucket(length: int) -> int:
    """The padded size of a prompt: at most an eighth more, eight sizes per octave, 64 at least."""
    step = max(_MIN_BUCKET, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step
