from __future__ import annotations

import itertools

import numpy as np
import pytest

from relayc.relay.tuning.selection import is_clearly_faster, select


def noisy(seconds: float, seed: int, noise: float = 0.1):
    """A timer of something that takes `seconds`, or longer: noise only ever slows it down."""
    random = np.random.default_rng(seed)
    return lambda: seconds * (1 + noise * random.exponential())


@pytest.mark.parametrize("seed", range(20))
def test_a_much_faster_alternative_wins_despite_noise(seed):
    timers = [noisy(1.0, seed), noisy(1.1, seed + 100), noisy(0.7, seed + 200), noisy(0.9, seed + 300)]
    choice = select(timers)
    assert choice.index == 2 and choice.seconds < choice.default_seconds and 0.6 < choice.ratio < 0.8


@pytest.mark.parametrize("seed", range(50))
def test_equal_alternatives_never_replace_the_default(seed):
    assert select([noisy(1.0, 7 * seed + i) for i in range(5)]).index == 0


def test_a_disturbance_of_both_in_turn_cancels():
    weather = itertools.cycle([1.0, 1.0, 5.0, 5.0, 2.0, 2.0])
    assert select([lambda: 1.0 * next(weather), lambda: 0.9 * next(weather)]).index == 1
    weather = itertools.cycle([1.0, 1.0, 5.0, 5.0, 2.0, 2.0])
    assert select([lambda: 1.0 * next(weather), lambda: 0.99 * next(weather)]).index == 0


def test_an_alternative_that_is_fast_only_at_first_loses():
    times = iter([0.5] * 5 + [1.2] * 100)
    assert select([lambda: 1.0, lambda: next(times)]).index == 0


def test_nearly_every_pair_must_agree():
    assert is_clearly_faster([1.0] * 10, [0.9] * 9 + [1.5])
    assert not is_clearly_faster([1.0] * 10, [0.9] * 8 + [1.5] * 2)
    assert not is_clearly_faster([1.0] * 10, [0.98] * 10)
    assert is_clearly_faster([1.0] * 10, [0.98] * 10, margin=0.01)


def test_the_default_alone():
    choice = select([lambda: 2.0])
    assert (choice.index, choice.seconds, choice.ratio) == (0, 2.0, 1.0)
