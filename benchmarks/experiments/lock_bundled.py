"""The fourteen methods on secret codes, by the bundled language model: the codes must be found, and nothing is known.

The sizes were chosen on seed 100, which is none of the seeds, with grpo alone (20 steps); `minutes` is reckoned
from that trial.
"""

from melior.comparing.experiments import Better, Experiment, Reaches, Within

EXPERIMENT = Experiment(
    question="Which method makes a language model open the most codes, when only the whole code is rewarded?",
    methods=(
        "grpo", "reinforce", "rloo", "remax", "dr-grpo", "dapo", "gspo", "cispo", "ppo-lm", "rgra", "two-grpo", "gdpo",
        "tempo", "tpo",
    ),
    expects=(
        Reaches("grpo", 0.5),
        Better("rloo", than="reinforce", by="area"),  # a baseline takes away variance
        Within("dr-grpo", of="rloo", margin=0.1),  # the same up to n / (n - 1) when all lengths are equal
        Better("dapo", than="grpo", by="area"),  # every group has a signal, at the price of more tokens
        Better("tpo", than="grpo", by="area"),  # made for sparse rewards
    ),
    settings={
        "model": "bundled", "task": "lock:P=8,L=2,V=3", "prompts": 8, "n": 16, "lr": 3e-4, "steps": 30,
        "eval_every": 6, "eval_k": (1, 16),
    },
    minutes=14,
)  # fmt: skip
