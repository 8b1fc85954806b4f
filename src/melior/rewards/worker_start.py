"""The script that a worker process runs: opens this package without its `__init__`, then runs `worker_process`.

The `__init__` brings the parts of the reward stage, and with them torch: a second and hundreds of megabytes for each
worker, of which none needs any. It still runs if something asks the package for a name, as a user's file may.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGE = "melior.rewards"


class _Unopened(ModuleType):
    """A package whose `__init__` runs at the first look at a name that is neither its own nor a module's."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def open_package() -> None:
    """Put the package into `sys.modules`, so that its modules can be imported, with its `__init__` still to run."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Unopened
    sys.modules[PACKAGE] = package


if __name__ == "__main__":
    open_package()
    from melior.rewards.worker_process import main

    main(int(sys.argv[1]))
