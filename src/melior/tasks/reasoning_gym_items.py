"""Items of reasoning-gym by number, and the verifiers that judge answers to them; imported once one is wanted."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from melior.errors import UserError


@contextlib.contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """Inside, the global random states are those of `seed` and nothing is printed; afterwards all is as before."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    before_numpy = numpy.random.get_state() if numpy else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        random.setstate(before)
        if numpy:
            numpy.random.set_state(before_numpy)


with undisturbed(0):  # the package draws from the global generator when it is imported
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
    from reasoning_gym.utils import extract_answer

__all__ = ["DATASETS", "Items", "score", "undisturbed"]


class Items:
    """The items of one data set with one configuration, by number; `full` is the name of their task."""

    def __init__(self, name: str, options: Mapping[str, Any], full: str) -> None:
        self.name, self.options = name, dict(options)
        self._made = functools.lru_cache(maxsize=4096)(self._make)
        with undisturbed(0):
            try:
                self.dataset = self._create(0)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UserError(f"task {full!r} cannot be made: {reason}") from error

    def __call__(self, number: int) -> dict[str, Any]:
        """Question, answer and metadata of an item, the same in every process."""
        return self._made(number)

    def score(self, completion: str, number: int) -> float:
        """The data set's own score of a completion, 0 to 1."""
        entry, answer = self(number), extract_answer(completion)
        with undisturbed(number):
            try:
                return float(self.dataset.score_answer(completion.strip() if answer is None else answer, entry))
            except Exception:  # several verifiers parse the text without a guard: int("no idea")
                return 0.0

    def _create(self, seed: int) -> Any:
        return reasoning_gym.create_dataset(self.name, seed=seed, size=1, **self.options)

    def _make(self, number: int) -> dict[str, Any]:
        with undisturbed(number):
            try:
                return dict(self.dataset[number])
            except IndexError:
                # A few prepare all their items beforehand; item 0 of one that begins at this seed is the same draw.
                return dict(self._create(number)[0])


def score(
    prompts: list[Any], completions: list[Any], *_: Any, task: list[str], item: list[int], **columns: Any
) -> list[float | None]:
    """The data set's own score of each completion, 0 to 1.

    It is given what stands in the last <answer>…</answer>, or else the whole completion, without white space around. A
    completion that the verifier cannot read, so that it raises an error, scores 0.
    """
    # By the name in the row, since a worker process knows nothing else of the task.
    from melior.tasks.reasoning_gym import items_of

    return [items_of(name).score(text, int(number)) for text, name, number in zip(completions, task, item, strict=True)]
