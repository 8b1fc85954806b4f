"""Which column the prompt comes from, and what stays beside it."""

from __future__ import annotations

import pytest

from melior.data import load_rows
from melior.errors import UserError

GSM8K = {"question": "How many?", "answer": "9 * 2 = $<<9*2=18>>18.\n#### 18"}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "How many?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "18"},
    "extra_info": {"split": "test", "index": 0, "tags": ["a", "b"]},
}


def test_gsm8k_rows_need_no_option():
    rows = load_rows([GSM8K])
    assert rows == [GSM8K | {"prompt": "How many?"}]
    assert rows.notes == ("prompts are read from the column 'question' (there is no column 'prompt')",)


def test_verl_rows_survive_parquet_unchanged(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([VERL]), tmp_path / "a.parquet")
    rows = load_rows(tmp_path / "a.parquet")
    assert rows == [VERL]
    assert rows.notes == ()
    assert load_rows(tmp_path / "a.parquet", answer_column="reward_model.ground_truth")[0]["answer"] == "18"


def test_null_keys_that_a_table_add_to_messages_are_dropped():
    rows = load_rows([{"prompt": [{"role": "user", "content": "a", "name": None}]}])
    assert rows[0]["prompt"] == [{"role": "user", "content": "a"}]


def test_a_named_column_wins_and_the_old_prompt_is_kept():
    rows = load_rows([{"prompt": "short", "problem": "long"}], column="problem")
    assert rows == [{"prompt": "long", "original_prompt": "short", "problem": "long"}]
    assert rows.notes == ()
    with pytest.raises(UserError, match="'prompt' and 'original_prompt' are both taken"):
        load_rows([{"prompt": "a", "problem": "b", "original_prompt": "c"}], column="problem")


def test_answer_column():
    row = {"prompt": "a", "answer": "long", "short": "4", "deep": {"x": {"y": 5}}, "a.b": 6}
    assert load_rows([row], answer_column="short")[0] == row | {"answer": "4", "original_answer": "long"}
    assert load_rows([row], answer_column="answer") == [row]
    assert load_rows([row], answer_column="deep.x.y")[0]["answer"] == 5
    assert load_rows([row], answer_column="a.b")[0]["answer"] == 6
    with pytest.raises(UserError, match=r"row 1 of the data: no column 'shrot' .*did you mean 'short'"):
        load_rows([row], answer_column="shrot")
    with pytest.raises(UserError, match=r"'deep\.x\.z' leads nowhere, 'deep\.x' has no 'z'; choose from y"):
        load_rows([row], answer_column="deep.x.z")
    with pytest.raises(UserError, match=r"'short' has no 'z'"):
        load_rows([row], answer_column="short.z")


def test_two_possible_columns_are_not_guessed_between():
    with pytest.raises(UserError, match=r"instruction, input could be it; choose with --prompt-column instruction"):
        load_rows([{"instruction": "Add", "input": "1 2", "output": "3"}])


def test_a_misspelt_column_names_the_near_one():
    with pytest.raises(UserError) as error:
        load_rows([GSM8K], column="qestion")
    assert str(error.value) == (
        "row 1 of the data: no column 'qestion' (columns: question, answer); "
        "set --prompt-column or --prompt-template; did you mean 'question'?"
    )


def test_the_known_column_must_be_in_every_row():
    with pytest.raises(UserError, match="row 2 of the data: no column 'question'"):
        load_rows([GSM8K, {"answer": "1"}])


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([], r"is empty"),
        ([{"role": "user", "content": " "}], "every message of the prompt is empty"),
        ([{"role": "system", "content": ""}, {"role": "user", "content": []}], "every message of the prompt is empty"),
        (["hello"], "message 1 of the prompt is of type str"),
        (
            [{"role": "user", "content": "a"}, {"from": "gpt", "value": "b"}],
            "message 2 of the prompt has the keys from, v",
        ),
        ([{"role": "user", "content": None}], "'content' that is not text"),
        ([{"role": "user", "content": {"text": "a"}}], "'content' that is not text"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "only text prompts are supported"),
    ],
)
def test_malformed_messages_are_named(messages, what):
    with pytest.raises(UserError, match=what) as error:
        load_rows([{"prompt": "fine"}, {"prompt": messages}])
    assert str(error.value).startswith("row 2 of the data")


def test_messages_of_text_parts_and_tool_calls_are_accepted():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "3"},
    ]
    assert load_rows([{"prompt": messages}])[0]["prompt"] == messages
