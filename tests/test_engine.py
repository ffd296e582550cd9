# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A row of a running batch gives what it gives alone in the same engine, bit for bit, whoever comes and goes."""

import logging
from functools import partialmethod

import jax
import numpy as np
import pytest

from qevict_jax import CacheConfig, QEvictError, Sampling
from qevict_jax.cache import TieredCache
from qevict_jax.engine import Engine, Request
from qevict_jax.models import LanguageModel
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters
from tests.policy_table import CASES
from tests.quick_compile import QUICK
from tests.random_model import CONFIGS, random_model

SLOTS, CONTEXT = 4, 128
LOSSY = CacheConfig(budget=0.5, kv_dtype="float32", recent=8, quant_fraction=0.6)


@pytest.fixture(scope="module")
def quick():
    """Programs compile with less effort."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", partialmethod(jax.stages.Lowered.compile, compiler_options=QUICK))
        yield


def language_model(name):
    random = random_model(name)
    return LanguageModel(random.config, random.program, random.params)


@pytest.fixture(scope="module")
def model():
    return language_model("plain")


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model, LOSSY, slots=SLOTS, max_context=CONTEXT, max_new_tokens=64, log_probs=True, eos={9, 17})


@pytest.fixture(scope="module")
def requests():
    """Prompts of one bucket, of all lengths; greedy and with settings of their own; answers of all lengths."""
    random = np.random.default_rng(0)

    def request(number):
        temperature = float(random.choice([0.0, 0.7, 1.5]))
        sampling = Sampling(
            temperature=temperature,
            top_k=int(random.choice([0, 5, 40])),
            top_p=float(random.choice([1.0, 0.9])),
            min_p=float(random.choice([0.0, 0.05])),
            seed=number,
        )
        ids = tuple(random.integers(0, 64, random.integers(1, 65)).tolist())
        return Request(ids, int(random.integers(1, 35)), sampling)

    return [request(number) for number in range(20)]


@pytest.fixture(scope="module")
def rows(engine, requests):
    """Every request, read."""
    return [engine.prefill([request]) for request in requests]


@pytest.fixture(scope="module")
def alone(engine, rows):
    """What every request gives with the other slots empty: ids and the bits of their log-probabilities."""
    return [finish(engine, row, number % SLOTS) for number, row in enumerate(rows)]


def finish(engine, row, slot):
    """All that a row draws in an empty engine."""
    assert engine.free == list(range(engine.slots))
    engine.insert(row, [slot])
    drawn = [engine.drawn()[slot]]
    while drawn[-1].active:
        drawn.append(engine.decode_block()[slot])
    engine.release(slot)
    return join(drawn)


def join(drawn):
    return tuple(zip(*[(token, bits) for piece in drawn for token, bits in pairs(piece)], strict=True))


def pairs(drawn):
    return zip(drawn.tokens, drawn.log_probs, strict=True)


def test_200_random_schedules_give_what_each_row_gives_alone(engine, rows, alone):
    """Rows join any free slot between any two blocks, end, or are released in the middle of their answer."""
    joined = released = shared = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        taken, waiting = {}, random.choice(len(rows), random.integers(2, 9), replace=False).tolist()
        while waiting or taken:
            while waiting and engine.free and random.random() < 0.7:
                slot = int(random.choice(engine.free))
                taken[slot] = (waiting.pop(), [])
                engine.insert(rows[taken[slot][0]], [slot])
                joined += 1
            shared += len(taken) > 1
            if not taken:
                continue
            for slot, drawn in engine.decode_block().items():
                number, pieces = taken[slot]
                pieces.append(drawn)
                leaves = random.random() < 0.1
                if leaves or not drawn.active:
                    so_far = join(pieces)
                    expected = [part[: len(so_far[0])] if leaves else part for part in alone[number]]
                    assert list(so_far) == expected, (seed, slot, number)
                    engine.release(slot)
                    del taken[slot]
                    released += leaves
    assert joined > 900 and released > 100 and shared > 500


def test_requests_end_by_eos_and_by_length(alone, requests, engine):
    ends = [(tokens[-1] in engine.eos, len(tokens) == request.max_new_tokens)
            for (tokens, _), request in zip(alone, requests, strict=True)]  # fmt: skip
    assert (True, False) in ends and (False, True) in ends
    assert all(any(end) for end in ends)


def test_nothing_compiles_when_rows_come_and_go(engine, requests, alone, caplog):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for number in (3, 4):
            assert finish(engine, engine.prefill([requests[number]]), number % SLOTS) == alone[number]
    assert not [record.message for record in caplog.records if "Compiling" in record.message]


def first_case_of_each_cache():
    """Names of cases, one for each kind of cache but the one that the schedules are about."""
    names = {}
    for name, case in CASES.items():
        shape = CONFIGS[case.model].kv_shape(case.config.kv_dtype)
        policy = make_policy(shape, case.config, case.total_len, platform="cpu")
        names.setdefault(jax.eval_shape(lambda policy=policy: policy.init(1)).__class__, name)
    return [name for kind, name in names.items() if kind is not TieredCache]


@pytest.mark.parametrize("name", first_case_of_each_cache())
def test_rows_of_every_kind_of_cache_join_bit_for_bit(name, quick):
    case = CASES[name]
    model = language_model(case.model)
    engine = Engine(
        model, case.config, slots=3, max_context=case.total_len, filters=Filters.of(Sampling()), log_probs=True
    )
    draws = np.random.default_rng(1)
    lengths = (case.prompt - 9, case.prompt // 2, 7)
    first, second, third = (
        engine.prefill([Request(draws.integers(0, 64, length).tolist(), 19)], size=case.prompt) for length in lengths
    )
    expected = [finish(engine, row, slot) for row, slot in ((first, 1), (second, 0), (third, 1))]
    engine.insert(first, [1])
    found = {1: [engine.decode_block()[1]], 0: []}
    engine.insert(second, [0])
    while found[1][-1].active:
        for slot, drawn in engine.decode_block().items():
            found[slot].append(drawn)
    assert join(found[1]) == expected[0]
    engine.release(1)
    engine.insert(third, [1])
    found[1] = []
    while not found[1] or found[0][-1].active or found[1][-1].active:
        for slot, drawn in engine.decode_block().items():
            found[slot].append(drawn)
    assert join(found[0]) == expected[1] and join(found[1]) == expected[2]


def test_bytes_are_those_of_the_plan(engine, rows):
    engine.insert(rows[0], [0])
    assert engine.kv_bytes == engine.plan.kv_bytes
    engine.release(0)


def test_slots_are_kept_apart(engine, rows):
    engine.insert(rows[0], [2])
    for slots in ([2], [4], [0, 1], []):
        with pytest.raises(ValueError, match="free are"):
            engine.insert(rows[1], slots)
    engine.since_event = 1  # as after a step
    with pytest.raises(ValueError, match="between blocks"):
        engine.insert(rows[1], [0])
    with pytest.raises(ValueError, match="use decode_step"):
        engine.decode_block()
    engine.since_event = 0
    engine.release(2)
    with pytest.raises(ValueError, match="slot 2 holds no row"):
        engine.release(2)


@pytest.mark.parametrize(
    "request_, message",
    [
        (Request((), 1), "prompt is empty"),
        (Request((1,), 65), r"max_new_tokens=65 must lie in 1 \.\. 64"),
        (Request((1,) * 100, 30), "a prompt of up to 98 fits"),
    ],
)
def test_requests_that_do_not_fit_are_told_what_would(engine, request_, message):
    with pytest.raises(QEvictError, match=message):
        engine.prefill([request_])


def test_an_engine_without_a_filter_refuses_it(model):
    engine = Engine(model, LOSSY, slots=1, max_context=CONTEXT, filters=Filters.of(Sampling(top_k=3)))
    with pytest.raises(QEvictError, match="without top_p, temperature"):
        engine.check(Request((1,), 1, Sampling(temperature=1.0, top_p=0.5)))


@pytest.mark.parametrize("sizes", [{"slots": 0, "max_context": 64}, {"slots": 1, "max_context": 40_000}])
def test_bad_sizes_are_named(model, sizes):
    with pytest.raises(QEvictError, match="slots=0 must be|max_context=40000 must lie"):
        Engine(model, LOSSY, **sizes)
