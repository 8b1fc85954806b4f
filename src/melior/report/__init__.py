"""The report of a run: one page that is read in any browser, without a network."""
