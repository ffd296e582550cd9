# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Quantizers of the policies that keep every token: codes, their parameters and how they decode."""
