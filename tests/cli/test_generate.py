# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict generate` on a tiny model."""

import json

import pytest

FAST = ("--budget", "0.9", "--kv-dtype", "float32", "--max-new-tokens", "5")


def last_line(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_prompt_file_and_stdin_are_one_prompt(qevict, checkpoint, tmp_path):
    (tmp_path / "text").write_text("the sand and the sea")
    given = [
        last_line(qevict("generate", checkpoint, "the sand and the sea", *FAST, "--json")),
        last_line(qevict("generate", checkpoint, "--prompt-file", tmp_path / "text", *FAST, "--json")),
        last_line(qevict("generate", checkpoint, *FAST, "--json", stdin="the sand and the sea")),
        last_line(qevict("generate", checkpoint, "-", *FAST, "--json", stdin="the sand and the sea")),
    ]
    assert len({tuple(result["tokens"]) for result in given}) == 1
    assert given[0]["prompt_tokens"] == given[2]["prompt_tokens"]


def test_text_comes_before_the_json_and_figures_go_to_stderr(qevict, checkpoint):
    result = qevict("generate", checkpoint, "a", *FAST, "--json", "--log-probs")
    document = last_line(result)
    assert result.stdout.startswith(document["text"] + "\n")
    assert "KV cache" in result.stderr and "KV cache" not in result.stdout
    assert len(document["log_probs"]) == len(document["tokens"])
    assert document["kv_bytes"] <= 0.9 * document["full_kv_bytes"]


def test_a_raw_prompt_is_shorter_than_a_chat(qevict, checkpoint):
    chat = last_line(qevict("generate", checkpoint, "a", *FAST, "--json"))
    assert chat == last_line(qevict("generate", checkpoint, "a", *FAST, "--json", "--chat")) | {
        key: chat[key] for key in chat if key.endswith("time") or key.startswith("time")
    }
    assert last_line(qevict("generate", checkpoint, "a", *FAST, "--json", "--raw"))["prompt_tokens"] == 2


def test_policy_full_uses_the_full_cache(qevict, checkpoint):
    document = last_line(qevict("generate", checkpoint, "a", "--policy", "full", "--max-new-tokens", "2", "--json"))
    assert document["kv_bytes"] == document["full_kv_bytes"] + 4


def test_a_question_is_seen_by_the_compression_or_not(qevict, checkpoint):
    words = ("generate", checkpoint, "the sand and the sea", "--question", "which sea?", *FAST, "--json")
    aware, agnostic = (last_line(qevict(*words, *flag)) for flag in ((), ("--question-agnostic",)))
    assert (aware["protocol"], agnostic["protocol"]) == ("question-aware", "question-agnostic")
    assert aware["question_tokens"] == agnostic["question_tokens"] > 0
    assert aware["prompt_tokens"] == agnostic["prompt_tokens"]


def test_sampling_options_take_effect(qevict, checkpoint):
    def tokens(*options):
        return last_line(qevict("generate", checkpoint, "a", *FAST, "--json", *options))["tokens"]

    assert tokens("--temperature", "5", "--seed", "1") == tokens("--temperature", "5", "--seed", "1")
    assert tokens("--temperature", "5", "--seed", "1") != tokens("--temperature", "5", "--seed", "2")
    assert tokens("--temperature", "5", "--top-k", "1") == tokens()


def test_a_stop_string_ends_the_answer(qevict, checkpoint):
    whole = last_line(qevict("generate", checkpoint, "a", *FAST, "--json"))["text"]
    document = last_line(qevict("generate", checkpoint, "a", *FAST, "--json", "--stop", whole[1]))
    assert document["text"] == whole[: whole.index(whole[1])] and document["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere", "a"], "nowhere"),
        (["CHECKPOINT", "a", "--bits", "7"], "bits=7 must be one of 2, 3, 4"),
        (["CHECKPOINT", "a", "--budget", "0.001"], "the smallest budget that works"),
        (["CHECKPOINT", "a", "--budget", "0.5", "--budget-bytes", "5"], "exclude each other"),
        (["CHECKPOINT", "a", "--max-new-tokens", "0"], "max_new_tokens=0"),
        (["CHECKPOINT", "a", "--temperature", "-1"], "temperature=-1"),
        (["CHECKPOINT", "a", "--stop", ""], "empty stop string"),
        (["CHECKPOINT", "a", "--log-probs"], "--json"),
        (["CHECKPOINT", "a", "--dtype", "int8"], "int8"),
        (["CHECKPOINT", "--prompt-file", "CHECKPOINT"], "is not a file"),
        (["CHECKPOINT", "a", "--question-agnostic"], "--question-agnostic needs a text and a --question"),
        (["CHECKPOINT"], "there is no prompt"),
        (["nowhere", "a", "--mesh", "data=2,model=2"], "data=2 splits the rows of a batch, and this is one"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(refused, checkpoint, arguments, message):
    arguments = [checkpoint if argument == "CHECKPOINT" else argument for argument in arguments]
    assert message in refused("generate", *arguments)


def test_a_mesh_is_asked_for_by_its_axes(qevict, checkpoint):
    for mesh, message in (("model=1000", "needs 1000 devices"), ("heads=2", "no axis 'heads'")):
        result = qevict("generate", checkpoint, "a", *FAST, "--mesh", mesh)
        assert result.exit_code == 1 and message in result.stderr
    result = qevict("generate", checkpoint, "a", *FAST, "--distributed", "auto")
    assert result.exit_code == 1 and "nothing without --mesh" in result.stderr
