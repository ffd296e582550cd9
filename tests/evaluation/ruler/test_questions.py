# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Every task at two lengths: the answer is in the text, the length within the limit, the parameters as published."""

import re
from collections import Counter

import pytest

from qevict_jax.evaluation.ruler import TASKS, Sources, make_questions, questions, ready_tasks
from qevict_jax.types import QEvictError
from tests.evaluation.ruler.sources import sources
from tests.evaluation.text_tokenizer import decode, tokenizer

LENGTHS = {name: 3000 for name in TASKS} | {"qa_1": 900, "qa_2": 900}  # the files of the tests are short
GENERATED = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
# keys, values of each key, queries; benchmarks of RULER, arXiv:2404.06654, appendix B
NEEDLES = {
    "niah_single_1": (1, 1, 1),
    "niah_single_2": (1, 1, 1),
    "niah_single_3": (1, 1, 1),
    "niah_multikey_1": (4, 1, 1),
    "niah_multivalue": (1, 4, 1),
    "niah_multiquery": (4, 1, 4),
}
NUMBER, UUID = r"\d{7}", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
NEEDLE = r"One of the special magic \w+ for (\S+) is: (\S+)\."


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return sources(tmp_path_factory.mktemp("ruler"))


def made(files, name, count=2, length=None, **options):
    options = {"chat": True, "sources": files, "context": 10_000} | options
    return make_questions(tokenizer(), [name], [length or LENGTHS[name]], count, **options)


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_is_in_the_text_and_the_length_is_used_and_kept(files, name):
    length = LENGTHS[name]
    for index, question in enumerate(made(files, name)):
        text = decode(question.tokens)
        assert (question.task, question.index) == (f"{name}@{length}", index)
        assert all(answer in text for answer in question.references[: None if name[:2] != "qa" else 1])
        assert question.max_new_tokens == GENERATED[name.partition("_")[0]]
        total = len(question.tokens) + question.max_new_tokens
        least = 0 if name == "qa_2" else 0.85  # all of the little file fits
        assert least * length < total <= length == question.prompt_capacity + question.max_new_tokens
        assert question.score(f"They are: {', '.join(question.references).upper()}.") == {"score": 1.0}
        assert question.score("I do not know.") == {"score": 0.0}


@pytest.mark.parametrize("name", TASKS)
def test_the_question_is_told_from_its_context(files, name):
    for chat in (True, False):
        (question,) = made(files, name, 1, chat=chat)
        cut = len(question.tokens) - question.question_tokens
        context, asked = decode(question.tokens[:cut]), decode(question.tokens[cut:])
        # what is searched is in the context, what is asked and how the answer begins behind it
        assert all(answer in context for answer in question.references[: None if name[:2] != "qa" else 1])
        assert re.match(r"(What (is|are)|Question:|Answer the question from)", asked) and len(asked) < 700
        assert ("[assistant]" in asked) == chat


