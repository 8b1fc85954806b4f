"""The catalogue: families of `Entry` records, nothing else. Every module here is read by `melior.records.catalogue`."""
