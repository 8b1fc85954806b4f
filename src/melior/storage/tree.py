"""A tree of tensors and plain values on disk: tensors as safetensors, the structure as JSON, bit for bit, no pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from melior.errors import RunError

Tree = Any  # mappings with str keys, lists and tuples, tensors, numpy arrays, str, int, float, bool, None


def save_tree(path: Path, tree: Tree) -> None:
    """Write a tree to PATH.safetensors and PATH.json.

    The tree nests mappings with str keys, lists and tuples over tensors of any dtype and shape, numpy arrays, str,
    int, float (NaN and infinities too), bool and None. Two names of one tensor are saved as two tensors.

    Nothing here is atomic; a checkpoint makes it so. Raises RunError naming the entry for anything else (nothing is
    written then), OSError or SafetensorError when the disk refuses.
    """
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    structure = _encode(tree, "", tensors)
    save_file(_unshared(tensors), _named(path, ".safetensors"))
    _named(path, ".json").write_text(json.dumps(structure), encoding="utf-8")


def load_tree(path: Path) -> Tree:
    """Read a tree that `save_tree` wrote; tuples come back as lists, arrays as tensors, all tensors on the CPU.

    Raises RunError naming the file, and the entry where one is at fault.
    """
    from safetensors import SafetensorError, safe_open

    structure_file, tensor_file = _named(path, ".json"), _named(path, ".safetensors")
    for file in (structure_file, tensor_file):
        if not file.is_file():
            raise RunError(f"{file} is missing")
    try:
        structure = json.loads(structure_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{structure_file} is damaged: {error}") from error
    try:
        with safe_open(tensor_file, framework="pt") as file:
            # Copies, since what is read is a view of the mapped file: a later change of the file must not reach it,
            # and sums over memory aligned like any other tensor's round alike.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RunError(f"{tensor_file} is damaged: {error}") from error
    return _Reader(structure_file, tensor_file, tensors).decode(structure, "")


def tree_files(name: str) -> tuple[str, str]:
    """The names of the two files that hold a tree saved as `name`."""
    return f"{name}.safetensors", f"{name}.json"


def _named(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)  # with_suffix would cut a name that holds a dot


def _encode(value: Any, place: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Plain values and lists stand for themselves; an object has one key that says what it is."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, torch.Tensor | np.ndarray):
        name = _free_name(place, tensors)
        tensors[name] = _tensor(value, place)
        return {"tensor": name}
    if isinstance(value, np.generic):
        return _encode(value.item(), place, tensors)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RunError(f"cannot save {place or 'the tree'}: its key {key!r} is not text; use str({key!r})")
        return {"map": {key: _encode(inner, _join(place, key), tensors) for key, inner in value.items()}}
    if isinstance(value, list | tuple):
        return [_encode(inner, _join(place, str(i)), tensors) for i, inner in enumerate(value)]
    raise RunError(
        f"cannot save {place or 'the tree'}: it is a {type(value).__name__}; state is made of mappings, sequences, "
        "tensors, text and numbers"
    )


def _join(place: str, key: str) -> str:
    return f"{place}/{key}" if place else key


def _free_name(place: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """The place itself, unless keys that hold a slash make two places look alike (or safetensors reserves the name)."""
    name = place or "tensor"
    while name in tensors or name == "__metadata__":
        name += "~"
    return name


def _tensor(value: torch.Tensor | np.ndarray, place: str) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        try:
            return torch.tensor(value)
        except (TypeError, ValueError) as error:
            raise RunError(f"cannot save {place or 'the tree'}: an array of dtype {value.dtype}") from error
    if value.layout != torch.strided or value.is_quantized or value.dtype == torch.complex128:
        kind = value.dtype if value.layout == torch.strided else value.layout
        raise RunError(f"cannot save {place or 'the tree'}: a tensor of {kind} has no form in safetensors")
    return value.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors, each with memory of its own: safetensors refuses two names for one memory."""
    seen: set[int] = set()
    own: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        own[name] = value.clone() if memory in seen else value
        seen.add(memory)
    return own


class _Reader:
    """Turns the structure back into the tree, naming the place of whatever does not fit."""

    def __init__(self, structure_file: Path, tensor_file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        self.structure_file, self.tensor_file, self.tensors = structure_file, tensor_file, tensors

    def decode(self, node: Any, place: str) -> Any:
        """The part of the tree that a node of the structure stands for."""
        if isinstance(node, list):
            return [self.decode(inner, _join(place, str(i))) for i, inner in enumerate(node)]
        if not isinstance(node, dict):
            return node
        match node:
            case {"map": dict(inner)}:
                return {key: self.decode(value, _join(place, key)) for key, value in inner.items()}
            case {"tensor": str(name)}:
                if name not in self.tensors:
                    raise RunError(f"{self.tensor_file} lacks the entry '{name}'")
                return self.tensors[name]
            case {"float": "nan" | "inf" | "-inf" as text}:
                return float(text)
        raise RunError(f"{self.structure_file} is damaged at '{place}'")
