"""Looking at runs: their logs, whoever wrote them, and what is wrong with them."""
