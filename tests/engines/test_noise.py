import time

import numpy as np
import pytest

from melior.engines.noise import uniforms


def test_rows_do_not_depend_on_order_split_or_width():
    slots, siblings = [0, 0, 1, 7], [0, 1, 0, 3]
    whole = uniforms(3, "rollout", 5, 1, slots, siblings, 9)
    order = [2, 0, 3, 1]
    shuffled = uniforms(3, "rollout", 5, 1, [slots[i] for i in order], [siblings[i] for i in order], 9)
    np.testing.assert_array_equal(shuffled, whole[order])
    for i in range(4):
        np.testing.assert_array_equal(
            uniforms(3, "rollout", 5, 1, slots[i : i + 1], siblings[i : i + 1], 4), whole[i : i + 1, :4]
        )


@pytest.mark.parametrize(
    "change", [{"seed": 4}, {"stream": "eval"}, {"step": 6}, {"round": 2}, {"slots": [1]}, {"siblings": [1]}]
)
def test_every_part_of_the_key_matters(change):
    key = {"seed": 3, "stream": "rollout", "step": 5, "round": 1, "slots": [0], "siblings": [0], "width": 8}
    assert not np.isin(uniforms(**{**key, **change}), uniforms(**key)).any()


def test_numbers_are_uniform_and_stay_the_same_across_versions():
    sample = uniforms(0, "rollout", 0, 0, range(200), [0] * 200, 500)
    assert sample.dtype == np.float64 and sample.min() >= 0 and sample.max() < 1
    assert abs(sample.mean() - 0.5) < 3e-3 and abs(sample.var() - 1 / 12) < 2e-3
    bits = np.random.Philox(
        key=np.array([1, 17967468785382776366], dtype=np.uint64),
        counter=np.array([0, 2, 4, 3 * 2**32 + 5], dtype=np.uint64),
    )
    # 17967468785382776366 is blake2b-64 of "rollout", little-endian
    np.testing.assert_array_equal(uniforms(1, "rollout", 2, 3, [4], [5], 6)[0], np.random.Generator(bits).random(6))


def test_negative_seeds_and_steps_are_keys_too():
    assert not np.isin(uniforms(-1, "a", -1, 0, [0], [0], 4), uniforms(1, "a", 1, 0, [0], [0], 4)).any()


def test_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="2 slots but 1 siblings"):
        uniforms(0, "a", 0, 0, [0, 1], [0], 4)
    with pytest.raises(ValueError, match="siblings must lie"):
        uniforms(0, "a", 0, 0, [0], [-1], 4)


def test_a_large_batch_takes_milliseconds():
    uniforms(0, "a", 0, 0, [0], [0], 4)
    start = time.perf_counter()
    uniforms(0, "a", 0, 0, range(512), [0] * 512, 512)
    assert time.perf_counter() - start < 0.3  # about 0.01 s on an idle machine
