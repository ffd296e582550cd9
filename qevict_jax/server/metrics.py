# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What Prometheus may ask about a server (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OUTCOMES = ("stop", "length", "cancelled", "failed")


class Metrics:
    """Counters of one server, and gauges that look at it when asked."""

    def __init__(
        self,
        *,
        slots: int,
        active: Callable[[], int],
        waiting: Callable[[], int],
        kv_bytes: Callable[[], int],
        full_kv_bytes: int,
    ):
        """Metrics at zero.

        Args:
            slots: sequences that decode at once.
            active: how many do.
            waiting: requests in the queue.
            kv_bytes: bytes of the cache of all slots.
            full_kv_bytes: bytes of a full cache of the same slots and context.
        """
        self._registry = CollectorRegistry()

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"qevict_{name}", text, registry=self._registry).set_function(value)

        gauge("slots", "Sequences that decode at once.", lambda: slots)
        gauge("slots_active", "Slots that are taken.", active)
        gauge("queue_length", "Requests that wait for a slot.", waiting)
        gauge("kv_cache_bytes", "Bytes of the KV cache of all slots.", kv_bytes)
        gauge("kv_cache_full_bytes", "Bytes of a full cache of the same slots and context.", lambda: full_kv_bytes)
        gauge("kv_cache_ratio", "KV cache as a fraction of the full one.", lambda: kv_bytes() / full_kv_bytes)
        tokens = Counter("qevict_tokens", "Tokens read and drawn.", ["kind"], registry=self._registry)
        self._read, self._drawn = tokens.labels("prompt"), tokens.labels("generated")
        ended = Counter("qevict_requests", "Requests that ended, by outcome.", ["outcome"], registry=self._registry)
        self._ended = {outcome: ended.labels(outcome) for outcome in OUTCOMES}
        self._refused = Counter("qevict_requests_refused", "Requests refused: queue full.", registry=self._registry)

    def read(self, tokens: int) -> None:
        """A prompt was read."""
        self._read.inc(tokens)

    def drew(self, tokens: int) -> None:
        """Tokens of an answer came."""
        self._drawn.inc(tokens)

    def ended(self, outcome: str) -> None:
        """A request ended."""
        self._ended[outcome].inc()

    def refused(self) -> None:
        """The queue was full."""
        self._refused.inc()

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)
