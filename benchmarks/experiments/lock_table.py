"""The fourteen methods on secret codes, with a table for a policy: no network, nothing carried from code to code.

The sizes were chosen on seed 100, which is none of the seeds: there grpo, rloo, reinforce and tpo were looked at.
"""

from melior.comparing.experiments import Better, Experiment, Reaches, Within

EXPERIMENT = Experiment(
    question="Which method opens the most codes, when only the whole code is rewarded?",
    methods=(
        "grpo", "reinforce", "rloo", "remax", "dr-grpo", "dapo", "gspo", "cispo", "ppo-lm", "rgra", "two-grpo", "gdpo",
        "tempo", "tpo",
    ),
    expects=(
        Reaches("grpo", 0.8),
        Better("rloo", than="reinforce", by="area"),  # a baseline takes away variance
        Within("dr-grpo", of="rloo", margin=0.05),  # the same up to n / (n - 1) when all lengths are equal
        Better("tempo", than="grpo", by="area"),  # credit at the token where siblings part
        Better("tpo", than="grpo", by="area"),  # made for sparse rewards
    ),
    settings={
        "model": "table", "task": "lock:P=16,L=3,V=4", "prompts": 16, "n": 8, "lr": 0.1, "steps": 40, "eval_every": 8,
        "eval_k": (1, 16),
    },
    minutes=1.5,
)  # fmt: skip
