"""From a file, a hub id or a list to the token ids that a policy is asked to continue.

rows = load_rows("train.jsonl")                         # dicts with a checked `prompt` and every other column
train, held_out = split_rows(rows, 0.1, seed=0)         # equal prompts stay on one side
order = PromptOrder(train, seed=0)                      # order.take(position, n): which rows come next
renderer = Renderer(prepare_tokenizer(tokenizer), max_tokens=256, context=2048)
renderer.render(train[order.take(0, 1)[0]]).ids         # what the policy sees
"""

from melior.data.order import PromptOrder
from melior.data.prompts import RenderedPrompt, Renderer
from melior.data.rows import Row, Rows, columns_of, load_rows
from melior.data.split import split_rows
from melior.data.tokenizer import end_ids, prepare_tokenizer

__all__ = [
    "PromptOrder",
    "RenderedPrompt",
    "Renderer",
    "Row",
    "Rows",
    "columns_of",
    "end_ids",
    "load_rows",
    "prepare_tokenizer",
    "split_rows",
]
