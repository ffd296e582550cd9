# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Peak memory: what a compiled program needs by its compiler's account, and what a process held resident.

The first is the same question on every backend. The second means something on a CPU, where arrays are the process's own
memory; Linux allows to start it anew. Needs only the standard library.
"""

from pathlib import Path
from typing import Any

_RESTART = "5"  # proc_pid_clear_refs(5): the peak begins again at what is resident now


def program_bytes(executable: Any) -> int:
    """Arguments, results that reuse no argument, and temporaries of a compiled JAX program."""
    memory = executable.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + results + memory.temp_size_in_bytes


class ResidentPeak:
    """The largest resident size of this process since this was made; one at a time."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text(_RESTART)
            self._restarted = True
        except OSError:  # not Linux, or not allowed
            self._restarted = False

    def read(self) -> int | None:
        """Bytes; None where the peak cannot be started anew."""
        if not self._restarted:
            return None
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
