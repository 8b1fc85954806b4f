"""Rows from files, the Hugging Face hub, tables and lists, each row knowing its place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from melior.data.row import Row
from melior.errors import UserError, near

HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(/(?P<config>[\w.+-]+))?(:(?P<split>[^:/]+))?")
DIGESTED = 1000  # rows at most that a digest reads
FORMATS = (".jsonl", ".ndjson", ".json", ".parquet")


def read_rows(source: Any) -> list[Row]:
    """All rows of `source`: a path, a hub id, a table or a list.

    Hub ids are `org/name`, `org/name:split` or `org/name/config:split`; without a split it is train, or the only one.
    """
    if isinstance(source, str | Path):
        return _read_named(source)
    return _read_memory(source)


def rows_digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """A short name for the content of rows, the same in every process; of many rows, 1000 spread over them count."""
    digest = hashlib.blake2b(str(len(rows)).encode(), digest_size=6)
    for row in rows[:: -(-len(rows) // DIGESTED) or 1]:
        digest.update(json.dumps(row, skipkeys=True, default=lambda value: type(value).__qualname__).encode())
    return digest.hexdigest()


def _read_named(source: str | Path) -> list[Row]:
    path = Path(source).expanduser()
    if path.is_file():
        return _read_file(path)
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix in FORMATS)
        raise UserError(
            f"{source} is a folder; give one data file" + (f" of it: {', '.join(inside)}" if inside else "")
        )
    hub = HUB_ID.fullmatch(str(source))
    looks_local = path.suffix in FORMATS or (path.parts and Path(path.parts[0]).is_dir())
    if hub and not looks_local:
        return _read_hub(str(source), hub["name"], hub["config"], hub["split"])
    raise UserError(_missing(path))


def _missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"no data file {path}: the folder {folder} does not exist"
    files = [p.name for p in folder.iterdir() if p.suffix in FORMATS]
    hint = near(path.name, files) or f"; that folder holds no data file ({', '.join(FORMATS)})"
    if path.name == str(path) and not path.suffix:
        hint += " (a dataset of the Hugging Face hub is written org/name or org/name:split)"
    return f"no data file {path}{hint}"


def _read_file(path: Path) -> list[Row]:
    try:
        if path.suffix in (".jsonl", ".ndjson"):
            return _read_json_lines(path)
        if path.suffix == ".json":
            return _read_json(path)
        if path.suffix == ".parquet":
            return _read_parquet(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    raise UserError(f"{path} has the ending {path.suffix!r}; data files end in {', '.join(FORMATS)}")


def _read_json_lines(path: Path) -> list[Row]:
    rows = []
    with path.open("rb") as file:  # bytes, so that only a newline ends a line and a bad encoding has a line number
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                value = json.loads(text) if text else None
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{place}: not valid JSON ({error.msg} at column {error.colno}); mend the line"
                ) from error
            except UnicodeDecodeError as error:
                raise UserError(f"{place}: not valid UTF-8 ({error.reason}); save the file as UTF-8") from error
            if text:
                rows.append(_row(value, place))
    return rows


def _read_json(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error.reason}); save the file as UTF-8") from error
    if not text.lstrip().startswith("["):  # many files that end in .json hold one object a line
        return _read_json_lines(path)
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg} at column {error.colno})") from error
    return [_row(item, f"{path}, item {number}") for number, item in enumerate(items, 1)]


def _read_parquet(path: Path) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path} needs pyarrow to be read; run: pip install 'melior[lm]'") from error
    try:
        items = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a readable Parquet file ({_first_line(error)})") from error
    return [_row(item, f"{path}, row {number}") for number, item in enumerate(items, 1)]


def _read_hub(source: str, name: str, config: str | None, split: str | None) -> list[Row]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"no file {source}, and reading it from the Hugging Face hub needs datasets; run: pip install 'melior[lm]'"
        ) from error
    try:
        data = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the hub client raises a dozen unrelated types; each means that there are no rows
        raise UserError(
            f"no file {source}, and the Hugging Face hub did not give the dataset {name!r} ({_first_line(error)}); "
            "check the name (org/name, org/name:split or org/name/config:split) and the connection"
        ) from error
    if isinstance(data, Mapping):
        if len(data) > 1 and "train" not in data:
            raise UserError(f"{source} has the splits {', '.join(data)}; choose one: {source}:{next(iter(data))}")
        split = "train" if "train" in data else next(iter(data))
        data = data[split]
    label = f"{name}:{split}" if split else name
    return [_row(item, f"{label}, row {number}") for number, item in enumerate(data, 1)]


def _read_memory(source: Any) -> list[Row]:
    if isinstance(source, Mapping):
        raise UserError(
            f"the data is a mapping with the keys {', '.join(map(str, source))}; "
            "give a list of rows (dicts), or one split of a DatasetDict"
        )
    if hasattr(source, "to_pylist"):  # a pyarrow table
        source = source.to_pylist()
    elif hasattr(source, "to_dict") and hasattr(
        source, "dtypes"
    ):  # a pandas frame; its own iterator gives column names
        source = _frame_rows(source)
    if not isinstance(source, Iterable):
        raise UserError(
            f"the data is of type {type(source).__name__}; give a path, a hub id, or a list of rows like "
            "{'prompt': 'Hello'}"
        )
    return [_row(item, f"row {number} of the data") for number, item in enumerate(source, 1)]


def _frame_rows(frame: Any) -> list[dict[str, Any]]:
    """Rows of a pandas frame: arrays become lists, and a missing cell becomes None except in a column of floats."""
    floats = {
        str(name) for name, dtype in zip(frame.columns, frame.dtypes, strict=True) if "float" in str(dtype).lower()
    }
    return [
        {str(name): _plain(cell, keep_nan=str(name) in floats) for name, cell in record.items()}
        for record in frame.to_dict("records")
    ]


def _plain(cell: Any, keep_nan: bool = True) -> Any:
    """Numpy arrays and numbers inside a frame's cell as lists, dicts and Python numbers; other objects unchanged."""
    if isinstance(cell, Mapping):
        return {key: _plain(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_plain(value) for value in cell]
    if type(cell).__module__ == "numpy" and hasattr(cell, "tolist"):
        return _plain(cell.tolist(), keep_nan)
    if type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell and not keep_nan):
        return None
    return cell


def _row(item: Any, place: str) -> Row:
    if not isinstance(item, Mapping):
        hint = "; write {'prompt': text}" if isinstance(item, str) else ""
        raise UserError(f"{place}: of type {type(item).__name__}, not an object with columns{hint}")
    return Row(item, getattr(item, "place", place))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
