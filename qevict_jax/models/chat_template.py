# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the Jinja chat template of a checkpoint as the Hugging Face tokenizers do, in a sandbox.

What a template may use beyond plain Jinja: https://huggingface.co/docs/transformers/chat_templating_writing
"""

import datetime
import json
from collections.abc import Mapping, Sequence

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from qevict_jax.types import QEvictError


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}``: marks what the assistant says, for training; here the body is all there is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text.
        special_tokens: names such as "bos_token" that the template may use.

    Attributes:
        dated: whether it may write the date.

    Raises:
        QEvictError: the text is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]):
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise QEvictError(f"the chat template of this model is not valid Jinja: {error}") from None
        self.dated = "strftime_now" in source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool,
        now: datetime.datetime | None = None,
    ) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to where the assistant speaks.

        A template that writes the date writes that of ``now``; None is the clock's.

        Raises:
            QEvictError: the template refuses the conversation (for example two user turns in a row).
        """
        try:
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                strftime_now=(now or datetime.datetime.now()).strftime,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise QEvictError(f"the chat template refuses this conversation: {error}") from None


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str):
    raise jinja2.TemplateError(message)
