# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Small files in the forms of SQuAD 2.0 and HotpotQA."""

import json

from qevict_jax.evaluation.ruler import Sources

ARTICLES, PARAGRAPHS, CITIES = 4, 3, ("Aba", "Bodo", "Cali", "Deva", "Enna", "Faro", "Gafsa", "Hilo", "Ipoh", "Jena")


def city(article, paragraph):
    return CITIES[(article * PARAGRAPHS + paragraph) % len(CITIES)]


def squad(directory):
    """Each paragraph has an answerable question with two accepted answers, and one without an answer."""

    def paragraph(article, number):
        ask = f"Where does ship {article}-{number} lie"
        answers = [{"text": city(article, number)}, {"text": city(article, number)}, {"text": f"the port {article}"}]
        return {
            "context": f"Ship {article}-{number} lies in {city(article, number)}, the port {article} of a country.",
            "qas": [
                {"question": f"{ask}?", "answers": answers, "is_impossible": False},
                {"question": f"{ask} tomorrow?", "answers": [], "is_impossible": True},
            ],
        }

    data = [
        {"title": f"ships {a}", "paragraphs": [paragraph(a, p) for p in range(PARAGRAPHS)]} for a in range(ARTICLES)
    ]
    file = directory / "squad.json"
    file.write_text(json.dumps({"version": "v2.0", "data": data}))
    return file


def hotpot(directory):
    """Two questions with three paragraphs each, and a third whose paragraphs never fit."""
    rows = [
        {
            "question": f"Whose captain is {name}?",
            "answer": f"ship {name}",
            "context": [[f"{name} {i}", [f"{name} sails ship {name}. ", f"It has {i} masts."]] for i in range(3)],
        }
        for name in ("Ada", "Bea")
    ]
    rows.append({"question": "Too long?", "answer": "yes", "context": [["Long", ["word " * 20_000]]]})
    file = directory / "hotpot.json"
    file.write_text(json.dumps(rows))
    return file


def sources(directory):
    """Both files, and an essay of numbered sentences."""
    essay = directory / "essay.txt"
    essay.write_text(" ".join(f"Sentence {number} speaks of the sea." for number in range(40)))
    return Sources.read(str(essay), squad(directory), hotpot(directory))
