# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mass of prompt windows: picks the implementation; plain XLA is the one there is so far."""

from pallas_kernels.prefill_window_mass.base import prefill_window_mass as prefill_window_mass
