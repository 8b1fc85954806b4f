"""From the setting `sampler` to whatever samples, and what it cannot do for a method."""

from __future__ import annotations

from melior.engines.local import LocalSampler
from melior.engines.protocol import Sampler
from melior.engines.remote import RemoteSampler
from melior.engines.vllm import VllmSampler
from melior.errors import UserError
from melior.method import Method
from melior.parts import Blend
from melior.policies.policy import TextPolicy
from melior.policies.table import Table
from melior.settings import LanguageSettings, as_sampler


def choose_sampler(settings: LanguageSettings) -> Sampler:
    """The sampler that the settings name.

    Raises:
        UserError: no such sampler, one that this machine cannot run, or settings that it does not read.
    """
    idle = [name for name, value in as_sampler(settings.sampler).items() if getattr(settings, name) != value]
    if idle:
        raise UserError(f"{', '.join(idle)} would have no effect with the sampler {settings.sampler}")
    if settings.sampler == "local":
        return LocalSampler()
    if settings.sampler == "vllm":
        longest = settings.max_prompt_tokens and settings.max_prompt_tokens + settings.max_tokens
        return VllmSampler(settings.dtype, settings.sampler_memory, longest, settings.sampler_folder)
    return RemoteSampler(settings.sampler, settings.sampler_model, settings.sampler_folder, settings.sampler_timeout)


def refuse_unserved(sampler: Sampler, method: Method, policy: TextPolicy) -> None:
    """Refuses what a sampler elsewhere cannot do: it serves one language model and returns nothing but its tokens.

    Raises:
        UserError: the method mixes distributions or has several learners, or the policy is a table.
    """
    if not sampler.elsewhere:
        return
    cannot = f"the sampler {sampler.name}"
    if isinstance(policy, Table):
        raise UserError(f"{cannot} serves language models, and the tabular policy is none; use --sampler local")
    if method.others:
        raise UserError(
            f"{cannot} holds the weights of one policy, and method '{method.name}' also trains "
            f"{', '.join(method.others)}; use --sampler local"
        )
    blends = sorted({type(part).__name__ for part in method.walk() if isinstance(part, Blend)})
    if blends:
        raise UserError(
            f"{cannot} returns tokens and not whole distributions, which {', '.join(blends)} of method "
            f"'{method.name}' mixes token by token; use --sampler local"
        )
