"""Checkpoints: complete or not there at all, verified when they are read, the older ones pruned."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from melior.errors import RunError, UserError
from melior.storage.checksums import Facts, facts_of, verify
from melior.storage.constants import Constant, Place, load_constant, put_back, save_constant, taken_out
from melior.storage.tree import Tree, load_tree, save_tree, tree_files
from melior.storage.writing import TEMPORARY, saving, sync_file, sync_folder

MANIFEST = "manifest.json"
REPLACED = ".old-"  # a checkpoint that another one of the same step is taking the place of
STEP = re.compile(r"step-(\d{6,})")


class Checkpoints:
    """The checkpoints of a run folder, in its subfolder `checkpoints`.

    A checkpoint is a folder `step-000012` that holds each tree as NAME.safetensors and NAME.json, each further folder
    (a model for plain transformers, say), and `manifest.json` with the size and SHA-256 of every file, the step and
    the score. A `Constant` within a tree is written once for all of them, into `reference` beside their folder.

    A checkpoint is written beside and renamed into place, so a process killed at any moment leaves only complete
    ones. Whoever saves is alone in doing so, by the run's lock; its first save clears away what such a death left.
    Looking and loading change nothing, and may happen while another process saves.

    Attributes:
        folder: the folder of the checkpoints; the first save makes it.
        keep: how many of the newest are kept, at least 1.
        keep_best: whether the one with the highest score is kept as well (the earliest of equals).
    """

    def __init__(self, run_folder: Path, keep: int = 2, keep_best: bool = False) -> None:
        if keep < 1:
            raise UserError(f"keep is {keep}, but a run needs at least 1 checkpoint to go on from")
        self.folder, self.keep, self.keep_best = Path(run_folder) / "checkpoints", keep, keep_best
        self._clean = False
        self._constants: dict[str, Facts] = {}  # name -> its files, of those that are known to be on the disk

    def save(
        self,
        step: int,
        trees: Mapping[str, Tree],
        folders: Mapping[str, Callable[[Path], None]] = {},
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of a step, replacing one of the same step, then prune; returns its folder.

        `folders` maps the name of a subfolder to a function that is handed the subfolder's path and fills it. `score`
        (higher is better; None or NaN: unknown) decides which one is best. Raises RunError when the disk refuses;
        nothing half-written is left then and the older checkpoints are intact.
        """
        final = self.folder / f"step-{step:06d}"
        temporary = self.folder / f"{TEMPORARY}{final.name}"
        hint = f"the checkpoints before it are intact, so free some space and go on with --resume {self.folder.parent}"
        with saving(f"checkpoint {final.name} in {self.folder}", hint):
            self._clear_leftovers()
            plain, constants = taken_out(trees)
            shared = [self._shared(place, constant) for place, constant in constants.items()]
            try:
                _write(temporary, step, plain, folders, score, shared)
                self._put_in_place(temporary, final)
            except BaseException:
                _remove(temporary)
                raise
        self._prune()
        return final

    def latest(self) -> Path | None:
        """See `latest_checkpoint`."""
        return latest_checkpoint(self.folder.parent)

    def best(self) -> Path | None:
        """The checkpoint with the highest known score, the earliest of equals; None when no score is known."""
        scored = [(score, path) for path in _complete(self.folder) if (score := _score(path)) is not None]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    def load(self, path: Path) -> dict[str, Tree]:
        """See `load_checkpoint`. The constants of that checkpoint are those of later ones."""
        trees = load_checkpoint(path)
        self._constants |= {entry["name"]: entry["files"] for entry in _manifest(path)["constants"]}
        return trees

    def cut(self, step: int) -> None:
        """Remove the checkpoints of later steps, for a run that goes on from an earlier one."""
        self._clear_leftovers()
        for path in _complete(self.folder):
            if checkpoint_step(path) > step:
                self._discard(path)

    def _shared(self, place: Place, constant: Constant) -> dict[str, Any]:
        """How a manifest refers to a constant, which is written when it is met first."""
        if constant.name not in self._constants:
            self._constants[constant.name] = save_constant(self.folder.parent, constant)
        return {"name": constant.name, "place": list(place), "files": self._constants[constant.name]}

    def _put_in_place(self, temporary: Path, final: Path) -> None:
        replaced = self.folder / (REPLACED + final.name)
        if final.exists():
            _remove(replaced)
            os.rename(final, replaced)
        try:
            os.rename(temporary, final)
        except OSError:
            if replaced.exists():
                os.rename(replaced, final)
            raise
        sync_folder(self.folder)
        _remove(replaced)

    def _prune(self) -> None:
        complete = _complete(self.folder)
        kept = set(complete[-self.keep :]) | ({self.best()} if self.keep_best else set())
        for path in complete:
            if path not in kept:
                self._discard(path)

    def _discard(self, path: Path) -> None:
        """Out of sight first, so that no half-removed folder is ever taken for a checkpoint."""
        hidden = self.folder / f"{TEMPORARY}discarded-{path.name}"
        _remove(hidden)
        os.rename(path, hidden)
        _remove(hidden)

    def _clear_leftovers(self) -> None:
        """Once for each writer, before it changes anything."""
        if self._clean:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(f"{REPLACED}*"):
            original = self.folder / path.name.removeprefix(REPLACED)
            if original.exists():
                _remove(path)
            else:  # killed between the two renames: the old one is still the checkpoint of its step
                os.rename(path, original)
        for path in self.folder.glob(f"{TEMPORARY}*"):
            _remove(path)
        self._clean = True


