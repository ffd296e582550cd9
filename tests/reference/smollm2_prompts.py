# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Three prompts in our own words: a text to continue, a question for the chat template, and a long text.

Chosen so that at none of the 64 greedy steps the two best logits are closer than 0.02 and none ends the turn.
"""

TEXT = "A good map is more than a picture of the land. It tells the traveller"
QUESTION = "What should I pack for a three day hike in the mountains?"

_GOODS = ("barley", "salt", "timber", "wool", "copper", "olive oil", "paper", "glass", "honey", "tin")
_SHIPS = ("Heron", "Juniper", "Old Margaret", "Swift", "Northern Star", "Patience", "Lark")
_PORTS = ("the northern islands", "the river mouth", "a harbour in the south", "the far side of the bay")


def _harbour_diary(days: int) -> str:
    entries = [
        f"Day {day}. The {_SHIPS[day % 7]} came in from {_PORTS[day % 4]} with {3 + day * 5 % 17} crates of "
        f"{_GOODS[day * 3 % 10]}. The wind was {('weak', 'fresh', 'strong')[day % 3]} and we sold "
        f"{2 + day * 7 % 11} crates before noon."
        for day in range(1, days + 1)
    ]
    return "Diary of the harbour master.\n" + "\n".join(entries) + f"\nDay {days + 1}. The"


LONG_TEXT = _harbour_diary(15)
