"""The fourteen methods on countdown, which the bundled model half knows.

The sizes are larger and the learning rate is lower than those of a trial (grpo, seed 100, which is none of the seeds:
20 steps of 8 x 8 at 3e-4), in which nothing was gained. `minutes` is reckoned from that trial.
"""

from melior.comparing.experiments import Better, Experiment, Within

EXPERIMENT = Experiment(
    question="Which method improves the bundled model at countdown most?",
    methods=(
        "grpo", "reinforce", "rloo", "remax", "dr-grpo", "dapo", "gspo", "cispo", "ppo-lm", "rgra", "two-grpo", "gdpo",
        "tempo", "tpo",
    ),
    expects=(
        Better("dapo", than="grpo"),  # every group has a signal, at the price of more tokens
        Better("rloo", than="reinforce", by="area"),  # a baseline takes away variance
        Within("dr-grpo", of="grpo", margin=0.05),
        Within("rgra", of="grpo", margin=0.03),  # with one update a batch nothing is clipped
    ),
    settings={
        "task": "countdown", "prompts": 16, "n": 8, "lr": 1e-4, "steps": 40, "eval_every": 8, "eval_prompts": 256,
    },
    minutes=40,
)  # fmt: skip
