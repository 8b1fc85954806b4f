"""`python -m melior` is the command."""

from __future__ import annotations

from melior.cli import main

if __name__ == "__main__":
    main()
