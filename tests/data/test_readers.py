"""Every way of giving rows arrives as the same rows, and every broken one is named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from melior.data import Row, columns_of, load_rows
from melior.errors import UserError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def in_format(name: str, folder: Path) -> object:
    lines = "\n".join(map(json.dumps, ROWS))
    if name == "jsonl":
        return str(write(folder / "a.jsonl", lines + "\n"))
    if name == "jsonl with blank lines, a byte order mark and Windows line ends":
        return write(folder / "a.jsonl", "\ufeff" + lines.replace("\n", "\r\n\r\n  \r\n"))
    if name == "json":
        return write(folder / "a.json", json.dumps(ROWS, indent=1))
    if name == "json with an object a line":
        return write(folder / "a.json", lines)
    if name == "generator":
        return (dict(row) for row in ROWS)
    if name == "datasets":
        return pytest.importorskip("datasets").Dataset.from_list(ROWS)
    if name == "pandas":
        return pytest.importorskip("pandas").DataFrame(ROWS)
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(ROWS)
    if name == "arrow table":
        return table
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize(
    "name",
    [
        "jsonl",
        "jsonl with blank lines, a byte order mark and Windows line ends",
        "json",
        "json with an object a line",
        "generator",
        "datasets",
        "pandas",
        "arrow table",
        "parquet",
    ],
)
def test_every_source_gives_the_same_rows(name, tmp_path):
    assert load_rows(in_format(name, tmp_path)) == ROWS


def test_only_a_newline_ends_a_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"prompt": "a\u2028b\u0085c"}\n')
    assert load_rows(path)[0]["prompt"] == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('{"prompt": "a"}\n\n{"prompt": "b"\n', "line 3", "not valid JSON"),
        ('{"prompt": "a"}\n["b"]\n', "line 2", "type list"),
        ('{"prompt": "a"}\n"b"\n', "line 2", "write {'prompt': text}"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "line 2", "UTF-8"),
        ('{"prompt": "a"}\n{"question": "b"}\n', "line 2", "no column 'prompt' (columns: question)"),
        ('{"prompt": "a"}\n{"prompt": ""}\n', "line 2", "is empty"),
        ('{"prompt": "a"}\n{"prompt": null}\n', "line 2", "is empty"),
        ('{"prompt": "a"}\n{"prompt": " \\n"}\n', "line 2", "is blank"),
        ('{"prompt": "a"}\n{"prompt": 3}\n', "line 2", "type int"),
    ],
)
def test_a_broken_line_is_named(text, place, what, tmp_path):
    path = write(tmp_path / "rows.jsonl", text)
    with pytest.raises(UserError) as error:
        load_rows(path)
    assert f"{path}, {place}: " in str(error.value)
    assert what in str(error.value)


def test_broken_json_and_parquet_are_named(tmp_path):
    with pytest.raises(UserError, match=r"a\.json, line 2: not valid JSON"):
        load_rows(write(tmp_path / "a.json", '[{"prompt": "a"},\n{"prompt" "b"}]'))
    with pytest.raises(UserError, match=r"b\.json, item 2: of type str"):
        load_rows(write(tmp_path / "b.json", '[{"prompt": "a"}, "b"]'))
    pytest.importorskip("pyarrow")
    with pytest.raises(UserError, match=r"c\.parquet is not a readable Parquet file"):
        load_rows(write(tmp_path / "c.parquet", b"PAR1 but not really PAR1"))


def test_a_missing_file_names_the_near_one(tmp_path):
    write(tmp_path / "train.jsonl", "{}")
    write(tmp_path / "notes.txt", "")
    with pytest.raises(UserError, match=r"no data file .*trian\.jsonl; did you mean 'train\.jsonl'\?"):
        load_rows(tmp_path / "trian.jsonl")
    with pytest.raises(UserError, match=r"folder .*nowhere does not exist"):
        load_rows(tmp_path / "nowhere" / "train.jsonl")
    with pytest.raises(UserError, match=r"is a folder; give one data file of it: train\.jsonl"):
        load_rows(tmp_path)
    with pytest.raises(UserError, match=r"has the ending '\.txt'"):
        load_rows(tmp_path / "notes.txt")


def test_a_misspelt_local_path_does_not_ask_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", "{}")
    for path in ("data/trian.jsonl", "data/train", "./data/train", "train.jsonl", "gsm8k"):
        with pytest.raises(UserError, match="no data file"):
            load_rows(path)


def test_no_rows_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"a\.jsonl holds no rows"):
        load_rows(write(tmp_path / "a.jsonl", "\n\n"))
    with pytest.raises(UserError, match="the data holds no rows"):
        load_rows([])


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({"prompt": ["a", "b"]}, "mapping with the keys prompt"),
        (["a", "b"], "row 1 of the data: of type str"),
        (7, "type int; give a path, a hub id, or a list of rows"),
    ],
)
def test_data_in_memory_of_the_wrong_shape(source, what):
    with pytest.raises(UserError, match=what):
        load_rows(source)


def test_rows_in_memory_are_not_changed_and_objects_survive():
    thing = object()
    mine = [{"question": "a", "thing": thing}]
    rows = load_rows(mine)
    assert mine == [{"question": "a", "thing": thing}]
    assert rows[0]["thing"] is thing


def test_rows_that_were_loaded_keep_their_place(tmp_path):
    rows = load_rows(write(tmp_path / "a.jsonl", '\n{"prompt": "a"}\n'))
    assert load_rows(rows)[0].place == f"{tmp_path / 'a.jsonl'}, line 2"


def test_missing_cells_of_a_frame_become_none_and_arrays_become_lists():
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    frame = pandas.DataFrame(
        {
            "prompt": [numpy.array([{"role": "user", "content": "a"}], dtype=object), "b"],
            "answer": ["x", None],
            "weight": [1.5, float("nan")],
            "count": numpy.array([1, 2]),
        }
    )
    first, second = load_rows(frame)
    assert first["prompt"] == [{"role": "user", "content": "a"}]
    assert second["answer"] is None
    assert first["weight"] == 1.5 and second["weight"] != second["weight"]
    assert type(first["count"]) is int


def test_columns_are_those_that_every_row_has():
    assert columns_of([{"a": 1, "b": 2}, {"a": 1, "c": 3}]) == {"a"}
    assert columns_of([]) == set()
    assert columns_of([Row({"a": 1}, "here")]) == {"a"}


class TestHub:
    @pytest.fixture
    def asked(self, monkeypatch):
        """Replaces the hub: records what was asked for, answers what `asked["answer"]` says."""
        datasets = pytest.importorskip("datasets")
        asked: dict = {}

        def load_dataset(name, config, split):
            asked.update(name=name, config=config, split=split)
            if isinstance(asked["answer"], Exception):
                raise asked["answer"]
            return asked["answer"] if split is None else asked["answer"][split]

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    @pytest.mark.parametrize(
        ("source", "config", "split"),
        [("org/set", None, None), ("org/set:test", None, "test"), ("org/set/main:test", "main", "test")],
    )
    def test_names(self, asked, source, config, split):
        asked["answer"] = {"train": ROWS[:1], "test": ROWS[1:]}
        rows = load_rows(source)
        assert (asked["name"], asked["config"], asked["split"]) == ("org/set", config, split)
        assert rows == (ROWS[1:] if split else ROWS[:1])
        assert rows[0].place == f"org/set:{split or 'train'}, row 1"

    def test_several_splits_without_train(self, asked):
        asked["answer"] = {"dev": ROWS, "test": ROWS}
        with pytest.raises(UserError, match="has the splits dev, test; choose one: org/set:dev"):
            load_rows("org/set")
        asked["answer"] = {"dev": ROWS}
        assert load_rows("org/set") == ROWS

    def test_out_of_reach_is_one_sentence(self, asked):
        asked["answer"] = ConnectionError("Couldn't reach 'org/set' on the Hub\nand a second line")
        with pytest.raises(UserError) as error:
            load_rows("org/set:train")
        assert "no file org/set:train" in str(error.value)
        assert "Couldn't reach 'org/set' on the Hub" in str(error.value)
        assert "\n" not in str(error.value)
