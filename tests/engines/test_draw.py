"""The draw follows the distribution exactly, token by token."""

import pytest
import torch
from torch.testing import assert_close

from melior.engines.draw import inverse_cdf, truncate


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_a_uniform_number_picks_the_token_whose_interval_holds_it():
    p = logs(0.25, 0.0, 0.5, 0.25).expand(7, -1)
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999, 1 - 2**-53], dtype=torch.float64)
    assert inverse_cdf(p, u).tolist() == [0, 0, 2, 2, 3, 3, 3]


def test_probability_zero_is_never_drawn_even_at_the_ends():
    p = logs(0.0, 0.3, 0.7, 0.0).expand(2, -1)
    assert inverse_cdf(p, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 2]


def test_frequencies_are_the_probabilities():
    p = logs(0.1, 0.2, 0.3, 0.4)
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    assert inverse_cdf(p.expand(1000, -1), u).bincount().tolist() == [100, 200, 300, 400]


@pytest.mark.parametrize(
    ("top_p", "top_k", "expected"),
    [
        (1.0, 0, [0.5, 0.2, 0.2, 0.1]),
        (1.0, 2, [5 / 7, 2 / 7, 0, 0]),  # equal probabilities: the lower id is kept
        (1.0, 9, [0.5, 0.2, 0.2, 0.1]),
        (0.5, 0, [1, 0, 0, 0]),
        (0.51, 0, [5 / 7, 2 / 7, 0, 0]),
        (0.01, 0, [1, 0, 0, 0]),  # one token always stays
        (0.95, 0, [0.5, 0.2, 0.2, 0.1]),
        (0.75, 3, [5 / 9, 2 / 9, 0, 0]),  # of the three renormalized, two reach 7/9
    ],
)
def test_truncation(top_p, top_k, expected):
    want = torch.tensor([expected], dtype=torch.float64)
    assert_close(truncate(logs(0.5, 0.2, 0.2, 0.1), top_p, top_k).exp(), want / want.sum(), rtol=0, atol=1e-15)


def test_truncation_leaves_its_argument_alone():
    p = logs(0.1, 0.6, 0.3)
    before = p.clone()
    truncate(p, 0.5, 2)
    assert_close(p, before, rtol=0, atol=0)
