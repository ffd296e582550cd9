# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Strict in every test: an operation between different dtypes must say which one it means."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
