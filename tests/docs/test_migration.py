"""The migration pages: every example runs, and every name they map exists on our side and theirs."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import melior
import tiny_models
from melior.cli import run as command
from melior.errors import UserError
from melior.importing import load_object
from melior.records.foreign import TRL, VERL, foreign
from melior.settings import LanguageSettings
from runs import rows

DOCS = Path(__file__).parents[2] / "docs"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEMPLATE = (
    "{% for m in messages %}{{ '>' if m['role'] == 'user' else '<' }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """A tiny random chat model, which stands in for the one that the pages name."""
    folder = tmp_path_factory.mktemp("model")
    names = ["<unk>", "<eos>", *"<> ?+.", *"0123456789", *"abcdefghijklmnopqrstuvwxyzWCT"]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<eos>")
    tokenizer.chat_template = TEMPLATE
    network = tiny_models.network(dtype=torch.float32, vocab_size=len(names), max_position_embeddings=256)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=["from-trl", "from-verl"])
def page(request, chat_model, tmp_path_factory):
    """A page's folder after all its examples were run in their order: files written, Python and commands executed."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for language, text in re.findall(r"```(\w+)\n(.*?)```", (DOCS / f"{request.param}.md").read_text(), re.S):
            run_block(language, text.replace(MODEL, chat_model))
    return request.param, folder


def run_block(language: str, text: str) -> None:
    first = text.partition("\n")[0]
    if first in ("# TRL", "# verl"):  # theirs, not ours
        return
    if re.fullmatch(r"# \w+\.py", first):
        Path(first[2:]).write_text(text)
    elif language == "python":
        names = {"__name__": "page"}
        exec(compile(text, "page", "exec"), names)
        if "dataset" in names and not Path("train.jsonl").exists():
            names["dataset"].to_json("train.jsonl")
    elif language == "sh":
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "melior" and command([*words[1:], *(["--quiet"] if words[1] == "train" else [])]) == 0


def test_every_example_runs(page):
    name, folder = page
    runs = {path.name for path in (folder / "runs").iterdir()}
    if name == "from-trl":
        assert runs == {"sums", "sums-command", "adapter", "watched", "with-kl", "mine", "sapo", "overridden"}
        assert (folder / "runs" / "adapter" / "model" / "adapter_config.json").exists()
        three = rows(folder / "runs" / "sums")
        assert [row["lr"] for row in three] == sorted((row["lr"] for row in three), reverse=True)
        assert three == rows(folder / "runs" / "sums-command")  # Python and the command line are the same run
    else:
        assert {"gsm8k-like", "median"} <= runs


def test_the_functions_of_the_script_are_moved_unchanged():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "from-trl.md").read_text(), re.S)[:3]
    functions = [re.findall(r"^def .*?(?=^\S|\Z)", block, re.S | re.M) for block in blocks]
    plain = [[function.strip() for function in each] for each in functions]
    assert plain[0] == plain[1] == plain[2] and len(plain[0]) == 2


# The fields of GRPOConfig in TRL 1.16.0, apart from deprecated ones; of `TrainingArguments` those the page maps.
GRPO_CONFIG = """
model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 remove_unused_columns
num_generations num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of
generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
repetition_penalty cache_implementation use_vllm vllm_mode beta num_iterations epsilon delta epsilon_high
importance_sampling_level reward_weights multi_objective_aggregation scale_rewards loss_type mask_truncated_completions
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef use_adaptive_entropy
entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations
vllm_importance_sampling_correction off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal
num_completions_to_print log_unique_prompts log_completions_hub_repo use_transformers_continuous_batching
transformers_continuous_batching_config learning_rate
""".split()  # noqa: SIM905


def test_every_field_of_grpo_config_is_on_the_page():
    page = (DOCS / "from-trl.md").read_text()
    assert not [name for name in GRPO_CONFIG if not re.search(rf"\b{name}\b", page)]
    for family in ("sapo_temperature_*", "vespo_*", "vllm_*"):
        assert f"`{family}`" in page


@pytest.mark.parametrize(("names", "name"), [(TRL, "from-trl"), (VERL, "from-verl")])
def test_names_that_are_answered_are_on_the_page_and_lead_to_something(names, name):
    page = (DOCS / f"{name}.md").read_text()
    settings = {f.name for f in fields(LanguageSettings)} | {"reward", "out", "name", "resume", "model"}
    for theirs, here in names.items():
        last = theirs.removeprefix("actor_rollout_ref.").removeprefix("reward.")
        assert re.search(rf"[`.-]{re.escape(last)}\b", page), theirs
        head = re.split(r"[\s=,(]", here)[0]
        assert head in settings or here.startswith(
            ("--set ", "each of", "the method", "the weight of a ReferenceKL")
        ), here
        assert theirs not in settings
        assert foreign(theirs).endswith(f"(docs/{name}.md)")