def latest_checkpoint(run_folder: Path) -> Path | None:
    """The newest checkpoint of a run folder, None when there is none.

    A folder of that name was complete when it got it; whether it still is gets found out by loading.
    """
    complete = _complete(Path(run_folder) / "checkpoints")
    return complete[-1] if complete else None


def checkpoints_of(run_folder: Path) -> list[Path]:
    """All checkpoints of a run folder, oldest first."""
    return _complete(Path(run_folder) / "checkpoints")


def verified_model(path: Path) -> Path:
    """The model folder of a checkpoint, its files compared with their checksums (RunError names one that differs)."""
    files = {name: entry for name, entry in _manifest(path)["files"].items() if name.startswith("model/")}
    verify(path, files, f"checkpoint {path.name}")
    return path / "model"


def checkpoint_step(path: Path) -> int:
    """The step after which a checkpoint was written, from its name."""
    match = STEP.fullmatch(path.name.removeprefix(REPLACED))
    if match is None:
        raise UserError(f"{path} is not a checkpoint: those are called step- and six digits")
    return int(match[1])


def load_checkpoint(path: Path) -> dict[str, Tree]:
    """The trees of a checkpoint by name, constants included, every file of them verified first.

    Raises RunError naming the part that is missing or was altered.
    """
    manifest = _manifest(path)
    verify(path, manifest["files"], f"checkpoint {path.name}")
    trees = {name: load_tree(path / quote(name, safe="")) for name in manifest["trees"]}
    for entry in manifest["constants"]:
        put_back(trees, tuple(entry["place"]), load_constant(path.parent.parent, entry["name"], entry["files"]))
    return trees


def _write(
    folder: Path,
    step: int,
    trees: Mapping[str, Tree],
    folders: Mapping[str, Callable[[Path], None]],
    score: float | None,
    constants: list[dict[str, Any]],
) -> None:
    folder.mkdir()
    for name, tree in trees.items():
        save_tree(folder / quote(name, safe=""), tree)
    for name, fill in folders.items():
        (folder / name).mkdir()
        fill(folder / name)
    files = facts_of(folder)
    manifest = {
        "step": step,
        "score": None if score is None or not math.isfinite(score) else float(score),
        "trees": list(trees),
        "constants": constants,
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for name in (*files, MANIFEST):
        sync_file(folder / name)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(path)


def _complete(folder: Path) -> list[Path]:
    """The checkpoints, oldest first: folders get their names when they are complete.

    One that was being replaced counts while its successor is not in place.
    """
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):  # names of replaced ones come first, so that the others win
        if STEP.fullmatch(path.name.removeprefix(REPLACED)) and path.is_dir():
            found[checkpoint_step(path)] = path
    return [found[step] for step in sorted(found)]


def _manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise RunError(f"checkpoint {path.name} lacks {MANIFEST} (in {path})")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        named = {ending for name in manifest["trees"] for ending in tree_files(quote(name, safe=""))}
        whole = named <= {name for name, entry in manifest["files"].items() if {"bytes", "sha256"} <= set(entry)}
        whole &= all({"name", "place", "files"} <= set(entry) for entry in manifest["constants"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{MANIFEST} of checkpoint {path.name} is damaged: {error} (in {path})") from error
    if not whole:
        raise RunError(f"{MANIFEST} of checkpoint {path.name} is damaged: it does not list every tree (in {path})")
    return manifest


def _score(path: Path) -> float | None:
    return _manifest(path).get("score")


def _remove(path: Path) -> None:
    """Remove a folder; what cannot be removed now bears a name that the next writer clears away."""
    shutil.rmtree(path, ignore_errors=True)
