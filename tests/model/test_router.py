"""The router: logits in fp32, ties, order of the rows, and what the balance loss means."""

from __future__ import annotations

import math

import pytest
import torch

from gptoss_builder.model.router import (
    balance_loss,
    choose,
    largest_of,
    router_logits,
    sort_by_expert,
    split_fp32,
    spread,
)
from tests.tolerances import assert_close


def aux(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    weight, choice = choose(logits, top_k)
    return balance_loss(logits, sort_by_expert(choice, weight, logits.shape[1]).offsets_E, top_k)


def test_logits_that_differ_below_bf16_do_not_tie():
    x = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    router = torch.tensor([[10.0, 0.0], [10.0, 1e-3]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = router_logits(x, router)
    assert logits.dtype == torch.float32
    assert logits[0, 1] > logits[0, 0]
    assert choose(logits, 1)[1].item() == 1


def test_three_bf16_parts_are_the_fp32_number():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3e3
    parts = split_fp32(x)
    assert all(part.dtype == torch.bfloat16 for part in parts)
    assert torch.equal(sum(part.double() for part in parts), x.double())


def test_weights_are_the_softmax_over_all_normalised_over_the_chosen():
    logits = torch.randn(50, 7, dtype=torch.float64)
    weight, choice = choose(logits, 3)
    chosen = logits.softmax(1).gather(1, choice)
    assert_close(weight, chosen / chosen.sum(1, keepdim=True))
    assert (choice.sort(1).values.diff(dim=1) > 0).all()


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (5, 5), (8, 2), (65, 8)])
def test_picking_one_after_the_other_is_top_k(experts, top_k):
    logits = torch.randn(63, experts)
    values, columns = largest_of(top_k)(logits)
    expected = logits.topk(top_k, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(columns, expected.indices)


def test_picking_takes_a_nan_for_the_largest_and_stays_in_range():
    logits = torch.tensor([[1.0, math.nan, 3.0], [2.0, 2.0, 2.0], [math.nan, 0.0, math.nan]])
    columns = largest_of(2)(logits)[1]
    assert columns[0].tolist() == [1, 2]
    assert [len(set(row)) for row in columns.tolist()] == [2, 2, 2]
    assert columns.min() >= 0
    assert columns.max() < 3


def test_what_comes_twice_has_no_weight():
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, -math.inf]])
    values, columns = largest_of(3)(logits)
    assert columns[0, 0] == 1
    assert columns.min() >= 0
    assert columns.max() < 4
    assert values.softmax(1).tolist() == [[1.0, 0.0, 0.0]]


def test_more_experts_than_a_byte_counts_are_sorted_right():
    choice = torch.tensor([[300, 0], [255, 256]])
    routing = sort_by_expert(choice, torch.ones(2, 2), 301)
    assert routing.rows_R.tolist() == [0, 1, 1, 0]
    assert routing.offsets_E.diff().nonzero().flatten().tolist() == [254, 255, 299]
    byte = sort_by_expert(torch.tensor([[255, 0], [3, 254]]), torch.ones(2, 2), 256)
    assert byte.rows_R.tolist() == [0, 1, 1, 0]
    assert byte.offsets_E[[0, 2, 3, 253, 254, 255]].tolist() == [1, 1, 2, 2, 3, 4]


def test_gradient_of_the_choice_reaches_the_chosen_logits_alone():
    logits = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: choose(x, 2)[0], (logits,))
    value, choice = torch.tensor([[2.0, 3.0]]), torch.tensor([[3, 0]])
    assert spread(value, choice, 5).tolist() == [[3.0, 0.0, 0.0, 2.0, 0.0]]


def test_rows_are_in_expert_order_and_tokens_in_theirs():
    choice = torch.tensor([[2, 0], [0, 2], [2, 3], [3, 0]])
    routing = sort_by_expert(choice, torch.ones(4, 2), 5)
    assert routing.offsets_E.tolist() == [3, 3, 6, 8, 8]
    assert routing.offsets_E.dtype == torch.int32
    assert routing.rows_R.tolist() == [0, 1, 3, 0, 1, 2, 2, 3]
    assert routing.position_TK.tolist() == [[3, 0], [1, 4], [5, 6], [7, 2]]


def test_balanced_is_one_whatever_k_and_collapse_is_the_number_of_experts():
    tokens, experts = 24, 6
    for top_k in (1, 2, 4):
        shifts = [torch.roll(torch.arange(experts, 0, -1.0), token) for token in range(tokens)]
        assert aux(torch.stack(shifts), top_k).item() == pytest.approx(1.0, abs=1e-6)
    collapsed = torch.full((tokens, experts), -50.0)
    collapsed[:, 2] = 50.0
    assert aux(collapsed, 1).item() == pytest.approx(experts)


def test_opposite_imbalances_of_two_layers_do_not_cancel():
    first = torch.tensor([[50.0, -50.0]] * 8)
    assert aux(first, 1).item() == pytest.approx(2.0)
    assert (aux(first, 1) + aux(-first, 1)).item() / 2 == pytest.approx(2.0)


def test_balance_gradient_goes_through_the_probability_and_scales_with_its_weight():
    logits = torch.randn(16, 4, dtype=torch.float64, requires_grad=True)
    (once,) = torch.autograd.grad(0.01 * aux(logits, 2), logits)
    (twice,) = torch.autograd.grad(0.02 * aux(logits, 2), logits)
    assert once.abs().max() > 0
    assert_close(twice, 2 * once)
    assert torch.autograd.gradcheck(lambda x: aux(x, 2), (logits,))


def test_padding_tokens_count():
    logits = torch.randn(16, 4)
    padded = torch.cat([logits, torch.zeros(16, 4)])
    assert aux(padded, 1).item() != pytest.approx(aux(logits, 1).item(), abs=1e-4)


def test_router_gradients_match_plain_autograd():
    x = torch.randn(19, 8, dtype=torch.float64, requires_grad=True)
    router = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(router_logits, (x, router))
