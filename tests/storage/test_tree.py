"""A tree comes back bit for bit, and whatever is wrong with its files is named."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from melior.errors import RunError
from melior.storage.tree import load_tree, save_tree

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def round_trip(path, tree):
    save_tree(path, tree)
    return load_tree(path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (3, 2)])
def test_tensors_keep_dtype_shape_and_bits(tmp_path, dtype, shape):
    value = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    back = round_trip(tmp_path / "t", {"x": value})["x"]
    assert back.dtype == dtype and back.shape == value.shape and torch.equal(back, value)


def test_not_a_number_keeps_its_bits_in_a_tensor(tmp_path):
    value = torch.tensor([math.nan, -math.inf, -0.0, 5e-324], dtype=torch.float64)
    value.view(torch.int64)[0] |= 7
    back = round_trip(tmp_path / "t", [value])[0]
    assert torch.equal(back.view(torch.int64), value.view(torch.int64))


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))
trees = st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(), t, max_size=3))


def bits(tree):
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [bits(value) for value in tree]
    if isinstance(tree, float):
        return "nan" if math.isnan(tree) else struct.pack("d", tree)
    return (type(tree), tree)


@settings(max_examples=100, deadline=None)
@given(tree=trees)
def test_plain_values_keep_type_and_value(tmp_path_factory, tree):
    assert bits(round_trip(tmp_path_factory.mktemp("tree") / "t", tree)) == bits(tree)


def test_a_state_of_everything(tmp_path):
    tree = {
        "tuple": (1, [2.5, "x"]),
        "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "zero-d": np.array(2.5),
        "scalars": [np.float64(0.1), np.int64(3), np.bool_(True)],
        "map": {"tensor": "not a tensor", "float": "nan", "map": {}},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "strided": torch.arange(6).reshape(2, 3).T,
    }
    back = round_trip(tmp_path / "v1.5", tree)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v1.5.json", "v1.5.safetensors"]
    assert back["tuple"] == [1, [2.5, "x"]]
    assert back["array"].tolist() == [[0, 1, 2], [3, 4, 5]] and back["array"].dtype == torch.int32
    assert back["zero-d"].shape == () and back["zero-d"].item() == 2.5
    assert back["scalars"] == [0.1, 3, True] and [type(x) for x in back["scalars"]] == [float, int, bool]
    assert back["map"] == tree["map"]
    assert type(back["parameter"]) is torch.Tensor and not back["parameter"].requires_grad
    assert back["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_shared_memory_and_names_that_look_alike(tmp_path):
    weight = torch.arange(6.0)
    tree = {"a": weight, "b": weight, "c": weight[2:4], "x/y": torch.tensor(1), "x": {"y": torch.tensor(2)}}
    tree |= {"__metadata__": torch.tensor(3), "": torch.tensor(4)}
    back = round_trip(tmp_path / "t", tree)
    assert back["a"].tolist() == back["b"].tolist() == weight.tolist() and back["c"].tolist() == [2, 3]
    assert [back["x/y"], back["x"]["y"], back["__metadata__"], back[""]] == [1, 2, 3, 4]
    back["a"][0] = 9
    assert back["b"][0] == 0


@pytest.mark.parametrize("tree", [torch.tensor(2.0), 3, None, [], {}])
def test_the_tree_may_be_a_single_leaf(tmp_path, tree):
    assert round_trip(tmp_path / "t", tree) == tree


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path):
    back = round_trip(tmp_path / "t", {"x": torch.ones(1000)})
    (tmp_path / "t.safetensors").write_bytes(b"")
    assert back["x"].sum() == 1000


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"memory": {"count": {3: 1.0}}}, "cannot save memory/count: its key 3 is not text"),
        ({"memory": [0, {1, 2}]}, "cannot save memory/1: it is a set"),
        ({"m": np.array(["a"])}, "cannot save m: an array of dtype <U1"),
        ({"m": torch.eye(2).to_sparse()}, "cannot save m: a tensor of torch.sparse_coo"),
        ({"m": torch.zeros(1, dtype=torch.complex128)}, "cannot save m: a tensor of torch.complex128"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path, tree, message):
    with pytest.raises(RunError, match=message):
        save_tree(tmp_path / "t", tree)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["json", "safetensors"])
def test_missing_and_damaged_files_are_named(tmp_path, ending):
    save_tree(tmp_path / "t", {"x": torch.ones(4)})
    file = tmp_path / f"t.{ending}"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(RunError, match=rf"t\.{ending} is damaged"):
        load_tree(tmp_path / "t")
    file.unlink()
    with pytest.raises(RunError, match=rf"t\.{ending} is missing"):
        load_tree(tmp_path / "t")


def test_a_missing_tensor_and_a_strange_structure_are_named(tmp_path):
    save_tree(tmp_path / "t", {"a": {"b": torch.ones(4)}})
    save_tree(tmp_path / "u", {})
    (tmp_path / "u.json").write_text((tmp_path / "t.json").read_text())
    with pytest.raises(RunError, match=r"u\.safetensors lacks the entry 'a/b'"):
        load_tree(tmp_path / "u")
    (tmp_path / "t.json").write_text(json.dumps({"map": {"a": {"code": "x"}}}))
    with pytest.raises(RunError, match=r"t\.json is damaged at 'a'"):
        load_tree(tmp_path / "t")
