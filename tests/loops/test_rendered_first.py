"""Which prompts are looked at before anything runs, and what becomes of those that are not."""

from __future__ import annotations

import pytest

from melior.errors import RunError, UserError
from melior.loops import language
from melior.settings import LanguageSettings
from melior.worlds.rows import DataRows, open_source
from runs import rows, sums, text_run, write_rows


def late_and_long(first, steps):
    """Rows of which one is too long, in none of the places that are checked first, and reached within these steps."""
    for bad in range(40):
        data = sums(40)
        data[bad]["prompt"] = "1+" * 20 + "1="
        order = [index for index, _ in DataRows(data, 0).take(0, 2 * steps)]
        if bad % -(-42 // first) and bad in order[2:]:
            return data, bad, order.index(bad) // 2
    raise AssertionError("no such row")


def test_a_prompt_that_is_reached_late_stops_the_run_with_its_line_and_what_was_done_is_kept(tmp_path, monkeypatch):
    data, bad, done = late_and_long(4, 3)
    path = write_rows(tmp_path / "rows.jsonl", data)
    asked = {"data": path, "eval_data": sums(2), "reward": "numeric", "max_prompt_tokens": 8, "max_tokens": 4}
    with pytest.raises(UserError, match=f"rows.jsonl, line {bad + 1}: the prompt has"):
        text_run(tmp_path / "small", **asked)
    assert not (tmp_path / "small").exists()
    monkeypatch.setattr(language, "RENDERED_FIRST", 4)
    with pytest.raises(RunError, match=rf"rows.jsonl, line {bad + 1}: the prompt has .* \(saved at step {done}; "):
        text_run(tmp_path / "large", **asked)
    assert len(rows(tmp_path / "large")) == done


def test_of_a_large_data_set_a_bounded_number_of_prompts_is_rendered_first():
    settings = LanguageSettings(task="", data="x", prompts=3, eval_prompts=5)
    many = [{"prompt": str(i), "answer": ""} for i in range(10_500)]
    source = open_source(settings, None, many)
    seen = list(language.rendered_first(source, settings))
    assert len(seen) <= 1000 + 3 + 5
    assert seen[-5:] == list(source.held_out[:5]) and seen[-8:-5] == [row for _, row in source.train.take(0, 3)]
    places = [int(row["prompt"]) for row in seen]
    assert all(any(low <= place < low + 500 for place in places) for low in range(0, 10_500, 500))
    few = open_source(settings, None, many[:700])
    assert sorted(int(row["prompt"]) for row in language.rendered_first(few, settings)) == list(range(700))
