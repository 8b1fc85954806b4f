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
    assert inverse_cdf(p.exp(), u)[0].tolist() == [0, 0, 2, 2, 3, 3, 3]


def test_probability_zero_is_never_drawn_even_at_the_ends():
    p = logs(0.0, 0.3, 0.7, 0.0).expand(2, -1)
    assert inverse_cdf(p.exp(), torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64))[0].tolist() == [1, 2]


def test_frequencies_are_the_probabilities():
    p = logs(0.1, 0.2, 0.3, 0.4)
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    assert inverse_cdf(p.exp().expand(1000, -1), u)[0].bincount().tolist() == [100, 200, 300, 400]


@pytest.mark.parametrize("v", [1, 255, 256, 257, 1000, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_vocabulary_is_drawn_from_as_a_small_one(v, dtype):
    weights = (3 * torch.randn(64, v, generator=torch.Generator().manual_seed(v))).exp().to(dtype)
    weights[:, ::3] = 0
    weights[:, -1] = 1e-3
    u = torch.linspace(0, 1 - 2**-53, 64, dtype=torch.float64)
    token, total = inverse_cdf(weights, u)
    assert_close(total, weights.double().sum(-1), rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0)
    exact = weights.double().cumsum(-1) / weights.double().sum(-1, keepdim=True)
    slack = 1e-6 if dtype == torch.float32 else 1e-13
    at = token[:, None]
    assert bool((weights.gather(-1, at) > 0).all())
    assert bool((exact.gather(-1, at).squeeze(-1) >= u - slack).all())
    below = torch.where(at > 0, exact.gather(-1, (at - 1).clamp(min=0)), torch.zeros(64, 1, dtype=torch.float64))
    assert bool((below.squeeze(-1) <= u + slack).all())


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
