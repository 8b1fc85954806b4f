"""What makes a step cheaper without changing what it computes."""

from __future__ import annotations

from melior.method import Entry, Paper
from melior.policies.packing import PrefixGrouper

PREFIX_GROUPER = Entry(
    PrefixGrouper(),
    paper=Paper(
        "Prefix Grouper: Efficient GRPO Training through Shared-Prefix Forward", "Liu, Yue et al.", 2025, "2506.05433"
    ),
    track="system",
    evidence="code and paper text. Written here as the equivalent single call with a block mask instead of two "
    "attention calls a layer; spreading a group over several rows, and the rule when to pack at all, are this "
    "library's own",
    problem="The answers of a group share their prompt, and the training pass encodes it once for each of them.",
    move="Put the prompt and its answers in one row; each answer sees the prompt and itself, and its positions restart "
    "where the prompt ends. Gradients reach the prompt through every answer.",
    formula="row = [P; R_1; ...; R_G], position(R_i[t]) = |P| + t, allow(i, j) = (j <= i) and (j in P or "
    "segment(j) = segment(i)); logits of R_i[0] at the last token of P",
    use_when="On for language models in float32 and bfloat16, wherever rows of a micro-batch share a prompt and the "
    "expected saving is at least a tenth. It pays most where prompts are long and answers short: tokens fall by "
    "(|P| + sum |R_i|) / sum (|P| + |R_i|).",
    beware="Equal up to rounding, so float32 figures differ in the last digits from those of separate rows. The masked "
    "attention of one wide row grows with the square of its width. State-space and convolution layers, ALiBi, windows "
    "shorter than prompt and answer, and attention that takes no mask keep the plain layout, without a word.",
)
