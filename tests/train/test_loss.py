"""The chunked loss against float64, plainly written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from gptoss_builder.train.loss import (
    IGNORE,
    _log_sum_exp,
    cross_entropy_sum,
    linear_cross_entropy,
)
from tests.tolerances import assert_close

Z_LOSS = 0.03


def _inputs(tokens: int, width: int, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x_TD = torch.randn(tokens, width, generator=generator)
    w_VD = torch.randn(vocab, width, generator=generator) * 0.5
    label_T = torch.randint(vocab, (tokens,), generator=generator)
    label_T[::4] = IGNORE
    return x_TD, w_VD, label_T


def _exact(
    x_TD: Tensor, w_VD: Tensor, label_T: Tensor, scale: float, z_loss: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x_TD = x_TD.detach().double().requires_grad_()
    w_VD = w_VD.detach().double().requires_grad_()
    nll = torch.zeros((), dtype=torch.float64)
    z_term = torch.zeros((), dtype=torch.float64)
    for row, label in enumerate(label_T.tolist()):
        if label == IGNORE:
            continue
        logits_V = w_VD @ x_TD[row]
        lse = torch.log(torch.exp(logits_V).sum())
        nll = nll + lse - logits_V[label]
        z_term = z_term + lse**2
    objective = scale * (nll + z_loss * z_term)
    dx_TD, dw_VD = torch.autograd.grad(objective, (x_TD, w_VD))
    return objective, nll, dx_TD, dw_VD


@pytest.mark.parametrize("chunk", [1, 7, 63, 64, 1000])
@pytest.mark.parametrize("z_loss", [0.0, Z_LOSS])
@pytest.mark.parametrize("vocab", [2, 65, 96, 1021, 2048])  # one block, also of a prime; three; two
def test_values_and_gradients_equal_float64(vocab: int, chunk: int, z_loss: float) -> None:
    x_TD, w_VD, label_T = _inputs(63, 20, vocab)
    objective, nll, dx_TD, dw_VD = _exact(x_TD, w_VD, label_T, 0.125, z_loss)
    x_TD.requires_grad_()
    w_VD.requires_grad_()
    ours, our_nll = linear_cross_entropy(
        x_TD, w_VD, label_T, chunk=chunk, scale=torch.tensor(0.125), z_loss=z_loss
    )
    (3 * ours).backward()
    assert_close(ours, objective)
    assert_close(our_nll, nll)
    assert_close(x_TD.grad, 3 * dx_TD)
    assert_close(w_VD.grad, 3 * dw_VD)


def test_bf16_hidden_states_give_an_fp32_weight_gradient() -> None:
    x_TD, w_VD, label_T = _inputs(65, 24, 63)
    x_TD = x_TD.bfloat16().requires_grad_()
    w_VD = w_VD.bfloat16().float().requires_grad_()  # representable, so only the products round
    _, nll, dx_TD, dw_VD = _exact(x_TD, w_VD, label_T, 1 / 49, 0.0)
    ours, our_nll = linear_cross_entropy(x_TD, w_VD, label_T, chunk=16, scale=torch.tensor(1 / 49))
    ours.backward()
    assert x_TD.grad.dtype == torch.bfloat16
    assert w_VD.grad.dtype == torch.float32
    assert_close(our_nll, nll, torch.bfloat16)
    assert_close(x_TD.grad, dx_TD, torch.bfloat16)
    assert_close(w_VD.grad, dw_VD, torch.bfloat16)


def test_a_confident_right_prediction_keeps_its_small_gradient_in_bf16() -> None:
    # p = 1 − 1e-4 rounds to 1 in bf16; the gradient of the label's logit must not vanish.
    w_VD = torch.eye(2).requires_grad_()
    x_TD = torch.tensor([[9.25, 0.0]], dtype=torch.bfloat16)
    ours, _ = linear_cross_entropy(x_TD, w_VD, torch.tensor([0]), chunk=4)
    ours.backward()
    exact = -9.25 * (1 - torch.sigmoid(torch.tensor(9.25, dtype=torch.float64)))
    assert_close(w_VD.grad[0, 0], exact, torch.bfloat16)


def test_unequal_micro_batches_add_up_to_the_mean_over_their_labels() -> None:
    # 1 label of loss 1.0 and 3 labels of loss 3.0: the mean is 2.5, a mean of means is 2.0
    w_VD = torch.eye(2)

    def loss_of(value: float) -> float:
        return float(torch.log(torch.expm1(torch.tensor(value, dtype=torch.float64))))

    total = 0.0
    for value, labels in ((1.0, [1, IGNORE, IGNORE]), (3.0, [1, 1, 1])):
        x_TD = torch.tensor([[loss_of(value), 0.0]] * 3)
        _, nll = linear_cross_entropy(x_TD, w_VD, torch.tensor(labels), chunk=2)
        total += float(nll)
    assert total / 4 == pytest.approx(2.5, rel=1e-6)


def test_gradients_of_micro_batches_sum_to_those_of_one_batch() -> None:
    x_TD, w_VD, label_T = _inputs(65, 12, 33)
    scale = 1 / (label_T != IGNORE).sum()
    whole = w_VD.clone().requires_grad_()
    linear_cross_entropy(x_TD, whole, label_T, chunk=8, scale=scale)[0].backward()
    parts = w_VD.clone().requires_grad_()
    for rows in (slice(0, 1), slice(1, 20), slice(20, 65)):
        linear_cross_entropy(x_TD[rows], parts, label_T[rows], chunk=8, scale=scale)[0].backward()
    assert_close(parts.grad, whole.grad)


def test_only_ignored_labels_give_zero_and_no_nan() -> None:
    x_TD, w_VD, label_T = _inputs(9, 6, 5)
    x_TD.requires_grad_()
    w_VD.requires_grad_()
    ours, nll = linear_cross_entropy(x_TD, w_VD, torch.full_like(label_T, IGNORE), chunk=4)
    ours.backward()
    assert ours.item() == nll.item() == 0.0
    assert not x_TD.grad.any()
    assert not w_VD.grad.any()


def test_a_second_backward_is_refused_rather_than_scaled_twice() -> None:
    x_TD, w_VD, label_T = _inputs(9, 6, 5)
    x_TD.requires_grad_()
    ours, _ = linear_cross_entropy(x_TD, w_VD, label_T, chunk=4)
    (2 * ours).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (2 * ours).backward()


def test_no_gradient_buffer_is_made_for_a_frozen_head() -> None:
    x_TD, w_VD, label_T = _inputs(9, 6, 5)
    x_TD.requires_grad_()
    linear_cross_entropy(x_TD, w_VD, label_T, chunk=4)[0].backward()
    assert w_VD.grad is None
    assert x_TD.grad.any()


def test_held_out_sum_counts_valid_labels_only() -> None:
    x_TD, w_VD, label_T = _inputs(63, 20, 65)
    total, count = cross_entropy_sum(x_TD, w_VD, label_T, chunk=10)
    _, nll, _, _ = _exact(x_TD, w_VD, label_T, 1.0, 0.0)
    assert_close(total, nll)
    assert int(count) == 63 - 16


def test_runs_on_fake_tensors() -> None:
    with FakeTensorMode():
        x_TD = torch.empty(64, 8, dtype=torch.bfloat16, requires_grad=True)
        w_VD = torch.empty(33, 8, requires_grad=True)
        label_T = torch.empty(64, dtype=torch.int64)
        ours, _ = linear_cross_entropy(x_TD, w_VD, label_T, chunk=10, z_loss=0.1)
        ours.backward()
        assert x_TD.grad.shape == (64, 8)
        assert w_VD.grad.dtype == torch.float32


class _Peak(torch.utils._python_dispatch.TorchDispatchMode):
    """Largest tensor that any op makes, in elements."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.numel())
        return out


