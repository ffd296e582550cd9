# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C waits until the block that must not be torn apart has ended."""

import os
import signal
import threading

import pytest

from qevict_jax.interrupts import interrupts_deferred


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_deferred():
            interrupt()
            done.append("rest of the block")
        done.append("after the block")
    assert done == ["rest of the block"]


def test_the_handler_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    with interrupts_deferred():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), interrupts_deferred():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
