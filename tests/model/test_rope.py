from __future__ import annotations

import cmath
import math

import pytest
import torch

from gptoss_builder.errors import InputError
from gptoss_builder.model.rope import (
    frequencies,
    rope_table,
    rotary_dims,
    rotate,
    yarn_magnitude,
    yarn_range,
)
from gptoss_builder.spec.schema import AttentionSpec, RopeSpec, YarnSpec
from tests.tolerances import assert_close

CPU = torch.device("cpu")


def yarn(factor: float = 32.0, original: int = 4096, **more: float) -> YarnSpec:
    return YarnSpec(factor=factor, original_context=original, **more)


def attention(head_dim: int, rope: RopeSpec) -> AttentionSpec:
    return AttentionSpec(heads=2, kv_heads=1, head_dim=head_dim, rope=rope)


def test_yarn_range_is_real_valued() -> None:
    low, high = yarn_range(yarn(), 150000.0, 64)
    assert low == pytest.approx(8.092779115512402, abs=1e-12)
    assert high == pytest.approx(17.39802450158856, abs=1e-12)


def test_yarn_range_may_end_beyond_the_last_pair() -> None:
    low, high = yarn_range(yarn(original=131072), 10000.0, 64)
    assert low == pytest.approx(22.513, abs=1e-3)
    assert high == pytest.approx(34.555, abs=1e-3)


def test_yarn_range_starts_at_the_first_pair_for_a_very_short_context() -> None:
    assert yarn_range(yarn(original=64), 10000.0, 64)[0] == 0.0


def test_yarn_betas_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InputError, match="beta_fast"):
        yarn_range(yarn(beta_fast=1.0, beta_slow=32.0), 10000.0, 64)


@pytest.mark.parametrize(
    ("factor", "magnitude"), [(32.0, 1.34657), (64.0, 1.41589), (128.0, 1.48520), (1.0, 1.0)]
)
def test_yarn_magnitude(factor: float, magnitude: float) -> None:
    assert yarn_magnitude(yarn(factor)) == pytest.approx(magnitude, abs=1e-5)


def test_attention_factor_is_taken_verbatim() -> None:
    assert yarn_magnitude(yarn(64.0, attention_factor=1.0)) == 1.0
    assert yarn_magnitude(yarn(1.0, attention_factor=0.7)) == 0.7


def test_magnitude_is_on_cos_and_sin_once() -> None:
    spec = attention(64, RopeSpec(theta=150000.0, yarn=yarn()))
    table = rope_table(spec, "window", 5, 3, device=CPU, dtype=torch.float64)
    radius_Th = (table.cos_Th.square() + table.sin_Th.square()).sqrt()
    assert_close(radius_Th, torch.full_like(radius_Th, yarn_magnitude(yarn())))


def test_frequencies_ramp_from_plain_to_interpolated() -> None:
    plain = frequencies(150000.0, None, 64)
    ratio = frequencies(150000.0, yarn(), 64) / plain
    assert torch.equal(ratio[:9], torch.ones(9, dtype=torch.float64))
    assert_close(ratio[18:], torch.full((14,), 1 / 32, dtype=torch.float64))
    # Pair 12 lies at (12 − low)/(high − low) = 0.41989 of the ramp.
    assert ratio[12] == pytest.approx(1 - 0.419894 * (1 - 1 / 32), abs=1e-5)


@pytest.mark.parametrize("dims", [2, 6, 64])
def test_first_half_turns_with_second_half(dims: int) -> None:
    theta, position = 100.0, 7
    spec = attention(dims, RopeSpec(theta=theta))
    table = rope_table(spec, "full", position, 1, device=CPU, dtype=torch.float64)
    x_BTNd = torch.randn(1, 1, 1, dims, dtype=torch.float64)
    x, y = x_BTNd.flatten().tolist(), rotate(x_BTNd, table).flatten().tolist()
    for i in range(dims // 2):
        number = complex(x[i], x[i + dims // 2])
        turned = number * cmath.exp(1j * position * theta ** (-2 * i / dims))
        assert y[i] == pytest.approx(turned.real, abs=1e-12)
        assert y[i + dims // 2] == pytest.approx(turned.imag, abs=1e-12)


def test_partial_rotation_leaves_the_rest_and_has_frequencies_over_its_own_dims() -> None:
    rope = RopeSpec(theta=100.0, yarn=yarn(8.0, 64, beta_fast=4.0), full_layers_rotary=0.75)
    part, whole = attention(16, rope), attention(12, rope)
    x_BTNd = torch.randn(2, 5, 3, 16, dtype=torch.float64)
    full = rope_table(part, "full", 0, 5, device=CPU, dtype=torch.float64)
    y_BTNd = rotate(x_BTNd, full)
    alone = rope_table(whole, "window", 0, 5, device=CPU, dtype=torch.float64)
    assert torch.equal(y_BTNd[..., 12:], x_BTNd[..., 12:])
    assert_close(y_BTNd[..., :12], rotate(x_BTNd[..., :12], alone))
    assert rope_table(part, "window", 0, 5, device=CPU, dtype=torch.float64).cos_Th.shape[1] == 8


@pytest.mark.parametrize(("head_dim", "part"), [(16, 0.7), (16, 0.05), (24, 0.375)])
def test_rotary_part_that_is_no_even_number_is_refused(head_dim: int, part: float) -> None:
    rope = RopeSpec(full_layers_rotary=part)
    with pytest.raises(InputError, match="full_layers_rotary"):
        rotary_dims(attention(head_dim, rope), "full")


def test_odd_head_dim_is_refused_in_window_layers_too() -> None:
    with pytest.raises(InputError, match="even"):
        rotary_dims(attention(15, RopeSpec()), "window")


def test_scores_depend_on_distance_only() -> None:
    spec = attention(16, RopeSpec(theta=100.0))
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(query_at: int, key_at: int) -> torch.Tensor:
        tables = [
            rope_table(spec, "full", at, 1, device=CPU, dtype=torch.float64)
            for at in (query_at, key_at)
        ]
        return (rotate(q, tables[0]) * rotate(k, tables[1])).sum()

    assert_close(score(12, 5), score(1007, 1000), torch.float32)


def test_angles_far_out_are_as_exact_as_fp32_can_hold_them() -> None:
    spec = attention(64, RopeSpec(theta=150000.0))
    table = rope_table(spec, "full", 131071, 1, device=CPU, dtype=torch.bfloat16)
    assert table.cos_Th.dtype == torch.float32
    for i in (0, 1, 9, 31):
        exact = math.cos(131071 * 150000.0 ** (-2 * i / 64))
        assert table.cos_Th[0, i].item() == pytest.approx(exact, abs=1e-7)


def test_dtype_of_the_input_stays() -> None:
    spec = attention(16, RopeSpec())
    table = rope_table(spec, "full", 0, 3, device=CPU, dtype=torch.bfloat16)
    assert rotate(torch.randn(1, 3, 2, 16).bfloat16(), table).dtype == torch.bfloat16
