"""Records as data: found by name, written and read as YAML, overridden, compared and described."""
