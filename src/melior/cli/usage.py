"""Mistakes on the command line as one sentence with the near thing named."""

from __future__ import annotations

import re
from typing import Any

from melior.errors import near
from melior.records.foreign import foreign


def usage_message(error: Exception) -> str | None:
    """The sentence for a usage error of typer (whichever click it carries); None for any other exception."""
    if not hasattr(error, "format_message") or getattr(error, "exit_code", None) is None:
        return None
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    text = str(error.format_message())
    if option is not None and text.startswith("No such option"):
        return f"no such option '{option}'{foreign(option) or near(option, _options(context))}"
    command = re.match(r"No such command '([^']*)'", text)
    if command:
        return f"no such command '{command[1]}'{near(command[1], getattr(_command(context), 'commands', {}))}"
    path = getattr(context, "command_path", "melior")
    return f"{text[:1].lower()}{text[1:].rstrip('.')}; see `{path} --help`"


def _command(context: Any) -> Any:
    return getattr(context, "command", None)


def _options(context: Any) -> list[str]:
    parameters = getattr(_command(context), "params", [])
    found = [name for each in parameters for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]
    return [*found, "--help"]
