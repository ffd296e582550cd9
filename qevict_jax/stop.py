# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopWatch:
    """Lets text through until a stop string appears; holds back what might be the beginning of one.

    Attributes:
        stopped: a stop string has appeared; nothing more comes out.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Adds text and returns what can be shown."""
        if self.stopped:
            return ""
        self._held += text
        shown = self.cut(self._held)
        if shown != self._held:
            self.stopped, self._held = True, ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def cut(self, text: str) -> str:
        """A whole text up to the first stop string in it."""
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        return text[: min(found)] if found else text

    def flush(self) -> str:
        """Returns what is held back, at the end of the stream."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
