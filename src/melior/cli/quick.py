"""Text and flags without a validator.

typer hands every parameter to a pydantic validator that it builds for it. For text there is nothing to validate, and
importing pydantic takes longer than all that `melior show` does. A typer without such validators never asks for them.
"""

from __future__ import annotations

from typing import Any


class AsTyped:
    """Stands in for a validator: the text is taken as it was typed."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value."""
        return value


def take_text_as_typed(command: Any) -> None:
    """Do so in a command and all commands within it; flags have nothing to be validated either."""
    listed = command.get_params

    def get_params(ctx: Any) -> list[Any]:
        """The command's parameters, `--help` among them, which is made when they are asked for."""
        found = list(listed(ctx))
        for param in found:
            kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
            single = not getattr(param, "multiple", False) and getattr(param, "nargs", 1) == 1
            if (kind is str and single) or (kind is bool and getattr(param, "is_flag", False)):
                param.get_runtime_param = AsTyped
        return found

    command.get_params = get_params
    for inner in getattr(command, "commands", {}).values():
        take_text_as_typed(inner)
