# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of a policy from their text, and which settings a policy reads."""

from dataclasses import dataclass, fields

import pytest

from qevict_jax.checks import check_integer
from qevict_jax.config import POLICY_FIELDS, SHARED_FIELDS, CacheConfig
from qevict_jax.policies import POLICIES, policy_options
from qevict_jax.policies.options import NoOptions, parse_options
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Sample:
    """One field of each kind."""

    window: int = 32
    share: float = 0.5
    adaptive: bool = True
    pool: str = "max"

    def __post_init__(self):
        check_integer("window", self.window, 1)


def test_every_kind_of_field():
    made = parse_options("sample", Sample, " window=8, share=0.25,adaptive=False ,pool=avg")
    assert made == Sample(8, 0.25, False, "avg")
    assert parse_options("sample", Sample, "") == Sample()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windows=8", "no option 'windows=8'; there are window=32, share=0.5, adaptive=true, pool=max"),
        ("window", "no option 'window'; there are window=32"),
        ("window=8,window=9", "window is given twice"),
        ("window=8.5", "window='8.5' must be an integer"),
        ("share=half", "share='half' must be a number"),
        ("adaptive=1", "adaptive='1' must be true or false"),
        ("window=0", "window=0 must be an integer >= 1"),
    ],
)
def test_errors_name_the_policy_and_what_works(text, message):
    with pytest.raises(QEvictError) as error:
        parse_options("sample", Sample, text)
    assert str(error.value).startswith("policy_options of sample: ") and message in str(error.value)


def test_no_options():
    with pytest.raises(QEvictError, match="no option 'window=8'; it has none"):
        parse_options("full", NoOptions, "window=8")


def test_every_policy_says_what_it_reads():
    assert list(POLICIES) == list(POLICY_FIELDS)
    names = {field.name for field in fields(CacheConfig)}
    for policy, read in POLICY_FIELDS.items():
        assert set(read) | set(SHARED_FIELDS) <= names
        assert len(set(read)) == len(read)
        assert ("policy_options" in read) == (POLICIES[policy].options is not NoOptions), policy


@pytest.mark.parametrize("policy", POLICIES)
def test_defaults_are_allowed(policy):
    options = POLICIES[policy].options
    assert policy_options(CacheConfig(policy=policy)) == options()
    assert all(field.type in (int, float, bool, str) for field in fields(options))


@pytest.mark.parametrize("policy", POLICIES)
def test_settings_that_a_policy_does_not_read_are_refused(policy):
    other = {
        "budget": 0.3,
        "window": 16,
        "bits": 2,
        "accounting": "paper",
        "policy_options": "a=1",
        "implementation": "xla",
    }
    idle = [name for name in other if name not in POLICY_FIELDS[policy]]
    for name in idle:
        with pytest.raises(QEvictError, match=f"no effect with policy='{policy}': {name}"):
            CacheConfig(policy=policy, **{name: other[name]})
    assert idle
