"""What all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def importable() -> Iterator[None]:
    """Folders that a test made importable, and what was imported from them, are gone after it."""
    before = list(sys.path)
    yield
    added = [folder for folder in sys.path if folder not in before]
    sys.path[:] = before
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and any(file.startswith(f"{folder}/") for folder in added):
            del sys.modules[name]
