# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""LongBench rows to prompts: formats, cuts, first lines, files of another form."""

import json

import pytest

from qevict_jax.evaluation.longbench import (
    PAPER_TASKS,
    RANKING_TASKS,
    TASKS,
    make_questions,
    published_limit,
    read_prompts,
)
from qevict_jax.evaluation.prompting import truncate_middle
from qevict_jax.types import QEvictError
from tests.evaluation.text_tokenizer import decode, tokenizer

# limits as published; few-shot and code tasks show their own format
LIMITS = {
    "narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "hotpotqa": 32, "2wikimqa": 32, "musique": 32,
    "gov_report": 512, "qmsum": 512, "multi_news": 512, "trec": 64, "triviaqa": 32, "samsum": 128,
    "passage_count": 32, "passage_retrieval_en": 32, "lcc": 64, "repobench-p": 64,
}  # fmt: skip
PLAIN = {"trec", "triviaqa", "samsum", "lcc", "repobench-p"}


def row(context="CONTEXT {input} \u2028 here", **changes):
    return {"context": context, "input": "INPUT", "answers": ["red", "blue"], "all_classes": ["red", "green"]} | changes


def write(directory, name, *rows):
    file = directory / f"{name}.jsonl"
    file.write_text("".join(json.dumps(content, ensure_ascii=False) + "\n" for content in rows), encoding="utf-8")
    return directory


def made(directory, name, **options):
    options = {"context": 4000, "chat": True} | options
    return make_questions(tokenizer(), directory, [name], **options)[0]


def test_the_tasks_of_the_tables():
    assert len(PAPER_TASKS) == 12 and set(RANKING_TASKS) - set(PAPER_TASKS) == {"passage_count", "passage_retrieval_en"}
    assert {name: TASKS[name].max_new_tokens for name in TASKS} == LIMITS


@pytest.mark.parametrize("name", TASKS)
def test_the_prompt_of_every_task(tmp_path, name):
    write(tmp_path, name, row())
    (question,) = made(tmp_path, name)
    text = decode(question.tokens)
    assert text.startswith("[user]") == text.endswith("[assistant]") == (name not in PLAIN)
    assert not decode(made(tmp_path, name, chat=False)[0].tokens).startswith("[user]")
    # the context is not filled in again, though it holds a brace
    assert text.count("CONTEXT {input} \u2028 here") == 1
    asks = name not in ("gov_report", "multi_news", "passage_count", "lcc")
    assert text.count("INPUT") == asks and "{context}" not in text
    assert question.references == ("red", "blue") and question.max_new_tokens == LIMITS[name]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("long", [False, True])
def test_the_question_is_told_from_its_context_even_of_a_cut_prompt(tmp_path, name, long):
    write(tmp_path, name, row("start " + "x" * (5000 if long else 5) + " end"))
    (question,) = made(tmp_path, name, context=1600)
    cut = len(question.tokens) - question.question_tokens
    context, asked = decode(question.tokens[:cut]), decode(question.tokens[cut:])
    assert "start" in context and context.rstrip().endswith("xx end") and "xx" not in asked
    assert TASKS[name].prompt.partition("{context}")[2].replace("{input}", "INPUT").strip() in asked
    assert asked.endswith("[assistant]") == (name not in PLAIN)


def test_the_best_reference_counts_and_only_the_first_line_of_few_shot_answers(tmp_path):
    write(tmp_path, "triviaqa", row())
    write(tmp_path, "hotpotqa", row())
    (few,), (one,) = made(tmp_path, "triviaqa"), made(tmp_path, "hotpotqa")
    assert few.score("\n\nBlue\nPassage: more")["score"] == 1
    assert one.score("Blue\nPassage: more")["score"] == pytest.approx(2 / 4)
    write(tmp_path, "trec", row())
    assert made(tmp_path, "trec")[0].score("red\ngreen") == {"score": 1.0}


def test_a_long_prompt_is_cut_in_its_middle(tmp_path):
    write(tmp_path, "hotpotqa", row("start " + "x" * 5000 + " end"))
    (question,) = made(tmp_path, "hotpotqa", context=1000, limit=4000)
    text = decode(question.tokens)
    assert 950 <= len(question.tokens) + 32 <= 1000
    assert text.startswith("[user]Answer the question") and "start" in text and "end" in text and "INPUT" in text
    assert text.endswith("Answer:[assistant]")
    (uncut,) = made(tmp_path, "hotpotqa", context=6000, limit=6000)
    assert len(uncut.tokens) > 5000


