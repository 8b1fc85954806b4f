"""What no step changes: the checkpoints of a run share one copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from melior.storage.checksums import Facts, facts_of, verify
from melior.storage.tree import Tree, load_tree, save_tree
from melior.storage.writing import TEMPORARY, sync_file, sync_folder

FOLDER = "reference"  # in the run folder; in it one folder for each constant
Place = tuple[str, ...]  # the keys that lead to it


class Constant(dict[str, Any]):
    """A mapping within a tree that no step changes, such as the weights of a reference policy.

    Attributes:
        name: what it is called in this run; the same name always stands for the same content.
    """

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.name = name


def taken_out(tree: Tree, place: Place = ()) -> tuple[Tree, dict[Place, Constant]]:
    """The tree with None for every constant within its mappings, and the constants by their places."""
    if isinstance(tree, Constant):
        return None, {place: tree}
    if not isinstance(tree, Mapping):
        return tree, {}
    found: dict[Place, Constant] = {}
    rest: dict[Any, Tree] = {}
    for key, value in tree.items():
        rest[key], inner = taken_out(value, (*place, key))
        found |= inner
    return rest, found


def put_back(trees: dict[str, Tree], place: Place, values: Tree) -> None:
    """The reverse, for one constant."""
    *outer, last = place
    inner: Any = trees
    for key in outer:
        inner = inner[key]
    inner[last] = values


def save_constant(run_folder: Path, constant: Constant) -> Facts:
    """Write RUN/reference/NAME, whole or not at all; the sizes and checksums of its files."""
    folder = run_folder / FOLDER
    final, temporary = folder / quote(constant.name, safe=""), folder / f"{TEMPORARY}{quote(constant.name, safe='')}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        save_tree(temporary / "tree", dict(constant))
        facts = facts_of(temporary)
        for name in facts:
            sync_file(temporary / name)
        sync_folder(temporary)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return facts


def load_constant(run_folder: Path, name: str, facts: Facts) -> Tree:
    """Read it back, verified. Raises RunError naming what is missing or was altered."""
    folder = run_folder / FOLDER / quote(name, safe="")
    verify(folder, facts, f"the saved scorer '{name}'")
    return load_tree(folder / "tree")
