"""A run of the line as the outer loop sees it, whatever its world."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melior.loops.iteration import iterate
from melior.run import BETWEEN, Run
from melior.storage.constants import Constant
from melior.storage.folder import RunFolder


class RunTrainee:
    """Steps, evaluates, puts away and takes up again everything that a `Run` of the line holds.

    Attributes:
        run: the handle.
        intact: after a failed `advance`, whether everything is as it was before it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.run.round = BETWEEN
        self.intact = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided on the user's behalf, and what looks odd."""
        return self.run.notes

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self.run.step

    def advance(self) -> dict[str, float]:
        """One step of the line."""
        return iterate(self.run)

    def evaluate(self) -> Mapping[str, Any]:
        """Held-out figures."""
        return self.run.evaluate()

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on, the policies apart: `save` writes those."""
        return {
            "step": self.run.step,
            "version": self.run.version,
            "world": dict(self.run.world.state()),
            "memory": {name: s.state() if hasattr(s, "state") else s for name, s in self.run.state.items()},
            "learners": {
                name: {part: value for part, value in learner.state().items() if part != "policy"}
                for name, learner in self.run.learners.items()
            },
            "scorers": {name: self._scorer_state(name) for name in self._owned()},
        }

    def load(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Put back what `save` wrote into the folder, and the state, bit for bit."""
        self.run.step, self.run.version = state["step"], state["version"]
        self.run.world.load_state(state["world"])
        for name, learner in self.run.learners.items():
            learner.policy.load(self._place(folder, name))
            learner.load_state(state["learners"][name])
        for name, saved in state["memory"].items():
            if hasattr(self.run.state[name], "load_state"):
                self.run.state[name].load_state(saved)
            else:
                self.run.state[name] = saved
        for name in self._owned():
            self.run.scorers[name].load_state(state["scorers"][name])

    def save(self, folder: Path) -> None:
        """Each learner's policy in its own public format; further learners in folders of their names."""
        for name, learner in self.run.learners.items():
            learner.policy.save(self._place(folder, name))

    def record(self, folder: RunFolder) -> None:
        """Keeps no rollouts."""
        self.run.batches.clear()
        self.run.dropped.clear()

    def forget(self, folder: RunFolder) -> None:
        """There is nothing to remove."""

    @staticmethod
    def _place(folder: Path, learner: str) -> Path:
        return folder if learner == "policy" else folder / learner

    def _scorer_state(self, key: str) -> Mapping[str, Any]:
        """A scorer's weights; those that never change are saved once a run."""
        state = self.run.scorers[key].state()
        return Constant(key, state) if self._weights(key) == "initial" else state

    def _owned(self) -> list[str]:
        """Scorers whose weights neither a path nor the live policy gives back."""
        return [key for key in self.run.scorers if self._weights(key) in ("initial", "average", "snapshot")]

    def _weights(self, key: str) -> str:
        """Whose weights a scorer "learner/name" has."""
        learner, _, name = key.partition("/")
        return self.run.scorer_record(name, learner).weights
