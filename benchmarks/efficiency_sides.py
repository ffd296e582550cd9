# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks.efficiency` compares: caches of ours on an `Engine`, and transformers' in another process."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peak_memory import ResidentPeak, program_bytes
from qevict_jax import CacheConfig, LanguageModel, Sampling
from qevict_jax.cache import nbytes
from qevict_jax.decoding import Rows
from qevict_jax.engine import Engine, Request
from qevict_jax.models.config import ModelConfig
from qevict_jax.sampling import Filters

_EVENTS = 5  # routing events timed after each answer


class Seconds(NamedTuple):
    """By the clock, and of processor time, which other processes on the machine do not lengthen."""

    wall: float
    cpu: float


class Side(Protocol):
    """One way to hold a cache. Between calls it holds the rows that it has read, until it shall forget them."""

    def read(self, prompts: np.ndarray) -> float:
        """Reads prompts ``[n, S]`` together and draws their first tokens; seconds."""
        ...

    def decode(self, batch: int, keep: bool) -> Seconds:
        """Decodes a batch of the rows that were read, each ``batch / n`` times; only the steps count.

        Args:
            batch: rows that decode together.
            keep: the rows that were read will be asked for again.
        """
        ...

    def forget(self) -> None:
        """Lets all rows go."""
        ...

    @property
    def kept(self) -> int:
        """Bytes of the rows that were read, in this process."""
        ...

    def restart_peak(self, others: int) -> None:
        """`resident_peak` counts from here.

        Args:
            others: bytes of rows that other sides of this process have kept; they do not count.
        """
        ...

    def resident_peak(self) -> int | None:
        """Most bytes that the process of this side held; None where that says nothing."""
        ...


class Ours:
    """A cache configuration on an engine, greedy and without an end of text.

    Attributes:
        engine: empty but while it decodes.
        event_seconds: of single routing events.
    """

    def __init__(self, model: LanguageModel, cache: CacheConfig, prompt: int, outputs: int, batch: int):
        """Compiles nothing yet.

        Args:
            model: what runs.
            cache: how its cache is held.
            prompt: tokens of a prompt.
            outputs: tokens of an answer.
            batch: rows that decode together.
        """
        self._model, self._outputs = model, outputs
        self.engine = Engine(
            model,
            cache,
            slots=batch,
            max_context=prompt + outputs,
            max_new_tokens=outputs,
            filters=Filters.of(Sampling()),
            eos=(),
            prompt_sizes=(prompt,),
        )
        self.event_seconds: list[float] = []
        self._rows: Rows | None = None
        self.restart_peak(0)

    def read(self, prompts: np.ndarray) -> float:
        self.forget()
        before = self.engine.spent
        self._rows = self.engine.prefill(
            [Request(ids, self._outputs, row=row) for row, ids in enumerate(prompts.tolist())]
        )
        return self.engine.spent.since(before).prefill

    def decode(self, batch: int, keep: bool) -> Seconds:
        rows = self._rows
        assert rows
        count = rows.state.count.shape[0]
        if count == batch and keep:  # else they become the batch themselves
            rows = jax.tree.map(jnp.copy, rows)
        for first in range(0, batch, count):
            self.engine.insert(rows, range(first, first + count))
        del rows
        if not keep:
            self.forget()
        before, cpu = self.engine.spent, time.process_time()
        self.engine.decode_all()
        seconds = Seconds(self.engine.spent.since(before).decode, time.process_time() - cpu)
        self._time_events(self.engine.withdraw())
        return seconds

    def _time_events(self, rows: Rows) -> None:
        state, compiled = rows.state, self.engine.compiled
        for _ in range(_EVENTS):
            before, began = compiled.seconds, time.perf_counter()
            state = jax.block_until_ready(compiled("event", self._model.params, state))
            self.event_seconds.append(time.perf_counter() - began - (compiled.seconds - before))

    def forget(self) -> None:
        self._rows = None

    @property
    def kept(self) -> int:
        return nbytes(self._rows)

    def restart_peak(self, others: int) -> None:
        self._peak, self._others = ResidentPeak(), others

    def resident_peak(self) -> int | None:
        peak = self._peak.read() if jax.default_backend() == "cpu" else None
        return None if peak is None else peak - self._others

    def memory(self, prompt: int, together: int) -> dict[str, int]:
        """Bytes of weights and of a row's cache, and the peaks of the two programs by the compiler's account.

        Compiles them, so that no turn has to.

        Args:
            prompt: tokens of a prompt.
            together: prompts that are read together. Those that are fewer than the batch are read while the batch that
                they will join stands beside the program that reads them.
        """
        compiled, params, slots = self.engine.compiled, self._model.params, self.engine.slots
        state, numbers = jax.eval_shape(lambda: compiled.decoder.empty(slots))
        prompts = (jax.ShapeDtypeStruct(axes, jnp.int32) for axes in ((together, prompt), (together,)))
        read = program_bytes(compiled.prepare("read", params, *prompts))
        decode = program_bytes(compiled.prepare("run", params, state, numbers))
        beside = nbytes(state) if together < slots else 0
        return {
            "weights": nbytes(params),
            "kv_per_row": self.engine.plan.kv_bytes,
            "full_kv_per_row": self.engine.plan.full_kv_bytes,
            "read_program": read,
            "decode_program": decode,
            "peak": max(decode, read + beside),
        }


class Peer:
    """The worker that runs transformers, with this interpreter: its environment needs torch.

    Attributes:
        version: of transformers and torch.
    """

    kept = 0

    def __init__(self, config: ModelConfig, dtype: str, outputs: int):
        """Starts it.

        Args:
            config: the model.
            dtype: of its weights and cache.
            outputs: tokens of an answer.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.transformers_cache"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._outputs = outputs
        self.version = self._ask({"config": transformers_config(config), "dtype": dtype})

    def read(self, prompts: np.ndarray) -> float:
        return self._call("read", tokens=prompts.tolist())

    def decode(self, batch: int, keep: bool) -> Seconds:
        return Seconds(*self._call("decode", batch=batch, steps=self._outputs - 1, keep=keep))

    def forget(self) -> None:
        self._call("forget")

    def restart_peak(self, others: int) -> None:
        self._call("restart_peak")

    def resident_peak(self) -> int | None:
        return self._call("resident_peak")

    def close(self) -> None:
        """Ends the worker."""
        self._process.communicate()

    def _call(self, name: str, **arguments: Any) -> Any:
        return self._ask({"call": name, **arguments})

    def _ask(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            sys.exit("the transformers worker ended; its message is above")


def transformers_config(config: ModelConfig) -> dict[str, Any]:
    """The configuration under transformers' names."""
    return {
        "model_type": config.architecture,
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "sliding_window": None,
    }
