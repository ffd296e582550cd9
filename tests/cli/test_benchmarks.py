# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval ruler|longbench|gsm8k|ablation` and `qevict report`, on a tiny model or on answers made up."""

import datetime
import json
import re
import shutil
from csv import reader
from dataclasses import replace

import pytest

from qevict_jax import models
from qevict_jax.evaluation import FidelityResult, ablation, benchmark, runs
from qevict_jax.evaluation.answering import Answerer
from qevict_jax.evaluation.longbench import RANKING_TASKS
from qevict_jax.evaluation.runs import Run, read_configuration, read_lines
from qevict_jax.generate import Result
from qevict_jax.questions import AGNOSTIC, AWARE

RULER = ("eval", "ruler", "--tasks", "niah_single_1", "--lengths", "768", "--samples", "2", "--kv-dtype", "float32")
TWO_TIERS = "tuned quant_fraction=0"  # compiles fastest


@pytest.fixture
def made_up_answers(monkeypatch):
    """The full cache is right, others where the sample's number is even; nothing is compiled."""

    def answer(self, questions, capacity, policy, logits, record):
        full = policy.plan.config.policy == "full"

        def result(question):
            right = full or question.index % 2 == 0
            return Result(
                question.references[0] if right else "nothing",
                (1, 2, 3) if right else (1, 5, 3),
                *(None, "stop", len(question.tokens), policy.plan.kv_bytes, policy.plan.full_kv_bytes),
                *(policy.plan.ratio, policy.plan.ratio, 0.0, 0.0, 0.0),
            )

        return [result(question) for question in questions]

    monkeypatch.setattr(Answerer, "read", lambda self, questions, capacity: (None, None))
    monkeypatch.setattr(Answerer, "answer", answer)


class Killed(BaseException):
    """Nothing catches it."""


def test_a_run_that_is_killed_at_every_line_ends_like_one_that_is_not(qevict, checkpoint, tmp_path, monkeypatch):
    arguments = (*RULER, "--model", checkpoint, "--cache", TWO_TIERS, "--budgets", "0.5", "--batch-size", "2")
    result = qevict(*arguments, "--out", tmp_path / "whole")
    assert result.exit_code == 0, result.output
    assert "### RULER at 768 tokens" in result.stdout and f"| {TWO_TIERS} |" in result.stdout
    whole = (tmp_path / "whole" / "samples.jsonl").read_bytes()
    assert whole.count(b"\n") == 4

    append, torn = Run.append, tmp_path / "torn" / "samples.jsonl"

    def killed(self, line):
        append(self, line)
        with open(torn, "ab") as file:  # and half of the next line
            file.write(b'{"cache": "tuned @ 0.5", "ta')
        raise Killed

    monkeypatch.setattr(Run, "append", killed)
    for count in range(1, 5):
        with pytest.raises(Killed):
            qevict(*arguments, "--out", tmp_path / "torn", "--resume")
        assert torn.read_bytes().count(b"\n") == count
    monkeypatch.undo()
    assert qevict(*arguments, "--out", tmp_path / "torn", "--resume").exit_code == 0
    assert torn.read_bytes() == whole
    lines = read_lines(tmp_path / "torn")
    assert {line["cache"] for line in lines} == {"full", f"{TWO_TIERS} @ 0.5"}
    assert all(line["kv_ratio"] <= 0.5 for line in lines if line["cache"] != "full")
    assert all(len(line["tokens"]) == 128 or line["finish_reason"] == "stop" for line in lines)
    stored = read_configuration(tmp_path / "torn")
    assert len(stored["environments"]) == 5 and stored["expected"] == 4


