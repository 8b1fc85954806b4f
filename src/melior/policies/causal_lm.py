"""A transformers causal language model as a policy over token ids."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from melior.data.tokenizer import end_ids
from melior.errors import RunError
from melior.parts import Evaluation, Need, Needs
from melior.policies.bfloat16 import multiplies_bfloat16, products
from melior.policies.chunked import evaluate_chunks, functionals, other_sources
from melior.policies.decoding import CachedDecoder
from melior.policies.llama import steps_alone
from melior.policies.lora import Adapter
from melior.policies.output import OutputHead
from melior.policies.packable import attention_share, mask_type, packs, window
from melior.policies.packing import PrefixGrouper
from melior.policies.policy import GivesLogits, LogitSource
from melior.policies.rows import Rows
from melior.policies.silence import without_bars
from melior.policies.value_head import FILE, ValueHead
from melior.trajectories import Trajectories

# Float32 logits of one chunk of positions: 128 MB.
CHUNK_ELEMENTS = 2**25
# What a forward and backward pass may keep on the CPU; on a GPU it is a share of the GPU's memory.
BUDGET_BYTES = 2 * 10**9
GPU_SHARE = 0.3
POOLED_TOKENS = 10
FURTHER = "further_weights.safetensors"  # beside an adapter: trained weights that its own file does not hold


class CausalLM:
    """A causal language model: exact log-probabilities, a value head on demand, cached decoding.

    The likelihood is that of the tokens under logits / temperature. Dropout is always off.

    Attributes:
        network: the transformers model.
        tokenizer: its tokenizer.
        adapter: the LoRA adapter it acts with; None when all weights are the policy's own.
        autocast: compute in bfloat16 over weights that stay float32.
        vocabulary, context, stop_ids: as in `TextPolicy`.
        trained: names of the network's parameters that training changes.
        chunk_elements: most logits (positions * vocabulary) that exist at once.
        packing: how rows of one prompt share its encoding where that pays; None, as in float64, keeps them apart.
    """

    likelihood: Literal["exact", "surrogate", "none"] = "exact"

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        *,
        adapter: Adapter | None = None,
        temperature: float = 1.0,
        autocast: bool = False,
        gradient_checkpointing: bool = False,
        value_from: Path | None = None,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.adapter = adapter
        self.temperature = temperature
        self.autocast = autocast
        self.gradient_checkpointing = gradient_checkpointing
        self.value_head: ValueHead | None = None
        self.value_from = value_from
        self.chunk_elements = CHUNK_ELEMENTS
        # Who computes in float64 compares digits, and many models' norms round to float32 even there.
        self.packing: PrefixGrouper | None = None if self.dtype == torch.float64 else PrefixGrouper()
        config = network.config.get_text_config()
        self.vocabulary = int(network.get_output_embeddings().weight.shape[0])
        self.context = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self.stop_ids = end_ids(tokenizer, network.generation_config)
        self.trained = tuple(name for name, value in network.named_parameters() if value.requires_grad)
        _silence(network, gradient_checkpointing, lambda: (nullcontext(), products(self.device, self.autocast)))
        self.output = OutputHead.of(network)
        self.window = window(config)
        self._attention = attention_share(network)
        self._alone: bool | None = None  # whether its steps of decoding can be made without its own forward pass
        self._packs: bool | None = None  # whether the model takes packed rows; found out when they first matter

    @property
    def device(self) -> torch.device:
        """Where its parameters lie."""
        return self.network.get_output_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and of every log-probability: float32 or float64."""
        return self.network.get_output_embeddings().weight.dtype

    @contextmanager
    def active(self, decoding: bool = False) -> Iterator[None]:
        """Within, the network computes as this policy: with its adapter, in its precision.

        Decoding on a device without bfloat16 arithmetic goes by the float32 weights themselves: to round what such a
        device computes in float32 anyway only costs time.
        """
        halved = self.autocast and not (decoding and not multiplies_bfloat16(self.device))
        with ExitStack() as stack:
            if self.adapter is not None:
                stack.enter_context(self.adapter.active())
            # Casts made without gradient must not serve a pass with gradient, so they are never cached there.
            stack.enter_context(
                torch.autocast(self.device.type, torch.bfloat16, enabled=halved, cache_enabled=torch.is_grad_enabled())
            )
            stack.enter_context(products(self.device, halved))
            yield

    def evaluate(
        self, batch: Trajectories, needs: Needs = frozenset(), others: Mapping[str, GivesLogits] | None = None
    ) -> Evaluation:
        """`logp` [B,T] and all that is needed, for one micro-batch; zeros past the end of a row.

        A need with a head is evaluated on the logits; "value" [B,T] is the value of the state before each token;
        "hidden" [B,d] is the mean of the last 10 completion tokens at the middle layer. Dropout is off.
        """
        plain = {need for need in needs if need.head is None and need.quantity != "logp"}
        wanted, sources = functionals(needs), other_sources(needs, others or {}, batch)
        pooled = _wanted("hidden", plain)
        with self.active():
            rows = self._laid_out(batch, whole=pooled is not None)
            hidden, logits, middle = self._forward(rows, pooled is not None)
            found = evaluate_chunks(hidden, rows.tokens, logits, wanted, sources, self._chunk_rows())
        if (with_gradient := _wanted("value", plain)) is not None:
            with torch.set_grad_enabled(with_gradient and torch.is_grad_enabled()):
                found["value"] = self._value(hidden)
        extra = {name: rows.spread(value) for name, value in found.items()}
        if middle is not None:
            with torch.set_grad_enabled(bool(pooled) and torch.is_grad_enabled()):
                extra["hidden"] = rows.pool(middle, POOLED_TOKENS)
        unknown = sorted({need.quantity for need in plain} - set(extra))
        if unknown:
            raise ValueError(f"a language model does not know the quantity '{unknown[0]}'; give the need a head")
        # Batches stay where they are (on the CPU in a language run); only the network computes on its own device.
        extra = {name: value.to(batch.mask.device) for name, value in extra.items()}
        return Evaluation(extra.pop("logp"), extra)

    @torch.no_grad()
    def logit_source(self, batch: Trajectories) -> LogitSource:
        """The logits after temperature of the batch's actions, by chunks and without gradient."""
        with self.active():
            hidden, logits, _ = self._forward(self._laid_out(batch), False)

        def chunk(first: int, last: int) -> torch.Tensor:
            with torch.no_grad(), self.active():
                return logits(hidden[first:last], first, last)

        return chunk

    def prepare(self, needs: Needs) -> None:
        """Grow a value head (zero, or the one saved beside the model) when a need asks for values."""
        if self.value_head is None and any(need.quantity == "value" and need.head is None for need in needs):
            width = int(self.network.get_output_embeddings().weight.shape[1])
            self.value_head = ValueHead(width, self.dtype, self.device)
            if self.value_from is not None and (self.value_from / FILE).exists():
                self.value_head.load(self.value_from)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trainable parameters: all weights, or the adapter's, and the value head's. None for a frozen policy."""
        return ((name, value) for name, value in self._own() if value.requires_grad)

    def state(self) -> dict[str, torch.Tensor]:
        """Name -> live tensor of everything that training changes; a frozen policy has the same names."""
        return {name: value.detach() for name, value in self._own()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put such a state back; a missing, superfluous or misshapen tensor is an error that names it."""
        mine = self.state()
        for name in sorted(mine.keys() ^ state.keys()):
            raise RunError(f"the saved policy {'lacks' if name in mine else 'has a superfluous'} tensor '{name}'")
        for name, value in mine.items():
            if value.shape != state[name].shape:
                raise RunError(
                    f"the saved tensor '{name}' has shape {tuple(state[name].shape)} instead of {tuple(value.shape)}"
                )
            value.copy_(state[name])

    def frozen(self) -> CausalLM:
        """The policy as it is now: a copy, or with LoRA the same base weights under a copy of the adapter."""
        twin = copy.copy(self)
        if self.adapter is None:
            twin.network = copy.deepcopy(self.network).requires_grad_(False)
        else:
            twin.adapter = self.adapter.frozen()
        twin.value_head = copy.deepcopy(self.value_head)
        if twin.value_head is not None:
            twin.value_head.requires_grad_(False)
        return twin

    def save(self, folder: Path) -> None:
        """Write a plain transformers folder (with LoRA a peft folder) with tokenizer, and the value head beside it."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is None:
            with without_bars():
                self.network.save_pretrained(str(folder))
        else:
            self.adapter.save(folder)
            if further := self._further():
                save_file({name: value.contiguous() for name, value in further.items()}, folder / FURTHER)
        self.tokenizer.save_pretrained(str(folder))
        if self.value_head is not None:
            self.value_head.save(folder)

    def load(self, folder: Path) -> None:
        """Take the weights that `save` wrote, bit for bit."""
        from safetensors.torch import load_file

        if self.adapter is None:
            self._load_network(folder)
        else:
            self.adapter.load(folder)
            if further := self._further():
                saved = load_file(folder / FURTHER)
                for name, value in further.items():
                    value.copy_(saved[name])
        if self.value_head is not None:
            self.value_head.load(folder)

    def rows_at_once(self, width: int) -> int:
        """How many rows of `width` tokens (prompt included) a forward and backward pass may hold in moderate memory."""
        config = self.network.config.get_text_config()
        hidden = int(self.network.get_output_embeddings().weight.shape[1])
        inner = getattr(config, "intermediate_size", None) or 4 * hidden
        layer, layers = 12 * hidden + 4 * int(inner), int(getattr(config, "num_hidden_layers", 1))
        kept = layers * hidden + layer if self.gradient_checkpointing else layers * layer
        if self.output.scale is None:
            kept += 3 * self.vocabulary
        budget = float(BUDGET_BYTES)
        if self.device.type == "cuda":
            budget = max(budget, GPU_SHARE * torch.cuda.get_device_properties(self.device).total_memory)
        return max(1, int(budget / (max(width, 1) * kept * self.dtype.itemsize)))

    def decoder(self, prompts: Sequence[tuple[int, ...]], n: int) -> CachedDecoder:
        """A decoder over len(prompts) * n rows, the n siblings of a prompt together."""
        return CachedDecoder(self, prompts, n)

    def steps_alone(self) -> bool:
        """Whether decoding may go by `LlamaSteps` instead of the model's own forward pass; found out once."""
        if self.adapter is not None or (self.autocast and multiplies_bfloat16(self.device)):
            return False
        if self._alone is None:
            self._alone = steps_alone(self.network)
        return self._alone

    def render(self, prompt: object) -> tuple[int, ...]:
        """Token ids of a plain text, without template and special tokens."""
        return tuple(self.tokenizer.encode(str(prompt), add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What distinguishes this policy from others over the same network."""
        known = dict(self.network.named_parameters())
        for name in self.trained:
            yield f"model.{name}", known[name if self.adapter is None else self.adapter.own(name)]
        if self.value_head is not None:
            yield from (("value_head." + name, value) for name, value in self.value_head.named_parameters())

    def _further(self) -> dict[str, torch.Tensor]:
        """Trained weights that are no part of the adapter's own file (a base model's norms that the user unfroze)."""
        assert self.adapter is not None
        saved = {value.data_ptr() for value in self.adapter.saved().values()}
        own = self.state().items()
        return {name: value for name, value in own if name.startswith("model.") and value.data_ptr() not in saved}

    def _load_network(self, folder: Path) -> None:
        """By the loader that belongs to `save_pretrained`: it knows of shards, tied weights and renamed ones."""
        with without_bars(), torch.random.fork_rng(devices=[]):
            twin, report = type(self.network).from_pretrained(
                str(folder),
                dtype=self.dtype,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        saved = {name: value for name, value in twin.named_parameters() if name not in report["missing_keys"]}
        mine = dict(self.network.named_parameters())
        for name, value in mine.items():
            if name not in saved or saved[name].shape != value.shape:
                raise RunError(f"the model in {folder} has no tensor '{name}' of shape {tuple(value.shape)}")
        with torch.no_grad():
            for name, value in mine.items():
                value.copy_(saved[name])

    def _chunk_rows(self) -> int:
        return max(1, self.chunk_elements // self.vocabulary)

    def _value(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.value_head is None:
            raise RunError("values are needed, but the policy was not prepared for them; call prepare(needs) first")
        return self.value_head(hidden)

    def _laid_out(self, batch: Trajectories, whole: bool = False) -> Rows:
        """The micro-batch as the network sees it: siblings behind one prompt where that is exact and pays."""
        plan = None
        if self.packing is not None:
            lengths = batch.length.cpu()
            kept = (lengths if whole else (lengths - 1).clamp(min=0)).tolist()
            plan = self.packing(batch.prompt, kept, self._attention)
            if plan is not None:
                longest = max(len(prompt) + n for prompt, n in zip(batch.prompt, kept, strict=True))
                plan = plan if longest <= self.window and self._takes_packed_rows() else None
        return Rows.of(batch, self.device, whole, plan)

    def _takes_packed_rows(self) -> bool:
        if self._packs is None:
            with torch.autocast(self.device.type, enabled=False):
                self._packs = packs(self.network, self.output)
        return self._packs

    def _forward(
        self, rows: Rows, middle: bool
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor, int, int], torch.Tensor], torch.Tensor | None]:
        """Last hidden states [M,d] at the actions, their logits by chunks, and the middle layer [P,L,d] if asked."""
        mask = rows.mask(mask_type(self.network, self.autocast))
        out = self.output.run(self.network, rows.ids, rows.positions, middle, mask)
        hidden = out.hidden.flatten(0, 1)[rows.before]
        full = None if out.logits is None else out.logits.flatten(0, 1)[rows.before]

        def logits(part: torch.Tensor, first: int, last: int) -> torch.Tensor:
            with products(self.device, self.autocast):  # once more when the chunk is computed again
                raw = self.output(self.network, part) if full is None else full[first:last]
            exact = raw.to(self.dtype)
            return exact if self.temperature == 1 else exact / self.temperature

        return hidden, logits, out.middle


def _wanted(quantity: str, needs: set[Need]) -> bool | None:
    """None when nobody needs the quantity, otherwise whether somebody needs its gradient."""
    asked = [need.on == "policy" for need in needs if need.quantity == quantity]
    return any(asked) if asked else None


def _silence(network: Any, gradient_checkpointing: bool, contexts: Callable[[], tuple[Any, Any]]) -> None:
    """Evaluation mode for good: dropout would make the first ratio differ from 1.

    `contexts` are those of a checkpointed layer's first pass and of its recomputation.
    """
    network.eval()
    if not gradient_checkpointing:
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    # The second is the name before transformers 5.24.
    enable = getattr(network, "activation_checkpointing_enable", None) or network.gradient_checkpointing_enable
    enable({"use_reentrant": False, "context_fn": contexts})
    for layer in network.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            # A layer recomputes itself only in training mode; its children stay in evaluation mode.
            layer.training = True
            for name, value in vars(layer).items():
                if "drop" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)