def test_names_of_trl_and_verl_are_answered_with_ours(tmp_path, capsys):
    with pytest.raises(UserError, match="reads no setting 'num_generations'; TRL's 'num_generations' is here n"):
        melior.train("grpo", num_generations=8)
    assert command(["train", "grpo", "--max-completion-length", "9"]) == 2
    assert "no such option '--max-completion-length'; TRL's 'max_completion_length' is here max_tokens" in (
        capsys.readouterr().err
    )
    assert command(["train", "grpo", "--set", "actor_rollout_ref.rollout.n=8"]) == 2
    assert "verl's 'actor_rollout_ref.rollout.n' is here n" in capsys.readouterr().err


def paths_set(name: str) -> list[str]:
    """Every `--set PATH=VALUE` and every bare `aggregate=NAME` that the tables of a page give."""
    text = re.sub(r"```.*?```", "", (DOCS / f"{name}.md").read_text(), flags=re.S)
    quoted = re.findall(r"`--set '?([^`']+)'?`", text)
    return [change for change in quoted if change != "PATH=VALUE"] + re.findall(r"`(aggregate=\w+)`", text)


@pytest.mark.parametrize("name", ["from-trl", "from-verl"])
def test_every_change_that_a_table_gives_can_be_made(name):
    from melior.records.overrides import apply

    bases = [melior.get(each) for each in ("grpo", "cispo", "ppo-lm", "dapo")]
    changes = paths_set(name)
    assert len(changes) > 10
    for change in changes:
        done = []
        for base in bases:
            try:
                done.append(apply(base, None, [change if "=" in change else f"{change}=1"])[0])
            except UserError:
                continue
        assert done, change


# ---- what the pages say about numbers


def test_the_kl_term_with_its_ratio_is_trls():
    from melior.objectives import ReferenceKL, TokenRatio
    from melior.parts import Evaluation
    from toys import table_batch

    logp = torch.tensor([[-0.4, -0.9], [-2.5, -0.1]]).double().requires_grad_()
    old, reference = logp.detach() + 0.3, torch.tensor([[-1.0, -0.3], [-2.5, -0.7]]).double()
    batch = table_batch([0.0, 1.0], [[0, 0], [0, 0]], [0, 0]).with_(proximal_logp=old)
    ours = ReferenceKL("k3", ratio=TokenRatio())(Evaluation(logp), batch.scored("reference", logp=reference))
    difference = reference - logp
    theirs = (difference.exp() - difference - 1) * (logp - old).exp()
    gradients = [torch.autograd.grad(each.sum(), logp)[0] for each in (ours, theirs)]
    assert torch.allclose(ours, theirs, atol=1e-12) and torch.allclose(*gradients, atol=1e-12)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_the_dual_clip_is_delta_where_delta_lies_above_the_clip(advantage):
    from melior.objectives.policy_gradient import clipped_surrogate

    ratio, a, delta = torch.linspace(0.1, 9, 60).double(), torch.tensor(advantage).double(), 4.0
    theirs = -torch.minimum(ratio.clamp(max=delta) * a, ratio.clamp(0.8, 1.2) * a)
    assert torch.allclose(clipped_surrogate(ratio, a.expand_as(ratio), 0.2, 0.2, delta), theirs)


def test_gdpo_is_normalize_then_sum():
    from melior.advantages.decoupled import GroupDecoupled
    from toys import table_batch

    table = torch.tensor([[1.0, 0.2], [0.0, 0.4], [1.0, 0.0], [0.0, 3.0]]).double()
    batch = table_batch([0.0] * 4, [[0]] * 4, [0, 0, 1, 1])
    batch = batch.with_(components={"a": table[:, 0], "b": table[:, 1]}, weights={"a": 1.0, "b": 0.5})
    grouped = table.view(2, 2, 2)
    each = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    total = (each.view(4, 2) * torch.tensor([1.0, 0.5])).sum(1)
    expected = (total - total.mean()) / (total.std() + 1e-4)
    assert torch.allclose(GroupDecoupled()(batch).advantage[:, 0], expected)


def test_the_gate_of_the_page_is_sapos(page):
    name, folder = page
    if name != "from-trl":
        pytest.skip("the file stands on the other page")
    from melior.objectives import TokenMean
    from melior.parts import Evaluation
    from toys import table_batch

    record = load_object(f"{folder}/sapo.py:SAPO")
    batch = table_batch([1.0, 0.0], [[0, 0], [0, 0]], [0, 0])
    batch = record.advantage(batch).with_(proximal_logp=torch.full((2, 2), -1.0).double())
    now = Evaluation(torch.tensor([[-0.5, -1.2], [-0.7, -2.0]]).double())
    a, rho = batch.advantage, (now.logp + 1).exp()
    tau = torch.where(a > 0, 1.0, 1.05)
    expected = (-torch.sigmoid(tau * (rho - 1)) * 4 / tau * a).mean()
    assert record.objective(now, batch, TokenMean()).value.item() == pytest.approx(expected.item(), rel=1e-12)
