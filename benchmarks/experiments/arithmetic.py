"""The fourteen methods on arithmetic, where the bundled model knows the way and is wrong half the time.

The sizes were chosen on seed 100, which is none of the seeds, with grpo alone (these sizes); `minutes` is reckoned
from that trial.
"""

from melior.comparing.experiments import Better, Experiment, Reaches, Within

EXPERIMENT = Experiment(
    question="Which method unlearns the bundled model's mistakes in arithmetic fastest?",
    methods=(
        "grpo", "reinforce", "rloo", "remax", "dr-grpo", "dapo", "gspo", "cispo", "ppo-lm", "rgra", "two-grpo", "gdpo",
        "tempo", "tpo",
    ),
    expects=(
        Reaches("grpo", 0.85),
        Better("grpo", than="reinforce", by="area"),  # rewards are dense enough for a baseline to pay
        Within("dr-grpo", of="grpo", margin=0.05),  # lengths hardly differ
        Within("rgra", of="grpo", margin=0.03),  # with one update a batch nothing is clipped
    ),
    settings={
        "task": "arithmetic", "prompts": 8, "n": 8, "lr": 3e-4, "steps": 20, "eval_every": 5, "eval_prompts": 128,
    },
    minutes=18,
)  # fmt: skip
