"""The tabular policy: what it is indexed by, its two faces (evaluation and decoding), its state."""

from __future__ import annotations

import pytest
import torch

from melior.errors import RunError, UserError
from melior.objectives.heads import Entropy
from melior.parts import Need
from melior.policies.policy import GivesLogits, Policy
from melior.policies.table import Table
from toys import language_batch, random_table, table_batch


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (("prompt", "position", "previous"), (4, 6, 6, 5)),
        (("prompt",), (4, 1, 1, 5)),
        (("position",), (1, 6, 1, 5)),
        (("previous",), (1, 1, 6, 5)),
        ((), (1, 1, 1, 5)),
    ],
)
def test_decoding_and_evaluation_agree(index, shape):
    table = random_table(4, 6, 5, index=index)
    assert table.logits.shape == shape and isinstance(table, Policy) and isinstance(table, GivesLogits)
    batch = table_batch([0.0, 0.0], [[1, 2, 0, 4], [3, 3, 1, 0]], [0, 1], prompt=[3, 1])
    decoder = table.decoder([(3,), (1,)], 1)
    logits = [decoder.start()]
    for t in range(3):
        logits.append(decoder.step(batch.tokens[:, t]))
    logp = torch.stack(logits, 1).log_softmax(-1).gather(-1, batch.tokens[..., None]).squeeze(-1)
    torch.testing.assert_close(table.evaluate(batch).logp.detach(), logp)


def test_an_entry_belongs_to_prompt_position_and_previous_token():
    table = Table(2, 3, 4)
    with torch.no_grad():
        table.logits[1, 2, 3, 0] = 5.0
    batch = table_batch([0.0, 0.0], [[0, 3, 0], [0, 3, 0]], [0, 1])
    logp = table.evaluate(batch).logp
    uniform = -torch.tensor(4.0).log().item()
    assert logp[0].tolist() == pytest.approx([uniform] * 3)
    assert logp[1].tolist() == pytest.approx([uniform, uniform, torch.tensor([5.0, 0, 0, 0]).log_softmax(0)[0].item()])


def test_siblings_of_a_prompt_stand_together_and_finished_rows_leave():
    table = random_table(4, 6, 5)
    decoder = table.decoder([(3,), (1,)], 2)
    start = decoder.start()
    assert torch.equal(start[0], start[1]) and not torch.equal(start[1], start[2])
    decoder.keep(torch.tensor([0, 3]))
    after = decoder.step(torch.tensor([2, 2]))
    assert torch.equal(after, table.logits.detach()[[3, 1], 1, 2])


def test_quantities():
    table = random_table(4, 6, 5)
    needs = frozenset({Need("value"), Need("hidden", "batch"), Need("entropy", "batch", head=Entropy())})
    table.prepare(needs)
    batch = language_batch()
    now = table.evaluate(batch, needs)
    probabilities = table.logits[table._where(batch.prompt, batch.tokens)].softmax(-1)
    entropy = -(probabilities * probabilities.log()).sum(-1)
    torch.testing.assert_close(now["entropy"][batch.present], entropy[batch.present].detach())
    assert not now["entropy"].requires_grad and not now["hidden"].requires_grad and now["value"].requires_grad
    weight = batch.mask / batch.mask.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(now["hidden"], (probabilities * weight[..., None]).sum(1).detach())
    assert [name for name, _ in table.named_parameters()] == ["logits", "values"]
    with pytest.raises(UserError, match="does not know the quantity 'mean'"):
        table.evaluate(batch, frozenset({Need("mean")}))


def test_an_entropy_with_gradient_is_differentiable_and_one_without_is_not():
    table, head = random_table(4, 6, 5), Entropy()
    both = frozenset({Need("entropy", "batch", head=head), Need("entropy", "policy", head=head)})
    assert table.evaluate(language_batch(), both)["entropy"].requires_grad


def test_a_frozen_copy_does_not_follow():
    table = random_table(4, 6, 5, index=("prompt", "previous"))
    table.prepare(frozenset({Need("value")}))
    copy, before = table.frozen(), table.evaluate(language_batch()).logp.detach()
    with torch.no_grad():
        table.logits.mul_(2)
    torch.testing.assert_close(copy.evaluate(language_batch()).logp, before, rtol=0, atol=0)
    assert not copy.logits.requires_grad and copy.index == table.index and copy.context == table.context
    assert set(copy.state()) == {"logits", "values"}


def test_state_is_live_and_loads_in_place():
    table, other = random_table(4, 6, 5), random_table(4, 6, 5, seed=1)
    parameter = table.logits
    table.load_state(other.state())
    assert table.logits is parameter and torch.equal(table.logits, other.logits)
    with torch.no_grad():
        table.logits.zero_()
    assert not table.state()["logits"].any()
    with pytest.raises(RunError, match=r"holds \['logits'\], but the saved state holds \['values'\]"):
        table.load_state({"values": torch.zeros(1)})


def test_saved_as_safetensors(tmp_path):
    from safetensors.torch import load_file

    table = random_table(2, 3, 4)
    table.save(tmp_path / "deep" / "folder")
    assert torch.equal(load_file(tmp_path / "deep" / "folder" / "table.safetensors")["logits"], table.logits)
    other = random_table(2, 3, 4, seed=1)
    parameter = other.logits
    other.load(tmp_path / "deep" / "folder")
    assert other.logits is parameter and torch.equal(other.logits, table.logits)


def test_a_misspelt_index_proposes_the_near_one():
    with pytest.raises(UserError, match="indexed by 'positon'; did you mean 'position'"):
        Table(1, 1, 2, index=("positon",))


def test_prompts_are_numbers_and_symbols_letters():
    table = Table(20, 3, 30)
    assert table.render("7") == (7,) and table.decode([0, 25, 26]) == "az<26>"
    assert (table.vocabulary, table.context, table.stop_ids) == (30, 4, ())
