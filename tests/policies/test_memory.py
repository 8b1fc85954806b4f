"""No tensor of rows * positions * vocabulary exists, neither forward nor backward."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from melior.objectives.heads import Entropy, ReverseKL
from melior.parts import Need
from tiny_models import batch_of, policy

ROWS, WIDTH, VOCABULARY = 8, 24, 1999


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def largest(chunk: int) -> int:
    actor = policy(vocab_size=VOCABULARY, dtype=torch.float32)
    reference = actor.frozen()
    actor.chunk_elements = reference.chunk_elements = chunk
    length = torch.full((ROWS,), WIDTH)
    b = batch_of([(2, 3)] * ROWS, torch.randint(0, VOCABULARY, (ROWS, WIDTH)), length)
    needs = frozenset({Need("entropy", head=Entropy()), Need("kl", head=ReverseKL("reference"))})
    with Largest() as seen:
        now = actor.evaluate(b, needs, {"reference": reference})
        (now.logp.sum() + now["entropy"].sum() + now["kl"].sum()).backward()
    return seen.elements


def test_no_tensor_holds_all_logits():
    weights = VOCABULARY * 32
    assert largest(10 * VOCABULARY) <= max(weights, 10 * VOCABULARY) < ROWS * WIDTH * VOCABULARY / 5


def test_the_measure_sees_them_when_one_chunk_is_allowed_to_hold_all():
    assert largest(10**9) >= ROWS * WIDTH * VOCABULARY


def test_kept_logits_do_not_add_up_over_the_chunks():
    actor = policy(vocab_size=VOCABULARY, dtype=torch.float32)
    actor.chunk_elements = 10 * VOCABULARY
    b = batch_of([(2, 3)] * ROWS, torch.randint(0, VOCABULARY, (ROWS, WIDTH)), torch.full((ROWS,), WIDTH))
    kept = []

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        actor.evaluate(b)
    assert sum(size for size in kept if size % VOCABULARY == 0) < ROWS * WIDTH * VOCABULARY / 2


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_other_architectures_are_bounded_too(kind):
    actor = policy(kind, vocab_size=VOCABULARY, dtype=torch.float32)
    actor.chunk_elements = 10 * VOCABULARY
    b = batch_of([(2, 3)] * ROWS, torch.randint(0, VOCABULARY, (ROWS, WIDTH)), torch.full((ROWS,), WIDTH))
    with Largest() as seen:
        actor.evaluate(b).logp.sum().backward()
    assert seen.elements <= VOCABULARY * 32
