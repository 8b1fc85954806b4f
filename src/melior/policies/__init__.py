"""Policies: what acts and what is trained. Each answers the questions of `melior.policies.policy.Policy`."""
