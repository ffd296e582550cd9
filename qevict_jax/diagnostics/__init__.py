# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's diagnostics of a cache: what it discards and later misses, and what comes back."""