def test_stop_texts_end_an_answer(qevict, checkpoint, tmp_path, monkeypatch):
    questions = []

    def first(run, model, given, caches, **options):
        # what the model really says decides what stops it
        (spoken,) = speak(model, given[:1])
        stop = spoken.text[2]
        (stopped,) = speak(model, [replace(given[0], stop=(stop,))])
        questions.append((spoken, stop, stopped))

    def speak(model, given):
        answerer = Answerer(model)
        ((capacity, batch),) = benchmark.make_batches(model, [replace(q, max_new_tokens=8) for q in given], 1)
        logits, record = answerer.read(batch, capacity)
        from qevict_jax.config import CacheConfig

        return answerer.answer(batch, capacity, answerer.policy(CacheConfig.full(), capacity), logits, record)

    monkeypatch.setattr(benchmark, "run_benchmark", first)
    write_gsm8k(tmp_path)
    files = ("--test", tmp_path / "gsm8k.jsonl", "--train", tmp_path / "gsm8k.jsonl", "--shots", "0", "--samples", "1")
    qevict("eval", "gsm8k", "--model", checkpoint, "--out", tmp_path / "run", *files, "--cache", "full")
    ((spoken, stop, stopped),) = questions
    assert stopped.text == spoken.text[: spoken.text.index(stop)] and stopped.finish_reason == "stop"
    assert stopped.tokens == spoken.tokens[: len(stopped.tokens)]


