"""The stand-ins for torch and jaxtyping; each case in a process of its own, since the real ones cannot be unloaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import sys
from melior import lazy_torch
lazy_torch.install()
import torch
stand_in = torch
def loaded(): return "torch._C" in sys.modules
assert not loaded()
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("assert torch.zeros(2).shape == (2,) and torch is sys.modules['torch'] is not stand_in", id="use"),
        pytest.param("assert stand_in.zeros(2).shape == (2,)", id="a reference kept elsewhere still works"),
        pytest.param("import torch.nn.functional as F; assert F.relu(torch.ones(1)) == 1", id="submodule"),
        pytest.param(
            "import torch.nn as nn; import torch.nn.functional as F; assert sys.modules['torch.nn'] is nn is torch.nn; "
            "assert nn.functional is F and nn.__spec__.origin.endswith('nn/__init__.py')",
            id="submodules are loaded once and keep their specs",
        ),
        pytest.param("import torch.utils.data as d; assert d.DataLoader", id="submodule that torch does not import"),
        pytest.param("from torch import nn; assert nn.Linear(1, 1)", id="from torch import"),
        pytest.param("import importlib.util; assert importlib.util.find_spec('torch'); assert not loaded()", id="spec"),
        pytest.param("assert not hasattr(torch, '__wrapped__') and not loaded()", id="introspection"),
        pytest.param("assert torch.__version__[0].isdigit()", id="version"),
        pytest.param("lazy_torch.install(); assert torch is stand_in and not loaded()", id="twice"),
        pytest.param(
            "from collections.abc import Callable\n"
            "A = Callable[[int], torch.Tensor]; B = tuple[int, torch.Tensor | None]; C = None | torch.Tensor\n"
            "T = torch.Tensor\n"
            "assert not isinstance(3, T) and not loaded()\n"
            "assert isinstance(torch.zeros(1), T) and not isinstance(3, T)\n",
            id="type aliases",
        ),
        pytest.param("class X(torch.Tensor): pass\nassert issubclass(X, sys.modules['torch'].Tensor)", id="derived"),
        pytest.param(
            "from jaxtyping import Float\nassert 'numpy' not in sys.modules\n"
            "assert Float[torch.Tensor, 'B T'].dim_str == 'B T' and loaded()",
            id="jaxtyping",
        ),
        pytest.param("import melior.methods.group_relative; assert not loaded()", id="the catalogue"),
    ],
)
def test_the_stand_in_is_torch_when_it_matters(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_real_torch_is_let_be() -> None:
    code = "import sys, torch; from melior import lazy_torch as l; l.install(); assert sys.modules['torch'] is torch"
    subprocess.run([sys.executable, "-c", code], check=True)
