"""Records of the other frames are found again by the names that files use."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from melior.records.serialize import from_yaml, fingerprint
print(fingerprint(from_yaml(sys.stdin.read())))
"""


@pytest.mark.parametrize("name", ["ppo", "td3", "value-iteration"])
def test_a_file_is_read_where_no_method_was_imported(name: str) -> None:
    from melior.records.catalogue import get
    from melior.records.serialize import fingerprint, to_yaml

    record = get(name)
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=to_yaml(record), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fingerprint(record)
