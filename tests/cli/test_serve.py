# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict serve` as a process: it says where it listens, and a signal ends it in the middle of answers."""

import re
import signal
import subprocess
import sys
import time

import openai
import pytest

SERVE = [sys.executable, "-c", "from qevict_jax.cli import main; main()", "serve"]
# many slots make a step slow enough to be interrupted
SLOW = [
    "--slots",
    "128",
    "--max-context",
    "500",
    "--budget",
    "0.9",
    "--kv-dtype",
    "float32",
    "--grace",
    "0",
    "--no-warm-up",
]


@pytest.mark.slow
def test_sigterm_ends_a_stream_and_the_process(checkpoint):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*SERVE, checkpoint, "--port", "0", "--name", "tiny", *SLOW], **options) as process:
        try:
            url = re.search(r"http\S+", process.stdout.readline())[0]
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                answer = client.completions.create(model="tiny", prompt="a", max_tokens=400, temperature=0, stream=True)
                next(answer)
                process.send_signal(signal.SIGTERM)
                began = time.monotonic()
                with pytest.raises(openai.APIError, match="shutting down"):
                    list(answer)
            assert process.wait(timeout=30) == -signal.SIGTERM
            assert time.monotonic() - began < 15
            assert "KV cache of 128 x 500 tokens" in process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--slots", "0"], "slots=0"),
        (["--max-context", "2"], "max_context=2 must be at least 3"),
        (["--max-new-tokens", "5000"], "max_new_tokens=5000"),
        (["--queue-limit", "0"], "queue_limit=0"),
        (["--grace", "-1"], "grace=-1"),
        (["--budget", "0.0001"], "smallest budget that works"),
    ],
)
def test_bad_options_are_one_line(refused, checkpoint, options, message):
    assert message in refused("serve", checkpoint, *options)
