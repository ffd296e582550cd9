# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness runs local tasks on a compressed cache; needs the extra `harness`."""

import importlib.util
import json
import os
import sys
import warnings

import numpy as np
import pytest

from convert import convert
from qevict_jax import CacheConfig, generate, load
from qevict_jax.types import QEvictError
from tests.tiny_models import write_hf

if importlib.util.find_spec("lm_eval") is None:
    pytest.skip("lm_eval is not installed", allow_module_level=True)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.tasks import TaskManager

    from qevict_jax.evaluation.harness import HarnessModel, hand_over

pytestmark = pytest.mark.filterwarnings("ignore")
FULL = {"policy": "full", "kv_dtype": "float32"}
TASKS = {
    "gen": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: label
doc_to_choice: choices
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
""",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("harness")
    return str(convert(write_hf(directory / "hf", "llama"), directory / "checkpoint", dtype="float32", progress=False))


@pytest.fixture(scope="module")
def full(checkpoint):
    return HarnessModel(checkpoint, batch_size="2", max_length=160, max_gen_toks=8, **FULL)


def requests(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=words, idx=i) for i, words in enumerate(arguments)]


@pytest.fixture
def tasks(tmp_path):
    """Local task files over local data."""
    rows = [
        {"question": "the sea and the sand " * (3 + i), "answer": "x", "choices": [" sea", " the sand"], "label": i % 2}
        for i in range(3)
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, text in TASKS.items():
        head = f"task: local_{name}\ndataset_path: json\ntest_split: test\n"
        kwargs = {"data_files": {"test": str(tmp_path / "data.jsonl")}, "cache_dir": str(tmp_path / "cache")}
        (tmp_path / f"{name}.yaml").write_text(f"{head}dataset_kwargs: {json.dumps(kwargs)}\n{text}")
    return tmp_path


def test_every_kind_of_task_runs(full, tasks):
    names = [f"local_{name}" for name in TASKS]
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    results = simple_evaluate(
        full, tasks=names, task_manager=manager, apply_chat_template=True, bootstrap_iters=0, log_samples=True
    )
    assert results is not None
    assert 0 <= results["results"]["local_choice"]["acc,none"] <= 1
    assert 1 < results["results"]["local_rolling"]["bits_per_byte,none"] < 20
    (sample, *_) = results["samples"]["local_gen"]
    prompt = sample["arguments"][0][0]
    assert prompt.startswith("<|bos|>[user]the sea") and prompt.endswith("<|eot|>[assistant]")
    assert "torch" not in sys.modules


def test_answers_are_those_of_generate(checkpoint, full):
    prompts = ["the sea and the sand", "the stars", "an island in the sea"]
    arguments = {"until": ["q"], "max_gen_toks": 12}
    got = full.generate_until(requests("generate_until", *((prompt, arguments) for prompt in prompts)))
    model = load(checkpoint)
    expected = generate(model, prompts, cache=CacheConfig.full("float32"), max_new_tokens=12, stop=["q"])
    assert got == [result.text for result in expected]
    # a context that is too long loses its beginning
    long = full.generate_until(requests("generate_until", ("sea " * 200 + prompts[0], {"max_gen_toks": 4})))
    assert len(long) == 1


def test_log_likelihoods_are_those_of_a_plain_pass(checkpoint, full):
    pairs = [("the sea", " and the sand"), ("", "the stars"), ("the sand ", "and"), ("s", "ea")]
    got = full.loglikelihood(requests("loglikelihood", *pairs))
    model = load(checkpoint)
    for (context, continuation), (log_prob, greedy) in zip(pairs, got, strict=True):
        whole = model.tokenizer.encode(context + continuation)
        start = len(model.tokenizer.encode(context.rstrip())) if context else 1
        logits = np.asarray(model.logits(np.asarray([whole])))[0].astype(np.float64)
        normal = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = sum(normal[i - 1, whole[i]] for i in range(start, len(whole)))
        assert log_prob == pytest.approx(expected, abs=2e-3)
        assert greedy == all(normal[i - 1].argmax() == whole[i] for i in range(start, len(whole)))


def test_a_rolling_window_scores_every_token_once(full):
    text = "the sea and the sand and the stars over an island " * 8
    (got,) = full.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)))
    tokens = full.tok_encode(text, add_special_tokens=False)
    assert len(tokens) > full.max_length  # more than one window
    assert -12 * len(tokens) < got < -0.1 * len(tokens)


def test_settings_of_the_cache_and_of_generation(checkpoint, full):
    model = HarnessModel(checkpoint, preset="paper-gsm8k", budget=0.5, bits=4, max_gen_toks=5)
    assert model.cache.at(400) == CacheConfig.paper(budget=0.5, bits=4, recent=50)
    with pytest.raises(QEvictError, match="generation arguments penalty are unknown"):
        full.generate_until(requests("generate_until", ("sea", {"penalty": 4})))
    with pytest.raises(QEvictError, match="num_beams=4: there is no beam search; num_beams=1 works"):
        full.generate_until(requests("generate_until", ("sea", {"num_beams": 4})))
    draws = {
        full.generate_until(requests("generate_until", ("sea", {"do_sample": True, "temperature": 5.0, "seed": n})))[0]
        for n in (1, 2)
    }
    assert len(draws) == 2
    # tasks name a temperature of zero, or one beside do_sample=False
    for greedy in ({"temperature": 0.0}, {"do_sample": False, "temperature": 0.7}, {"num_beams": 1}):
        assert full.generate_until(requests("generate_until", ("sea", greedy))) == [
            full.generate_until(requests("generate_until", ("sea", {})))[0]
        ]


def test_repeats_of_a_sampled_request_are_draws_of_their_own(full):
    def asked(seed, *prompts):
        options = {"do_sample": True, "temperature": 5.0, "seed": seed}
        return full.generate_until(requests("generate_until", *((prompt, options) for prompt in prompts)))

    # more than one batch of two
    repeats = asked(3, *["sea"] * 5)
    assert len(set(repeats)) == 5
    assert repeats == [asked(3 + ordinal, "sea")[0] for ordinal in range(5)]


def test_an_open_message_stays_open(full):
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is"}]
    assert full.apply_chat_template(history, add_generation_prompt=False).endswith("[assistant]The answer is")
    assert full.apply_chat_template(history[:1]).endswith("[user]a<|eot|>[assistant]")
    assert "add_generation_prompt" in full.chat_template(True) and full.chat_template(False) is None


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"preset": "paper", "policy": "full"}, "exclude each other"),
        ({"preset": "fast"}, "begin with a preset or a policy"),
        ({"speed": 3}, "write field=value"),
        ({"batch_size": "auto"}, "no automatic one"),
        ({"max_length": 10**6}, "must lie in 2"),
        ({"max_batch_size": 4}, "no automatic batch size"),
    ],
)
def test_bad_model_arguments(checkpoint, settings, message):
    with pytest.raises(QEvictError, match=message):
        HarnessModel(checkpoint, **settings)


def test_the_command_hands_over(monkeypatch):
    import lm_eval.__main__

    seen = []
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: seen.append(list(sys.argv)))
    hand_over(["--tasks", "gsm8k", "--model_args", "pretrained=x,budget=0.2"])
    hand_over(["ls", "tasks"])
    assert seen[0] == [
        "lm-eval",
        "run",
        "--model",
        "qevict",
        "--tasks",
        "gsm8k",
        "--model_args",
        "pretrained=x,budget=0.2",
    ]
    assert seen[1] == ["lm-eval", "ls", "tasks"] and sys.argv[0] != "lm-eval"
    for arguments in (["--model", "hf"], ["run", "-M", "hf"], ["--device", "cuda:1"]):
        with pytest.raises(QEvictError):
            hand_over(arguments)
