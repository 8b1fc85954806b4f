"""Worlds: where policies act and are judged. Each answers the questions of `melior.run.World`."""