@pytest.mark.parametrize("name", ["hotpotqa", "triviaqa", "gov_report"])
def test_the_limit_counts_the_filled_template_without_chat_format_and_answer(tmp_path, name):
    write(tmp_path, name, row("start " + "x" * 5000 + " end"))
    template = decode(made(tmp_path, name, context=9000, limit=9000, chat=False)[0].tokens)
    filled = tokenizer().encode(template, add_bos=False)
    for chat in (True, False):
        (question,) = made(tmp_path, name, context=5000, limit=900, chat=chat)
        text = decode(question.tokens).removeprefix("[user]").removesuffix("[assistant]")
        kept = tokenizer().encode(text, add_bos=False)
        assert kept == filled[:450] + filled[-450:]


def test_the_limit_is_the_published_one(tmp_path):
    assert [published_limit(context) for context in (4096, 8192, 32768)] == [3500, 7500, 31500]
    assert published_limit(600) == 300
    write(tmp_path, "triviaqa", row("start " + "x" * 5000 + " end"))
    assert len(made(tmp_path, "triviaqa", context=4096)[0].tokens) == 3501  # with BOS
    with pytest.raises(QEvictError, match="a limit of 0 tokens"):
        made(tmp_path, "triviaqa", limit=0)


def test_rows_that_the_limit_would_cut_can_be_left_out(tmp_path):
    write(tmp_path, "hotpotqa", row("x" * 2000), row())
    assert [q.index for q in made(tmp_path, "hotpotqa", longest=3000, limit=1000)] == [1]
    assert [q.index for q in made(tmp_path, "hotpotqa", longest=3000, limit=3000)] == [0, 1]


def test_rows_that_are_too_long_can_be_left_out_and_keep_their_numbers(tmp_path):
    write(tmp_path, "hotpotqa", row("x" * 5000), row(), row(), row("y" * 5000), row())
    assert [q.index for q in made(tmp_path, "hotpotqa", longest=1000)] == [1, 2, 4]
    assert [q.index for q in made(tmp_path, "hotpotqa", longest=1000, count=2)] == [1, 2]
    assert [q.index for q in made(tmp_path, "hotpotqa", context=6000, shortest=1000)] == [0, 3]
    with pytest.raises(QEvictError, match="no row has a prompt of 1 to 10 tokens"):
        made(tmp_path, "hotpotqa", longest=10)


def test_prompts_of_the_users_own(tmp_path):
    write(tmp_path, "hotpotqa", row("THERE"))
    (tmp_path / "prompts.json").write_text(json.dumps({"hotpotqa": "{input}? {context}!", "dureader": "..."}))
    (question,) = made(tmp_path, "hotpotqa", chat=False, prompts=read_prompts(tmp_path / "prompts.json"))
    assert decode(question.tokens) == "INPUT? THERE!"
    (tmp_path / "prompts.json").write_text(json.dumps({"hotpotqa": "{input}?"}))
    with pytest.raises(QEvictError, match="hotpotqa have no {context}"):
        read_prompts(tmp_path / "prompts.json")
    (tmp_path / "prompts.json").write_text("[]")
    with pytest.raises(QEvictError, match="JSON object"):
        read_prompts(tmp_path / "prompts.json")


def test_truncation():
    assert truncate_middle(range(5), 5) == [0, 1, 2, 3, 4]
    assert truncate_middle(range(9), 4) == [0, 1, 7, 8] and truncate_middle(range(9), 5) == [0, 1, 6, 7, 8]


@pytest.mark.parametrize(
    "content, message",
    [("{}\n", "line 1"), ('\n{"context": 1}\n', "line 2"), ("x", "line 1"), (json.dumps(row(answers=[])), "line 1")],
)
def test_files_of_another_form(tmp_path, content, message):
    (tmp_path / "qasper.jsonl").write_text(content)
    with pytest.raises(QEvictError, match=message):
        made(tmp_path, "qasper")


def test_bad_requests(tmp_path):
    with pytest.raises(QEvictError, match="data.zip"):
        made(tmp_path, "qasper")
    with pytest.raises(QEvictError, match="no task nosuch; there are narrativeqa"):
        made(tmp_path, "nosuch")
    write(tmp_path, "qasper", row())
    with pytest.raises(QEvictError, match="the task qasper is there twice"):
        make_questions(tokenizer(), tmp_path, ["qasper", "qasper"], context=4000, chat=True)
    with pytest.raises(QEvictError, match="0 samples"):
        made(tmp_path, "qasper", count=0)
    with pytest.raises(
        QEvictError, match="qasper: .* no room beside an answer of 128 tokens .* 140; give a larger --context"
    ):
        made(tmp_path, "qasper", context=140)