def test_a_block_of_impossible_words_leaves_the_rest_alone() -> None:
    logits_CV = torch.randn(5, 96)
    logits_CV[:, 32:64] = -torch.inf
    logits_CV[:, 70] = 80.0
    found = _log_sum_exp(logits_CV)
    assert_close(found[:, 0], logits_CV.double().logsumexp(1))


@pytest.mark.parametrize("vocab", [37, 96, 2048])
def test_a_row_of_extreme_logits_is_itself_and_no_other(vocab: int) -> None:
    logits_CV = torch.randn(9, vocab)
    plain = _log_sum_exp(logits_CV)
    extreme = {
        0: torch.full((vocab,), -torch.inf),
        2: torch.full((vocab,), torch.finfo(torch.float32).min),
        3: torch.full((vocab,), torch.finfo(torch.float32).max),
        4: logits_CV[4] * 1e30,
        5: torch.cat([torch.full((vocab - 1,), -torch.inf), torch.tensor([-1e30])]),
        7: torch.cat([logits_CV[7, 1:], torch.tensor([torch.inf])]),
        8: torch.cat([torch.tensor([torch.nan]), logits_CV[8, 1:]]),
    }
    for row, logits_V in extreme.items():
        logits_CV[row] = logits_V
    found, exact = _log_sum_exp(logits_CV)[:, 0], logits_CV.double().logsumexp(1)
    for row in (2, 3, 4, 5):
        assert found[row].item() == pytest.approx(exact[row].item(), rel=1e-6)
    assert found[0] == -torch.inf
    assert not found[7:].isfinite().any()  # which the guard sees
    assert torch.equal(found[[1, 6]], plain[[1, 6], 0])


@pytest.mark.parametrize("chunk", [16, 256])
def test_no_tensor_has_more_logits_than_a_chunk(chunk: int) -> None:
    tokens, width, vocab = 1024, 4, 3001
    with FakeTensorMode(), _Peak() as peak:
        x_TD = torch.empty(tokens, width, requires_grad=True)
        w_VD = torch.empty(vocab, width, requires_grad=True)
        label_T = torch.empty(tokens, dtype=torch.int64)
        linear_cross_entropy(x_TD, w_VD, label_T, chunk=chunk)[0].backward()
    assert peak.largest == max(chunk * vocab, vocab * width)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler trips over torch's own warnings
@pytest.mark.parametrize("vocab", [65, 2048])
def test_compiled_terms_equal_the_plain_ones(vocab: int) -> None:
    x_TD, w_VD, label_T = _inputs(63, 20, vocab)
    _, nll, dx_TD, dw_VD = _exact(x_TD, w_VD, label_T, 1.0, Z_LOSS)
    x_TD.requires_grad_()
    w_VD.requires_grad_()
    ours, our_nll = linear_cross_entropy(
        x_TD, w_VD, label_T, chunk=40, z_loss=Z_LOSS, compiled=True
    )
    ours.backward()
    assert_close(our_nll, nll)
    assert_close(x_TD.grad, dx_TD)
    assert_close(w_VD.grad, dw_VD)
