# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Models: configuration, weights, tokenizer, and the pure functions that run them."""

from qevict_jax.models.language_model import LanguageModel as LanguageModel
from qevict_jax.models.language_model import load_model as load_model
