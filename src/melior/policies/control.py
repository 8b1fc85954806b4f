"""Policies for environments: the kind that fits the actions, and back from a folder."""

from __future__ import annotations

import json
from pathlib import Path

from melior.errors import UserError, near
from melior.policies.categorical import Categorical
from melior.policies.gaussian import Gaussian
from melior.policies.networks import MLP, NetworkPolicy

KINDS: dict[str, type[NetworkPolicy]] = {"categorical": Categorical, "gaussian": Gaussian}


def control_policy(observation: int, actions: int, discrete: bool, body: MLP, seed: int) -> NetworkPolicy:
    """A fresh policy: categorical over `actions` choices, or Gaussian over vectors of `actions` numbers."""
    return (Categorical if discrete else Gaussian)(observation, actions, body, seed)


def load_control_policy(folder: Path) -> NetworkPolicy:
    """The policy that `save` wrote into a folder.

    Raises:
        UserError: the folder holds none, or its files do not belong together.
    """
    from safetensors.torch import load_file

    description, weights = folder / "policy.json", folder / "policy.safetensors"
    for file in (description, weights):
        if not file.is_file():
            raise UserError(f"{folder} holds no control policy: {file.name} is missing")
    told = json.loads(description.read_text())
    if told.get("kind") not in KINDS:
        raise UserError(f"{description} names no kind of policy{near(str(told.get('kind')), KINDS)}")
    body = MLP(tuple(told["hidden"]), told["activation"])
    policy = KINDS[told["kind"]](told["observation"], told["actions"], body)
    if told["value"]:
        policy.add_values()
    policy.load_state(load_file(weights))
    return policy
