"""A run that is followed: told when something changes, ended with the run, safe against Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import pytest

from melior.inspect.doctor import Diagnosis
from melior.inspect.doctor.watching import changes, watch
from melior.storage.folder import RunFolder
from melior.storage.lock import is_held

CONFIG = "record: {method: grpo}\nsettings: {kind: LanguageSettings, n: 8}\n"


class Live:
    """A run that makes steps whenever it is waited for, and ends."""

    def __init__(self, path: Path, steps: int, a_look: int) -> None:
        self.folder = RunFolder.create(path, CONFIG, "0")
        self.steps, self.a_look, self.step, self.waits = steps, a_look, 0, 0

    def wait(self, seconds: float) -> None:
        self.waits += 1
        for _ in range(self.a_look):
            if self.step == self.steps:
                self.folder.close()
                return
            self.step += 1
            dead = {"reward": 0.0, "reward_std": 0.0, "pass_rate": 0.0, "mixed_share": 0.0}
            self.folder.append_metrics({"step": self.step, **dead})


def test_it_tells_what_changes_and_ends_with_the_run(tmp_path):
    live = Live(tmp_path / "run", 24, 2)
    told: list[tuple[Diagnosis, Diagnosis | None]] = []
    last = watch(live.folder.path, lambda now, before: told.append((now, before)), wait=live.wait)
    # At first nothing can be told; from the fifth step on the reward is seen to be dead; from the twentieth it is
    # certain that there are samples enough.
    assert [now.verdict for now, _ in told] == ["cannot tell", "ill", "ill"]
    assert [now.steps for now, _ in told] == [None, (1, 6), (1, 20)]
    assert last.names == ("dead-reward",) and live.step == 24
    assert told[0][1] is None and told[1][1] is told[0][0]
    assert "dead-reward (critical" in changes(*told[1])
    assert "no longer seen: too-few-samples" in changes(*told[2])


def test_a_run_that_is_over_is_looked_at_once(tmp_path):
    live = Live(tmp_path / "run", 6, 6)
    live.wait(0)
    live.wait(0)
    told: list[Diagnosis] = []
    watch(live.folder.path, lambda now, before: told.append(now), wait=lambda seconds: pytest.fail("waited"))
    assert [each.steps for each in told] == [(1, 6)]


def test_nothing_is_examined_while_nothing_is_new(tmp_path, monkeypatch):
    import melior.inspect.doctor.watching as watching

    live, looks = Live(tmp_path / "run", 6, 6), []
    examine = watching.examine
    monkeypatch.setattr(watching, "examine", lambda *args: looks.append(1) or examine(*args))
    waits = iter(range(9))

    def wait(seconds: float) -> None:
        if next(waits) in (3, 8):
            live.wait(seconds)

    watch(live.folder.path, lambda now, before: None, wait=wait)
    assert len(looks) == 2


def test_ctrl_c_leaves_the_verdict_so_far(tmp_path):
    live = Live(tmp_path / "run", 100, 8)

    def wait(seconds: float) -> None:
        if live.waits == 2:
            raise KeyboardInterrupt
        live.wait(seconds)

    last = watch(live.folder.path, lambda now, before: None, wait=wait)
    live.folder.close()
    assert last.verdict == "ill" and last.steps == (1, 16)


def test_a_lock_is_seen_and_not_disturbed(tmp_path):
    assert not is_held(tmp_path)
    folder = RunFolder.create(tmp_path / "run", CONFIG, "0")
    assert is_held(folder.path)
    folder.append_metrics({"step": 1})
    folder.close()
    assert not is_held(folder.path)
    with RunFolder.open(folder.path):
        assert is_held(folder.path)
