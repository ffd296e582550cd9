# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server: `worker` owns the engine, `app` speaks HTTP, `serve` runs both."""

from qevict_jax.server.app import create_app as create_app
from qevict_jax.server.serve import make_server as make_server
from qevict_jax.server.worker import Worker as Worker
