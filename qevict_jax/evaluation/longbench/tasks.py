# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The table of LongBench's English tasks (arXiv:2308.14508); the paper uses those of its Appendix C and J.

Prompts have the structure of the published ones (instruction, context, instruction again with the question) in words of
our own, so that scores are close to published ones and not the same; ``--prompts FILE`` takes others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qevict_jax.evaluation.longbench.metrics import (
    class_match,
    count_share,
    edit_similarity,
    retrieval_share,
    rouge_l,
    token_f1,
)

SINGLE, MULTI, SUMMARY, FEW_SHOT, SYNTHETIC, CODE = (
    "Single-Doc QA",
    "Multi-Doc QA",
    "Summarization",
    "Few-Shot Learning",
    "Synthetic",
    "Code",
)


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        family: of the paper's Table 5, then that of Appendix J, then code.
        title: head of its column.
        prompt: with ``{context}`` and ``{input}``.
        max_new_tokens: published generation limit.
        metric: from answer, reference and classes to 0 .. 1; the best reference counts.
        chat: whether the model's chat format goes around the prompt; few-shot tasks show the format themselves.
        first_line: only the first line of the answer counts. (The published code also stops samsum at the end of its
            first line; the score is the same.)
    """

    family: str
    title: str
    prompt: str
    max_new_tokens: int
    metric: Callable[[str, str, Sequence[str]], float]
    chat: bool = True
    first_line: bool = False


_PASSAGES = (
    "Answer the question from the passages below. Give only the answer, without any other words.\n\n"
    "These are the passages.\n{context}\n\n"
    "Answer the question from the passages above. Give only the answer, without any other words.\n\n"
    "Question: {input}\nAnswer:"
)

TASKS: dict[str, TaskRow] = {
    "narrativeqa": TaskRow(
        SINGLE,
        "Nar.QA",
        "Below are a story, which is a novel or the script of a film, and a question about it. Answer the question as "
        "shortly as possible, with a single phrase if it can be. Explain nothing.\n\nStory: {context}\n\n"
        "Now answer the question about the story as shortly as possible, with a single phrase if it can be. Explain "
        "nothing.\n\nQuestion: {input}\n\nAnswer:",
        128,
        token_f1,
    ),
    "qasper": TaskRow(
        SINGLE,
        "Qasper",
        "Below are a scientific article and a question about it. Answer the question as shortly as possible, with a "
        'single phrase or sentence if it can be. If the article does not hold the answer, write "unanswerable". If it '
        'is a yes/no question, answer "yes", "no" or "unanswerable". Explain nothing.\n\nArticle: {context}\n\n'
        "Answer the question about the article above as shortly as possible, with a single phrase or sentence if it "
        'can be. If the article does not hold the answer, write "unanswerable". If it is a yes/no question, answer '
        '"yes", "no" or "unanswerable". Explain nothing.\n\nQuestion: {input}\n\nAnswer:',
        128,
        token_f1,
    ),
    "multifieldqa_en": TaskRow(
        SINGLE,
        "Mul.QA",
        "Read the text below and answer the question after it shortly.\n\n{context}\n\n"
        "Now answer the question about the text above. Give only the answer, without any other words.\n\n"
        "Question: {input}\nAnswer:",
        64,
        token_f1,
    ),
    "hotpotqa": TaskRow(MULTI, "Hot.QA", _PASSAGES, 32, token_f1),
    "2wikimqa": TaskRow(MULTI, "2Wi.QA", _PASSAGES, 32, token_f1),
    "musique": TaskRow(MULTI, "Musique", _PASSAGES, 32, token_f1),
    "gov_report": TaskRow(
        SUMMARY,
        "Gov.Re",
        "Below is a report of a government agency. Write a summary of it on one page.\n\nReport:\n{context}\n\n"
        "Now write a summary of the report on one page.\n\nSummary:",
        512,
        rouge_l,
    ),
    "qmsum": TaskRow(
        SUMMARY,
        "QMSum",
        "Below are the transcript of a meeting and a request about it. Answer the request in one sentence or more.\n\n"
        "Transcript:\n{context}\n\nNow answer the request about the meeting above in one sentence or more.\n\n"
        "Request: {input}\nAnswer:",
        512,
        rouge_l,
    ),
    "multi_news": TaskRow(
        SUMMARY,
        "M.News",
        "Below are some news articles. Write a summary of all of them on one page.\n\nNews:\n{context}\n\n"
        "Now write a summary of all the news on one page.\n\nSummary:",
        512,
        rouge_l,
    ),
    "trec": TaskRow(
        FEW_SHOT,
        "TREC",
        "Find the type of the question below. Here are some examples.\n\n{context}\n{input}",
        64,
        class_match,
        chat=False,
        first_line=True,
    ),
    "triviaqa": TaskRow(
        FEW_SHOT,
        "Tri.QA",
        "Answer the question from the passage before it. Give only the answer, without any other words. Here are some "
        "examples.\n\n{context}\n\n{input}",
        32,
        token_f1,
        chat=False,
        first_line=True,
    ),
    "samsum": TaskRow(
        FEW_SHOT,
        "SAMSum",
        "Sum up the dialogue in a few short sentences. Here are some examples.\n\n{context}\n\n{input}",
        128,
        rouge_l,
        chat=False,
        first_line=True,
    ),
    "passage_count": TaskRow(
        SYNTHETIC,
        "P.Count",
        "Below are some paragraphs from Wikipedia, and some of them may be there more than once. Find out "
        "how many different paragraphs there are.\n\n{context}\n\nGive the number of different paragraphs, and nothing "
        "but that number.\n\nThe number is:",
        32,
        count_share,
    ),
    "passage_retrieval_en": TaskRow(
        SYNTHETIC,
        "P.Retr",
        "Below are 30 paragraphs from Wikipedia, and an abstract. Find out which paragraph the abstract is of.\n\n"
        "{context}\n\nThis is the abstract.\n\n{input}\n\nGive the number of the paragraph that the abstract is of, in "
        'the form "Paragraph 1", "Paragraph 2" and so on.\n\nThe answer is:',
        32,
        retrieval_share,
    ),
    "lcc": TaskRow(
        CODE, "LCC", "Complete the code below.\n{context}The next line of code:\n", 64, edit_similarity, chat=False
    ),
    "repobench-p": TaskRow(
        CODE,
        "RB-P",
        "Complete the code below.\n{context}{input}The next line of code:\n",
        64,
        edit_similarity,
        chat=False,
    ),
}
# Tables 3 and 6; Table 17 has the two synthetic ones as well
PAPER_TASKS = tuple(name for name, row in TASKS.items() if row.family not in (SYNTHETIC, CODE))
RANKING_TASKS = tuple(name for name, row in TASKS.items() if row.family != CODE)