@pytest.mark.parametrize("name", ["niah_single_2", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1"])
def test_samples_depend_on_seed_and_index_alone(files, name):
    two, three = made(files, name, 2), made(files, name, 3)
    assert [q.tokens for q in two] == [q.tokens for q in three[:2]]
    assert two[0].references != two[1].references
    assert made(files, name, 1, seed=7)[0].tokens != two[0].tokens


@pytest.mark.parametrize("name", NEEDLES)
def test_needles(files, name):
    keys, values, queries = NEEDLES[name]
    (question,) = made(files, name, 1)
    needles = re.findall(NEEDLE, decode(question.tokens))
    assert Counter(Counter(key for key, _ in needles).values()) == {values: keys}
    asked = [value for value in question.references]
    assert len(asked) == queries * values and set(asked) <= {value for _, value in needles}
    kind = UUID if name == "niah_single_3" else NUMBER
    assert all(re.fullmatch(kind, value) for _, value in needles)
    assert all(re.fullmatch(r"\S+-\S+", key) for key, _ in needles)


@pytest.mark.parametrize("name", ["niah_multikey_2", "niah_multikey_3"])
def test_other_needles_are_the_haystack(files, name):
    (question,) = made(files, name, 1)
    text = decode(question.tokens)
    needles = re.findall(NEEDLE, text)
    assert len(needles) > 8 and len(dict(needles)) == len(needles)
    key = next(key for key, value in needles if value in question.references)
    assert text.count(key) == 3  # the needle, the question and the beginning of the answer


def test_answers_of_several_queries_are_in_the_order_of_the_question(files):
    (question,) = made(files, "niah_multiquery", 1)
    text = decode(question.tokens)
    (asked,) = re.findall(r"What are all the special magic numbers for (.*?) mentioned", text)
    found = dict(re.findall(NEEDLE, text))
    assert [found[key] for key in re.split(r", and |, ", asked)] == list(question.references)


def test_one_answer_is_asked_for_in_the_singular(files):
    assert decode(made(files, "niah_single_1", 1)[0].tokens).endswith("mentioned in the text above is")
    assert decode(made(files, "niah_multivalue", 1)[0].tokens).endswith("mentioned in the text above are")


def test_the_essay_is_the_same_text_from_its_beginning_and_repeats(files):
    first, second = (re.sub(f" ?{NEEDLE}", "", decode(q.tokens)) for q in made(files, "niah_single_2", 2))
    assert first[200:1500] == second[200:1500]
    assert first.count("Sentence 0 speaks") > 1  # 40 sentences do not fill it


def test_a_chain_of_variables_in_order(files):
    (question,) = made(files, "vt", 1)
    text = decode(question.tokens)
    statements = re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", text)
    assert [name for name, _ in statements] == list(question.references) and len(statements) == 5
    assert [source for _, source in statements[1:]] == list(question.references[:-1])
    assert re.fullmatch(r"\d{5}", statements[0][1]) and f"the value {statements[0][1]}, they are" in text
    assert len(re.findall(r"VAR [A-Z]{3} = ", text)) == 5  # the worked example


@pytest.mark.parametrize("length, often, rarely, example", [(3000, 6, 1, (3, 1, 20)), (9000, 30, 3, (10, 3, 40))])
def test_common_words_by_their_counts(files, length, often, rarely, example):
    (question,) = made(files, "cwe", 1, length=length)
    lists = re.findall(r"comes? up most often\.\n(.*)\nQuestion", decode(question.tokens))
    counts = [Counter(re.findall(r"\d+\. ((?:(?! \d+\.).)+)", text)) for text in lists]
    assert {word for word, count in counts[1].items() if count == often} == set(question.references)
    assert set(counts[1].values()) == {often, rarely} and len(question.references) == 10
    assert (max(counts[0].values()), min(counts[0].values()), len(counts[0])) == example


def test_frequent_words_by_their_counts(files):
    (question,) = made(files, "fwe", 1)
    (text,) = re.findall(r"come up most often\.\n(.*)\nQuestion", decode(question.tokens))
    ranked = [word for word, _ in Counter(text.split()).most_common(4)]
    assert ranked == ["...", *question.references]
    counts = Counter(text.split())
    # counts fall with the square of the rank
    assert counts["..."] / counts[ranked[1]] == pytest.approx(4, rel=0.15)


def test_paragraphs_of_the_same_article_come_first(files):
    (question,) = made(files, "qa_1", 1, length=720)
    ships = re.findall(r"Ship (\d)-(\d)", decode(question.tokens))
    asked = re.findall(r"Where does ship (\d)-(\d) lie\?", decode(question.tokens))[0]
    assert asked in ships and 1 < len(ships) < 12
    same = sum(article == asked[0] for article, _ in ships)
    assert same == min(3, len(ships))


def test_questions_that_do_not_fit_are_passed_over(files):
    assert {q.references for q in made(files, "qa_2", 2)} == {("ship Ada",), ("ship Bea",)}
    with pytest.raises(QEvictError, match="2 of 3 questions of the file fit, 3 were asked for"):
        made(files, "qa_2", 3)


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("niah_single_9", {}, "no task niah_single_9; there are niah_single_1"),
        ("vt", {"length": 300}, "vt at 300 tokens: the question alone has"),
        ("vt", {"count": 0}, "0 samples"),
        ("vt", {"context": 800}, "a length of 900 tokens is beyond the model's context of 800"),
        ("qa_1", {"sources": Sources("text")}, "--squad FILE"),
        ("qa_2", {"sources": Sources("text")}, "--hotpot FILE"),
    ],
)
def test_bad_requests(files, name, change, message):
    with pytest.raises(QEvictError, match=message):
        made(files, name, **{"length": 900} | change)


@pytest.mark.parametrize(
    "tasks, lengths, message",
    [
        (["vt", "cwe", "vt"], [900], "the task vt is there twice"),
        (["vt"], [900, 1200, 900], "the length 900 is there twice"),
    ],
)
def test_what_is_named_twice_is_refused(files, tasks, lengths, message):
    with pytest.raises(QEvictError, match=message):
        make_questions(tokenizer(), tasks, lengths, 1, sources=files, context=10_000, chat=True)


def test_a_file_that_is_missing_is_known_before_any_sample_is_made(files, monkeypatch):
    monkeypatch.setattr(questions, "prompt_tokens", None)
    with pytest.raises(QEvictError, match="qa_1 needs a file: --squad FILE, dev-v2.0.json of SQuAD 2.0"):
        make_questions(tokenizer(), list(TASKS), [900], 1, sources=Sources("text"), context=10_000, chat=True)


def test_tasks_that_need_no_file_and_those_whose_file_is_there(files):
    assert ready_tasks(Sources("text")) == [name for name in TASKS if not name.startswith("qa")]
    assert ready_tasks(files) == list(TASKS)
