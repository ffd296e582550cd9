# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Commits and hashes."""

import hashlib
import subprocess

import pytest

from qevict_jax.evaluation.provenance import commit, environment, read_source, text_hash, token_hash
from qevict_jax.types import QEvictError


def git(directory, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    return subprocess.run(["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


def test_the_commit_of_a_checkout_of_the_package(tmp_path):
    assert commit(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert commit(tmp_path) is None
    (tmp_path / "provenance.py").write_text("")
    assert commit(tmp_path) is None  # the package lies in another checkout, as an environment may
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit(tmp_path) == head and len(head) == 40
    (tmp_path / "provenance.py").write_text("changed")
    assert commit(tmp_path) == f"{head}+changes"


def test_versions_and_device():
    facts = environment()
    assert facts["device"].startswith("cpu") and all(facts[name] for name in ("qevict_jax", "jax", "python"))


def test_hashes(tmp_path):
    assert text_hash("ä") == hashlib.sha256(b"\xc3\xa4").hexdigest()
    assert token_hash([1, 23]) == hashlib.sha256(b"1 23").hexdigest() != token_hash([12, 3])
    (tmp_path / "a").write_bytes(b"a\r\nb")
    assert read_source(tmp_path / "a") == ("a\r\nb", hashlib.sha256(b"a\r\nb").hexdigest())
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(QEvictError, match="byte 2 is 0xff"):
        read_source(tmp_path / "a")
