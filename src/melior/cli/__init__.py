"""The command `melior`: a thin call of the library.

Exit codes: 0 done, 2 a mistake in the request (nothing was run), 3 a failure during a run, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

INTERRUPTED = 130


def main() -> None:
    """The console script."""
    raise SystemExit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run the command on these arguments and return its exit code; errors are one sentence on standard error."""
    from melior import lazy_torch
    from melior.errors import MeliorError

    lazy_torch.install()
    import typer

    from melior.cli.app import build
    from melior.cli.quick import take_text_as_typed
    from melior.cli.usage import usage_message

    command = typer.main.get_command(build(arguments[0] if arguments else ""))
    take_text_as_typed(command)

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            # Without arguments the help is what was meant, and that is no mistake.
            with command.make_context("melior", list(arguments) or ["--help"]) as context:
                command.invoke(context)
            sys.stdout.flush()
            return 0
        except typer.Exit as done:
            return done.exit_code
        except MeliorError as error:
            _say(str(error))
            return error.exit_code
        except (KeyboardInterrupt, typer.Abort):
            _say("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # The reader (`melior methods | head`) has seen enough; keep the interpreter from flushing once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception as error:
            message = usage_message(error)
            if message is None:
                raise
            _say(message)
            return 2


def _say(text: str) -> None:
    print(f"melior: {text}", file=sys.stderr)


def _show_warning(message: Any, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
    from melior.records.notes import Note

    if issubclass(category, Note):
        _say(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)
