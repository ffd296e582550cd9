# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`generate` and `stream` on a tiny model: batches, ends, log-probabilities, bytes, compilations and bad input."""

import copy
import dataclasses
import logging
import re

import chex
import jax
import numpy as np
import pytest

from qevict_jax import CacheConfig, QEvictError, Sampling, generate, plan_cache, stream
from qevict_jax.generate import bucket, encode_prompt
from qevict_jax.models import steps
from tests.converted import load_converted
from tests.tiny_tokenizer import BOS, token_id

LOSSY = CacheConfig(budget=0.55, kv_dtype="float32", recent=8, quant_fraction=0.6)
FULL = CacheConfig.full("float32")
STEPS = 21  # no multiple of W


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("generate"), "llama")


@pytest.fixture(scope="module")
def endless(model):
    """The model with an EOS that it does not draw here."""
    return ending_on(model, 297)


@pytest.fixture(scope="module")
def prompts():
    """Token ids in one bucket: one token, fewer than sink + recent, and enough to fill every tier."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, length).tolist() for length in (1, 9, 33, 60)]


@pytest.fixture(scope="module")
def answers(endless, prompts):
    """What the lossy cache answers to the batch."""
    return generate(endless, prompts, cache=LOSSY, max_new_tokens=STEPS)


def ending_on(model, *tokens):
    """The model with other EOS ids."""
    tokenizer = copy.copy(model.tokenizer)
    tokenizer.eos_ids = frozenset(tokens)
    return dataclasses.replace(model, tokenizer=tokenizer)


def test_a_batch_gives_what_each_prompt_gives_alone(endless, prompts, answers):
    for prompt, answer in zip(prompts, answers, strict=True):
        (alone,) = generate(endless, [prompt], cache=LOSSY, max_new_tokens=STEPS)
        assert alone.tokens == answer.tokens
        assert (alone.kv_bytes, alone.ratio_own) == (answer.kv_bytes, answer.ratio_own)


def test_every_row_gets_the_tokens_it_asked_for(prompts, answers):
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer.tokens) == STEPS and answer.finish_reason == "length"
        assert answer.prompt_tokens == len(prompt)


def test_bytes_are_those_of_the_plan(endless, answers):
    plan = plan_cache(endless.config.kv_shape("float32"), LOSSY, bucket(60) + 64)
    for answer in answers:
        assert answer.kv_bytes == plan.kv_bytes <= 0.55 * plan.full_kv_bytes
        assert answer.full_kv_bytes == plan.full_kv_bytes
        assert answer.ratio_allocated == plan.ratio
        # the token drawn last is never fed
        own = (answer.prompt_tokens + STEPS - 1) * plan.full_kv_bytes // plan.total_len
        assert answer.ratio_own == plan.kv_bytes / own


def test_a_stream_that_is_read_again_counts_its_times_anew(endless):
    pieces = stream(endless, [1] * 20, cache=LOSSY, max_new_tokens=STEPS)
    for _ in range(2):
        before = pieces._batch.engine.spent
        list(pieces)
        assert pieces.result is not None
        times = pieces._batch.engine.spent.since(before)
        found = pieces.result
        counted = (found.time_to_first_token, found.time_per_token * (STEPS - 1), found.compile_time)
        assert counted == pytest.approx(tuple(times))


def test_exact_lengths_are_exact(model):
    assert stream(model, [1] * 60, cache=FULL, max_new_tokens=STEPS, buckets=False).policy.plan.total_len == 60 + STEPS


def test_log_probs_are_those_of_a_plain_pass(endless, prompts):
    answers = generate(endless, prompts, cache=FULL, max_new_tokens=STEPS, log_probs=True)
    for prompt, answer in zip(prompts, answers, strict=True):
        tokens = np.array([*prompt, *answer.tokens], np.int32)
        log_probs = np.asarray(jax.nn.log_softmax(endless.logits(tokens[None, :-1])[0]))[len(prompt) - 1 :]
        assert log_probs.argmax(axis=-1).tolist() == list(answer.tokens)
        expected = log_probs[np.arange(STEPS), answer.tokens]
        np.testing.assert_allclose(answer.log_probs, expected, rtol=0, atol=2e-4)


def test_log_probs_only_on_request(answers):
    assert all(answer.log_probs is None for answer in answers)


def test_eos_tokens_end_their_rows_only(model, prompts, answers):
    eos = {answers[3].tokens[13], answers[1].tokens[0]}
    ended = generate(ending_on(model, *eos), prompts, cache=LOSSY, max_new_tokens=STEPS)
    assert (ended[1].text, len(ended[1].tokens), ended[1].finish_reason) == ("", 1, "stop")
    for before, after in zip(answers, ended, strict=True):
        first = next((at for at, token in enumerate(before.tokens) if token in eos), None)
        if first is None:
            assert after.tokens == before.tokens and after.finish_reason == "length"
        else:
            assert after.tokens == before.tokens[: first + 1] and after.finish_reason == "stop"
            assert after.text == model.tokenizer.decode(before.tokens[:first])


def test_stop_strings_end_their_rows(endless, prompts, answers):
    stop = answers[3].text[4:7]
    stopped = generate(endless, prompts, cache=LOSSY, max_new_tokens=STEPS, stop=[stop])
    assert stopped[3].finish_reason == "stop"
    for before, after in zip(answers, stopped, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.tokens == before.tokens[: len(after.tokens)]
        assert (after.finish_reason == "stop") == (stop in before.text)


@pytest.mark.parametrize("stopping", [False, True])
def test_a_stream_gives_the_same_tokens_and_text(endless, prompts, answers, stopping):
    stop = [answers[3].text[4:7]] if stopping else []
    pieces = stream(endless, prompts[3], cache=LOSSY, max_new_tokens=STEPS, stop=stop)
    text = "".join(pieces)
    assert pieces.result is not None and pieces.result.text == text
    assert text == (answers[3].text.partition(stop[0])[0] if stopping else answers[3].text)
    assert pieces.result.tokens == answers[3].tokens[: len(pieces.result.tokens)]
    assert pieces.result.finish_reason == ("stop" if stopping else "length")


def test_a_second_prompt_in_the_bucket_compiles_nothing(endless, prompts, monkeypatch, caplog):
    generate(endless, prompts[3:], cache=LOSSY, max_new_tokens=STEPS)
    chex.clear_trace_counter()
    for name in ("prefill", "step", "route"):
        monkeypatch.setattr(steps, name, chex.assert_max_traces(getattr(steps, name), n=0))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        (answer,) = generate(endless, [prompts[2] + [5] * 8], cache=LOSSY, max_new_tokens=STEPS + 3)
    assert len(answer.tokens) == STEPS + 3
    assert not [record.message for record in caplog.records if "Compiling" in record.message]
    with pytest.raises(AssertionError):  # the next bucket does trace
        generate(endless, [[5] * 65], cache=LOSSY, max_new_tokens=STEPS)


def test_buckets_waste_an_eighth_at_most():
    sizes = [bucket(length) for length in range(1, 40_000)]
    assert all(length <= size for length, size in enumerate(sizes, 1))
    assert all(size <= length * 9 / 8 + 1 for length, size in enumerate(sizes, 1) if length > 512)
    assert len(set(sizes)) < 70


def test_sampling_follows_the_seed_and_top_k_of_one_is_greedy(endless, prompts, answers):
    def tokens(top_k, seed=0):
        sampling = Sampling(temperature=2.0, top_k=top_k, seed=seed)
        return [
            answer.tokens for answer in generate(endless, prompts, cache=LOSSY, max_new_tokens=8, sampling=sampling)
        ]

    assert tokens(1) == [answer.tokens[:8] for answer in answers]
    assert tokens(50, 1) == tokens(50, 1)
    assert tokens(50, 1) != tokens(50, 2)


def test_text_ids_and_chat_are_prompts(model):
    ids = encode_prompt(model, "the sea")
    assert ids[0] == token_id(BOS) and ids == encode_prompt(model, ids)
    chat = encode_prompt(model, [{"role": "user", "content": "the sea"}])
    assert chat == model.tokenizer.chat([{"role": "user", "content": "the sea"}])
    assert chat.count(token_id(BOS)) == 1


def test_no_prompts_no_results(model):
    assert generate(model, []) == []


def test_the_budget_named_as_the_smallest_works(model):
    with pytest.raises(QEvictError, match="smallest budget that works") as caught:
        stream(model, [1] * 60, cache=CacheConfig(budget=0.01))
    found = re.search(r"works is ([0-9.]+) \(budget_bytes=([0-9]+)\)", str(caught.value))
    assert found is not None
    for budget in ({"budget": float(found[1])}, {"budget_bytes": int(found[2])}):
        assert stream(model, [1] * 60, cache=CacheConfig(**budget)).policy.plan.quant_windows > 0
    with pytest.raises(QEvictError, match="smallest"):
        stream(model, [1] * 60, cache=CacheConfig(budget_bytes=int(found[2]) - 1))


@pytest.mark.parametrize(
    "prompts, options, message",
    [
        ("text", {}, r"give \[prompt\]"),
        ([[]], {}, "prompt 0 is empty"),
        ([[1], [300]], {}, "prompt 1 holds token id 300"),
        ([[1], [-1]], {}, "token id -1"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens=0"),
        ([[1]], {"stop": ["a", ""]}, "empty stop string"),
        ([[1], [1] * 32_760], {}, "shorten the prompt to 32512 tokens"),
    ],
)
def test_bad_input_is_named(model, prompts, options, message):
    with pytest.raises(QEvictError, match=message):
        generate(model, prompts, **options)


def test_text_needs_a_tokenizer(model):
    mute = dataclasses.replace(model, tokenizer=None)
    with pytest.raises(QEvictError, match="no tokenizer"):
        encode_prompt(mute, "text")
    with pytest.raises(QEvictError, match="no tokenizer"):
        encode_prompt(mute, [{"role": "user", "content": "text"}])