def write_gsm8k(directory):
    rows = [{"question": f"How much is {n}?", "answer": f"It is {n}.\n#### {n}"} for n in range(1, 13)]
    (directory / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write_longbench(directory, *names):
    row = {"context": "the sea " * 60, "input": "what?", "answers": ["the sand"], "all_classes": None}
    for name in names:
        (directory / f"{name}.jsonl").write_text("\n".join([json.dumps(row)] * 2))


def test_longbench_table_report_and_plot(qevict, checkpoint, tmp_path, made_up_answers):
    write_longbench(tmp_path, "qasper", "musique", "hotpotqa")
    base = ("eval", "longbench", "--model", checkpoint, "--data", tmp_path, "--tasks", "qasper,musique,hotpotqa")
    caches = ("--preset", "tuned", "--cache", "paper recent=16", "--budgets", "0.5,0.3")
    result = qevict(*base, *caches, "--out", tmp_path / "a", "--samples", 2)
    assert result.exit_code == 0, result.output
    assert "Single-Doc QA<br>Qasper | Multi-Doc QA<br>Hot.QA | Multi-Doc QA<br>Musique | Avg. |" in result.stdout
    full = next(line for line in result.stdout.splitlines() if line.startswith("| full | 100.0% | "))
    assert re.fullmatch(r"\| full \| 100.0% \| 1[0-9]{2}\.\d% \| 100.0 \| 100.0 \| 100.0 \| 100.0 \|", full)
    assert "*50% KV-cache budget*" in result.stdout and "| 50.0 |" in result.stdout
    # another protocol is another table, and needs a question after the context
    agnostic = qevict(*base, "--cache", "tuned", "--budgets", "0.5", "--out", tmp_path / "c", "--question-agnostic")
    assert "### LongBench, " in agnostic.stdout and ", question-agnostic" in agnostic.stdout, agnostic.output
    assert read_configuration(tmp_path / "c")["protocol"] == AGNOSTIC
    assert qevict("report", tmp_path / "a", tmp_path / "c", "--out", tmp_path / "two").stdout.count("###") == 2
    stored = read_configuration(tmp_path / "a")
    assert (stored["context"], stored["limit"]) == (32768, 31500)
    # another run of the same benchmark adds its caches
    more = qevict(*base, "--cache", "tuned bits=4", "--budgets", "0.5", "--out", tmp_path / "b", "--samples", 2)
    assert more.exit_code == 0, more.output
    report = qevict("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    assert report.stdout.count("###") == 1 and "| tuned bits=4 |" in report.stdout
    names = sorted(path.suffix for path in (tmp_path / "report").iterdir())
    assert names == [".csv", ".md", ".png"]
    (csv,) = (tmp_path / "report").glob("*.csv")
    rows = list(reader(csv.read_text().splitlines()))
    assert rows[0][3] == "KV memory, unpadded" and float(rows[1][3]) > 1
    assert rows[0][:3] + rows[0][4:7] == [
        "group", "Method", "KV memory", "Qasper", "Qasper standard error", "Qasper samples"
    ]  # fmt: skip
    assert rows[1][:2] + rows[1][4:7] == ["", "full", "100", "0", "2"] and rows[2][4:7] == ["50", "50", "2"]


def test_gsm8k_by_budget_and_against_the_full_cache(qevict, checkpoint, tmp_path, made_up_answers):
    write_gsm8k(tmp_path)
    files = ("--test", tmp_path / "gsm8k.jsonl", "--train", tmp_path / "gsm8k.jsonl")
    result = qevict(
        *("eval", "gsm8k", "--model", checkpoint, *files, "--out", tmp_path / "run", "--samples", 4),
        *("--budgets", "0.6,0.4"),
    )
    assert result.exit_code == 0, result.output
    tables = result.stdout.split("### ")[1:]
    titles = [
        "exact match (strict)",
        "exact match (flexible)",
        "token agreement",
        "first token that differs",
        "unpadded",
    ]
    assert len(tables) == 5 and all(name in table for name, table in zip(titles, tables, strict=True))
    assert "| Method | 100% | 60% | 40% |" in tables[0] and ", cot: by KV-cache budget" in tables[0]
    assert "| full | 100.0 |  |  |" in tables[1] and "| paper-gsm8k |  | 50.0 | 50.0 |" in tables[1]
    assert "| paper-gsm8k | 83.3 | 83.3 |" in tables[2]  # every other answer has one token of three wrong
    assert "| paper-gsm8k | 2.0 | 2.0 |" in tables[3]
    stored = read_configuration(tmp_path / "run")
    assert (stored["protocol"], stored["format"]) == (AWARE, "cot")
    assert "date" not in stored  # the template writes none
    assert stored["shots"] == 8 and stored["chat"] is False and len(stored["texts_sha256"]) == 1
    assert [cache["recent_share"] for cache in stored["caches"]] == [None, 0.25, 0.25]


def test_an_ablation_on_fidelity_and_retrieval(qevict, checkpoint, tmp_path, made_up_answers, monkeypatch):
    def fidelity(model, token_ids, configs, *, prefill, steps, offsets, progress):
        assert (prefill, steps, offsets, len(token_ids) > 1000) == (256, 32, [0, 50], True)
        ratio = {"kv_bytes": 30, "full_kv_bytes": 100}
        return [FidelityResult(config, kl=(0.25, 0.5), top1=(0.5, 1.0), **ratio) for config in configs]

    monkeypatch.setattr(ablation, "fidelity", fidelity)
    (tmp_path / "text.txt").write_text("the sand and the sea and the stars over an island " * 40)
    base = (
        *("eval", "ablation", "--model", checkpoint, "--what", "windows", "--text", tmp_path / "text.txt"),
        *("--prefill", 256, "--steps", 32, "--offsets", "0,50", "--tasks", "niah_single_1", "--lengths", 768),
        *("--samples", 2, "--budgets", "0.3", "--kv-dtype", "float32", "--cache", "tuned"),
    )
    result = qevict(*base, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "window size W (Table 11)" in result.stdout and "KL (nats) | Fidelity<br>top-1 |" in result.stdout
    assert "left out: tuned window=32 @ 0.3" in result.stderr
    assert "| tuned window=8 |" in result.stdout and "| 0.3750 | 75.0 | 50.0 |" in result.stdout
    lines = read_lines(tmp_path / "run")
    # the full cache and W of 4, 8 and 16 at two samples, and fidelity at two places of the text
    assert len(lines) == 4 * 2 + 3 * 2 == read_configuration(tmp_path / "run")["expected"]
    again = qevict(*base, "--out", tmp_path / "run", "--resume")
    assert again.exit_code == 0 and read_lines(tmp_path / "run") == lines


def test_the_ablation_of_ranking_runs_the_tasks_of_its_table(
    qevict, checkpoint, tmp_path, made_up_answers, monkeypatch
):
    monkeypatch.setattr(ablation, "run_fidelity", lambda *arguments, **options: None)
    (tmp_path / "text.txt").write_text("the sand and the sea and the stars over an island " * 60)
    write_longbench(tmp_path, *RANKING_TASKS)
    base = ("eval", "ablation", "--model", checkpoint, "--what", "ranking", "--text", tmp_path / "text.txt")
    base = (*base, "--prefill", 512, "--steps", 32, "--tasks", "niah_single_1", "--lengths", 1024)
    base = (*base, "--samples", 1, "--no-full")
    result = qevict(*base, "--budgets", 0.5, "--longbench", tmp_path, "--out", tmp_path / "run", "--shortest", 200)
    assert result.exit_code == 0, result.output
    assert {line["task"] for line in read_lines(tmp_path / "run")} == {"niah_single_1@1024", *RANKING_TASKS}
    assert "LongBench<br>Avg. |" in result.stdout and read_configuration(tmp_path / "run")["shortest"] == 200
    none = qevict(*base, "--longbench", tmp_path, "--out", tmp_path / "none", "--shortest", 100000)
    assert none.exit_code == 1 and "no row has a prompt of 100000 to" in none.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--offsets", "0,100000"], "offset 100000 with prefill=256 and steps=32 needs 288 tokens"),
        (["--prefill", "40000"], "exceed the model's context of 32768"),
    ],
)
def test_an_ablation_knows_before_it_begins_that_fidelity_cannot_be_measured(
    refused, checkpoint, tmp_path, made_up_answers, arguments, message
):
    (tmp_path / "text.txt").write_text("the sand and the sea and the stars over an island " * 40)
    base = ("eval", "ablation", "--model", checkpoint, "--what", "bits", "--text", tmp_path / "text.txt")
    base = (*base, "--prefill", 256, "--steps", 32, "--tasks", "niah_single_1", "--lengths", 768, "--samples", 1)
    assert message in refused(*base, "--budgets", 0.3, "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tasks", "niah"], "no task niah; there are"),
        (["--lengths", "many"], "--lengths many must be numbers"),
        (["--lengths", "400"], "niah_single_1 at 400 tokens: the question alone"),
        (["--lengths", "40000"], "a length of 40000 tokens is beyond the model's context of 32768"),
        (["--tasks", "all"], "qa_1 needs a file: --squad FILE"),
        (["--tasks", "vt,vt"], "the task vt is there twice"),
        (["--lengths", "768,768"], "the length 768 is there twice"),
        (["--budgets", "20"], "a budget of 20 is 2000% of the full cache"),
        (["--budgets", "x"], "--budgets x must be numbers"),
        (["--budgets", "0.01"], "paper-ruler @ 0.01 at 768 tokens"),
        (["--cache", "quick"], "begin with a preset or a policy"),
        (["--no-full", "--cache", "tuned budget=2 budget=3"], "twice"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--haystack", "missing.txt"], "missing.txt is not a file"),
        (["--tasks", "qa_1"], "--squad FILE"),
        (["--samples", "0"], "0 samples"),
        (["--model", "missing"], "missing"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_no_run(refused, checkpoint, tmp_path, arguments, message):
    assert message in refused(*RULER, "--model", checkpoint, "--out", tmp_path / "run", *arguments).replace("'", "'")
    assert not (tmp_path / "run" / "samples.jsonl").exists() or not read_lines(tmp_path / "run")


def test_what_is_wrong_with_a_request_is_said_before_the_model_is_loaded(refused, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "load_model", None)
    (tmp_path / "text.txt").write_text("the sand")
    ruler = ("eval", "ruler", "--model", checkpoint, "--out", tmp_path / "run")
    ablation = ("eval", "ablation", "--what", "bits", "--text", tmp_path / "text.txt", *ruler[2:])
    for command in (ruler, ablation):
        assert "--squad FILE" in refused(*command, "--tasks", "vt,qa_1")
        assert "context of 32768" in refused(*command, "--tasks", "vt", "--lengths", "1024,40000")
        assert "missing.json is not a file" in refused(*command, "--hotpot", "missing.json")
    assert not (tmp_path / "run").exists()


def test_every_task_that_needs_no_file_is_the_default(qevict, checkpoint, tmp_path, made_up_answers):
    arguments = ("--model", checkpoint, "--out", tmp_path / "run", "--lengths", 3000, "--samples", 1)
    result = qevict("eval", "ruler", *arguments, "--cache", "full", "--haystack", "noise")
    assert result.exit_code == 0, result.output
    tasks = {line["task"].partition("@")[0] for line in read_lines(tmp_path / "run")}
    assert len(tasks) == 11 and not {"qa_1", "qa_2"} & tasks


def test_a_run_is_not_overwritten_and_other_samples_are_not_mixed_in(
    qevict, refused, checkpoint, tmp_path, made_up_answers
):
    base = (*RULER, "--model", checkpoint, "--out", tmp_path / "run", "--cache", "full")
    assert qevict(*base).exit_code == 0
    assert "--resume continues it" in refused(*base)
    assert "prompts_sha256, seed differ" in refused(*base, "--resume", "--seed", 1)
    other = (*RULER, "--model", checkpoint, "--out", tmp_path / "other", "--cache", "full", "--seed", 1)
    assert qevict(*other).exit_code == 0
    assert "different prompts (seed differ)" in refused("report", tmp_path / "run", tmp_path / "other")


def test_a_run_goes_on_after_midnight_with_the_date_of_its_prompts(
    qevict, checkpoint, tmp_path, made_up_answers, monkeypatch
):
    dated = shutil.copytree(checkpoint, tmp_path / "dated")
    template = "{{ bos_token }}Today {{ strftime_now('%d %b %Y %H:%M:%S') }}: {{ messages[0].content }}"
    (dated / "chat_template.jinja").write_text(template)
    base = (*RULER, "--model", dated, "--out", tmp_path / "run", "--cache", "full", "--resume")
    assert qevict(*base).exit_code == 0
    lines, file = read_lines(tmp_path / "run"), tmp_path / "run" / "run.json"
    # as if it had begun on another day; the prompts of that day are others
    stored = json.loads(file.read_text())
    monkeypatch.setattr(runs, "prompt_date", lambda directory, *, resume: datetime.datetime(2024, 7, 26, 23, 59))
    yesterday = (*RULER, "--model", dated, "--out", tmp_path / "old", "--cache", "full")
    assert qevict(*yesterday).exit_code == 0
    monkeypatch.undo()
    old = read_configuration(tmp_path / "old")
    assert old["date"] == "2024-07-26T23:59:00" and old["prompts_sha256"] != stored["prompts_sha256"]
    again = qevict(*yesterday, "--resume")
    assert again.exit_code == 0, again.output
    assert qevict(*base).exit_code == 0 and read_lines(tmp_path / "run") == lines


def test_the_help_says_which_format_prompts_have(qevict):
    def about_chat(benchmark):
        text = re.sub(r"[│\s]+", " ", qevict("eval", benchmark, "--help").stdout)
        return text.rpartition("--chat ")[2][:120]

    assert "default if it has one" in about_chat("ruler") and "[default: raw]" not in about_chat("ruler")
    assert "default if it has one" not in about_chat("gsm8k") and "[default: raw]" in about_chat("gsm8k")


def test_a_context_without_room_names_the_task_and_the_option(refused, checkpoint, tmp_path):
    write_longbench(tmp_path, "gov_report")
    base = ("eval", "longbench", "--model", checkpoint, "--data", tmp_path, "--tasks", "gov_report")
    message = refused(*base, "--context", 400, "--out", tmp_path / "run")
    assert "gov_report: a prompt has no room beside an answer of 512 tokens in a context of 400" in message
    assert "--context" in message


def test_a_report_of_nothing(refused, tmp_path):
    assert "holds no run" in refused("report", tmp_path)
