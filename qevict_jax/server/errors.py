# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the server, in the form of OpenAI's API (https://platform.openai.com/docs/guides/error-codes)."""

from typing import Any


class ServerError(Exception):
    """A request that gets no answer, and why.

    Attributes:
        status: of the HTTP response.
        message: for people.
        param: the parameter that is wrong, if it is one.
        code: for programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document."""
        kind = {429: "rate_limit_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
