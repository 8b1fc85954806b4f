"""A folder through which an engine elsewhere takes a policy's weights, and the labels they are known by."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

from melior.errors import RunError, UserError
from melior.policies.causal_lm import FURTHER
from melior.policies.policy import TextPolicy
from melior.policies.value_head import FILE as VALUE_HEAD
from melior.storage.writing import saving

ADAPTER = "adapter_config.json"


class WeightFolder:
    """The newest weights of one policy as a plain transformers (or peft) folder; every version has a path of its own.

    Engines cache by path, so a path never holds two versions.

    Attributes:
        place: where the folders are made; "" makes a temporary one. Trainer and engine must both see it.
        run: a name that no other run has, for labels and adapters.
    """

    def __init__(self, place: str = "") -> None:
        self.place, self.run = place, uuid.uuid4().hex[:8]
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._newest: Path | None = None
        self._count = 0

    def write(self, policy: TextPolicy) -> tuple[Path, str]:
        """The policy's weights on disk: their folder, and the label of this version. Older ones stay until `prune`."""
        if self._own is None:
            if self.place:
                Path(self.place).mkdir(parents=True, exist_ok=True)
            self._own = tempfile.TemporaryDirectory(prefix="melior-weights-", dir=self.place or None)
            if self.place:
                Path(self._own.name).chmod(0o755)  # the engine may run as another user
        self._count += 1
        label = f"melior-{self.run}-{self._count}"
        path = Path(self._own.name).resolve() / label
        with saving(str(path)):
            policy.save(path)
        # An engine reads every safetensors file of a folder, and knows no value heads.
        (path / VALUE_HEAD).unlink(missing_ok=True)
        if (path / FURTHER).exists():
            raise UserError(
                "the policy trains weights beside its LoRA adapter, which no sampler elsewhere can load; use "
                "--sampler local"
            )
        self._newest = path
        return path, label

    def prune(self) -> None:
        """Remove all versions but the newest, which an engine may read again."""
        if self._own is None or self._newest is None:
            return
        for path in Path(self._own.name).resolve().iterdir():
            if path != self._newest:
                shutil.rmtree(path)

    def close(self) -> None:
        """Remove everything."""
        if self._own is not None:
            self._own.cleanup()
        self._own = self._newest = None


class Labels:
    """Which version of the weights a label of an engine stands for.

    Attributes:
        newest: the version that was pushed last.
    """

    def __init__(self) -> None:
        self.newest = 0
        self._known: dict[str, int] = {}

    def add(self, label: str, version: int) -> None:
        """The weights with this label were pushed as that version."""
        self._known[label] = self.newest = version

    def version(self, label: str | None) -> int:
        """The version of a label; the newest for None. RunError for a label that this run never gave."""
        if label is None:
            return self.newest
        if label not in self._known:
            raise RunError(
                f"the sampler drew tokens with weights that it calls '{label}', which this run did not give it: it "
                "was started again, or another run uses it"
            )
        return self._known[label]


def is_adapter(folder: Path) -> bool:
    """Whether a saved policy is a LoRA adapter."""
    return (folder / ADAPTER).exists()
