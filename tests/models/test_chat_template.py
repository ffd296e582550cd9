# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What chat templates in the wild use, and errors in one line."""

import datetime

import pytest

from qevict_jax.models.chat_template import ChatTemplate
from qevict_jax.types import QEvictError

USER = [{"role": "user", "content": "<hi> & é"}]


def _render(source, messages=USER, generate=False):
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, generate)


@pytest.mark.parametrize(
    "source, expected",
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s><hi> & é"),
        ("{% for m in messages %}\n  {% if true %}\n{{ m['role'] }}\n{% endif %}\n{% endfor %}\n", "user\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<hi> & é"}]'),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% if tools is none and not documents %}plain{% endif %}", "plain"),
        ("{% if add_generation_prompt %}go{% else %}stay{% endif %}", "stay"),
    ],
)
def test_renders(source, expected):
    assert _render(source) == expected


def test_has_the_date_function_of_llama_3():
    assert _render("{{ strftime_now('%Y') }}").startswith("20")
    template = ChatTemplate("{% macro m() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ m() }}", {})
    assert template.render(USER, False, datetime.datetime(2024, 7, 26, 23, 59)) == "26 Jul 2024"
    assert template.dated and not ChatTemplate("{{ messages[0].content }}", {}).dated


@pytest.mark.parametrize(
    "source, message",
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses this conversation: roles must alternate"),
        ("{{ messages[0].nothing.further }}", "refuses this conversation"),
        ("{{ 'a' + 1 }}", "refuses this conversation"),
        ("{{ messages.clear() }}", "refuses this conversation"),  # the sandbox
        ("{% if %}", "not valid Jinja"),
    ],
)
def test_errors_are_ours(source, message):
    with pytest.raises(QEvictError, match=message):
        _render(source)
