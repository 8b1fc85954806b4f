"""YAML as plain data: read without evaluating anything, and without the surprises of YAML 1.1.

`1e-4` is a number; only `true` and `false` are truth values (`no` and `on` are text); `1:30`, `010` and dates are text;
a key that stands twice in one mapping is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from melior.errors import UserError

_SCALARS = {
    "tag:yaml.org,2002:bool": (r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
        "-+0123456789.",
    ),
    "tag:yaml.org,2002:null": (r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, list | dict):
                raise yaml.constructor.ConstructorError(None, None, "a list cannot be a key", key.start_mark)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} stands here twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Also quotes text that only this module's loader would take for a number."""

    yaml_implicit_resolvers = dict(yaml.SafeDumper.yaml_implicit_resolvers)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # The emitter folds text at these line breaks and does not read them back as they were, except when escaped.
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^{_pattern}$"), list(_first))
    _Dumper.add_implicit_resolver(_tag, re.compile(f"^{_pattern}$"), list(_first))


def load_yaml(text: str, where: str = "the YAML text") -> Any:
    """The plain data (mappings, lists, text, numbers, true/false/null) of a YAML text.

    Raises:
        UserError: names `where`, and the line, when it is not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain data only
    except yaml.MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark
        place = f", line {mark.line + 1}" if mark and "\n" in text.strip() else ""
        raise UserError(f"{where}{place} is not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error


def read_yaml(path: Path) -> Any:
    """The plain data of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8") from error
    return load_yaml(text, str(path))


def dump_yaml(tree: Any) -> str:
    """Plain data as YAML: short mappings and lists on one line, keys in the order given."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
