# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""RULER (arXiv:2404.06654): thirteen tasks made here, at any length, for any tokenizer, with the published parameters.

Differences from the published generator: prompts are worded anew; each sample has its own random state, so it does not
depend on the others; samples are filled up to one unit of the length instead of 25 lines or 500 words; questions of
SQuAD and HotpotQA are drawn over the whole file instead of from its beginning; a regular expression splits sentences.
"""

from qevict_jax.evaluation.ruler.questions import check_request as check_request
from qevict_jax.evaluation.ruler.questions import make_questions as make_questions
from qevict_jax.evaluation.ruler.tasks import TASKS as TASKS
from qevict_jax.evaluation.ruler.tasks import Sources as Sources
from qevict_jax.evaluation.ruler.tasks import ready_tasks as ready_tasks
