"""One optimizer step of whole models on the GPU at hand: checked, then timed.

    python -m benchmarks.train_step --target h200
    python -m benchmarks.train_step --shapes lite --checkpoint 0 --alternatives

Before a shape is timed, its loss on one short sequence is compared with that of the plain fp32
model (`stacked`, `math`, not compiled) with the same weights. Times are medians over single
steps, everything included that the trainer does: forward, loss, backward, clipping, AdamW,
refreshing the bf16 copies. Tokens are random, so routing is near balance.

    MFU = (6 · active parameters + 3 · FLOPs of attention scores) · tokens/s / dense peak

with the scores over exact causal, windowed pairs; recomputation does not count. Memory is what
torch's allocator had allocated and reserved at most during the timed steps, and `planned` what
the plan says for the reserved peak.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from gptoss_builder.model.build import build
from gptoss_builder.pipeline import make_plan
from gptoss_builder.plan.schema import Plan
from gptoss_builder.train.data import StepBatch
from gptoss_builder.train.guard import NanGuard
from gptoss_builder.train.loss import linear_cross_entropy
from gptoss_builder.train.step import Stepper

GIB = 2**30
LOSS_LIMIT = 1e-2
CHECK_TOKENS = 512
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "lite": {},
    "fine": {  # fine-grained: 64 experts, top-8
        "model": {"d_model": 1024, "layers": 12},
        "attention": {"heads": 16, "kv_heads": 4, "head_dim": 64},
        "moe": {"experts": 64, "top_k": 8, "d_ff": 384},
    },
    "2.4b": {
        "model": {"d_model": 1536, "layers": 20, "vocab": 64000},
        "attention": {"heads": 16, "kv_heads": 4, "head_dim": 96},
        "moe": {"experts": 16, "top_k": 2, "d_ff": 1408},
    },
}
"""What differs from specs/gpt_oss_lite.yaml."""


def main() -> None:
    """Read the arguments, then check, time and print each row."""
    options = _parser().parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA GPU here: nothing to time")
    tokens = options.micro_batch * options.context
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {vars(options)}")
    print(
        f"{'row':<34}{'params':>8}{'active':>8}{'ms':>8}{'tokens/s':>10}{'MFU':>7}"
        f"{'alloc GiB':>10}{'reserved':>9}{'planned':>8}{'first s':>8}"
    )
    for shape in options.shapes:
        check(plan_of(shape, options, checkpoint=0))
        for checkpoint in options.checkpoint:
            plan = plan_of(shape, options, checkpoint=checkpoint)
            estimate = plan.memory.training
            planned = estimate.reserved_bytes / GIB if estimate is not None else 0.0
            name = f"{shape}, {options.dispatch}, checkpoint {checkpoint}"
            report(name, plan, tokens, options.steps, planned, lambda plan=plan: ours(plan))
        if options.alternatives:
            plan = plan_of(shape, options, checkpoint=0)
            report(
                f"{shape}, HF Qwen2-MoE compiled",
                plan,
                tokens,
                options.steps,
                0.0,
                lambda plan=plan: hugging_face(plan),
            )


def plan_of(shape: str, options: argparse.Namespace, *, checkpoint: int, **plain: Any) -> Plan:
    """The plan of a shape on the target, with the command line's training values."""
    values = yaml.safe_load(Path("specs/gpt_oss_lite.yaml").read_text(encoding="utf-8"))
    change = SHAPES[shape]
    values["name"] = f"bench-{shape}"
    values["model"] |= change.get("model", {})
    values["model"]["attention"] |= change.get("attention", {})
    values["model"]["moe"] |= change.get("moe", {})
    values["model"]["moe"] |= {"dispatch": options.dispatch, "backward": options.backward}
    values["training"] |= {
        "context": options.context,
        "micro_batch": options.micro_batch,
        "accumulate": 1,
        "checkpoint_every": checkpoint,
        "compile": not options.no_compile,
        "loss_chunk": options.loss_chunk,
    }
    return make_plan(values, target=options.target)


def ours(plan: Plan) -> Callable[[], Tensor]:
    """A step of this project's trainer; the call returns the loss, on the device."""
    training = plan.spec.training
    assert training is not None
    stepper = Stepper(plan, build(plan), NanGuard(training.nan_guard))
    batch = random_batch(plan)
    index = iter(range(10**9))

    def step() -> Tensor:
        return stepper.run(batch, next(index)).numbers[0]

    return step


def hugging_face(plan: Plan) -> Callable[[], Tensor]:
    """A step of transformers' Qwen2-MoE of the same size: bf16 weights and state, compiled.

    All in bf16 is its fastest and smallest way, and less exact than ours: no fp32 masters.
    """
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    model, moe = plan.spec.model, plan.spec.model.moe
    config = Qwen2MoeConfig(
        vocab_size=model.vocab,
        hidden_size=model.d_model,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention.heads,
        num_key_value_heads=model.attention.kv_heads,
        head_dim=model.attention.head_dim,
        moe_intermediate_size=moe.d_ff,
        shared_expert_intermediate_size=max(1, moe.shared_experts) * moe.d_ff,
        num_experts=moe.experts,
        num_experts_per_tok=moe.top_k,
        tie_word_embeddings=model.tie_embeddings,
        output_router_logits=True,
        use_cache=False,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    module = Qwen2MoeForCausalLM(config).to("cuda", torch.bfloat16)
    module.compile()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    batch = random_batch(plan)
    tokens_BT = batch.tokens_ABT[0]

    def step() -> Tensor:
        loss = module(input_ids=tokens_BT, labels=tokens_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def random_batch(plan: Plan) -> StepBatch:
    """One optimizer step of random tokens on the GPU."""
    training = plan.spec.training
    assert training is not None
    shape = (1, training.micro_batch, training.context + 1)
    generator = torch.Generator("cuda").manual_seed(0)
    ids = torch.randint(plan.spec.model.vocab, shape, device="cuda", generator=generator)
    return StepBatch(ids[..., :-1].contiguous(), ids[..., 1:].contiguous(), ids[..., 1:].numel())


def check(plan: Plan) -> None:
    """Compare the loss of a short sequence with the plain fp32 model's; stop if it is off.

    Raises:
        SystemExit: the difference is above `LOSS_LIMIT`.
    """
    generator = torch.Generator("cuda").manual_seed(1)
    ids = torch.randint(
        plan.spec.model.vocab, (1, CHECK_TOKENS + 1), device="cuda", generator=generator
    )
    losses = []
    for each in (plan, plain(plan)):
        training = each.spec.training
        assert training is not None
        stepper = Stepper(each, build(each), NanGuard(training.nan_guard))
        with torch.no_grad():
            x_BTD, _ = stepper.trainable.hidden(ids[:, :-1])
            _, nll = linear_cross_entropy(
                x_BTD.flatten(0, 1),
                stepper.trainable.head_weight,
                ids[:, 1:].flatten(),
                chunk=training.loss_chunk,
            )
        losses.append(nll.item() / CHECK_TOKENS)
        del stepper
        free()
    if not abs(losses[0] - losses[1]) <= LOSS_LIMIT:
        raise SystemExit(f"{plan.spec.name}: loss {losses[0]}, plain fp32 {losses[1]}: not timed")


def plain(plan: Plan) -> Plan:
    """The same model in fp32: per-expert loop, explicit softmax, nothing compiled."""
    values = plan.spec.model_dump(mode="json", exclude_none=True)
    values["model"]["moe"]["dispatch"] = "stacked"
    values["model"]["attention"]["backend"] = "math"
    values["training"] |= {"precision": "fp32", "compile": False, "micro_batch": 1, "context": 512}
    return make_plan(values, target=plan.target.name)


def report(
    name: str,
    plan: Plan,
    tokens: int,
    steps: int,
    planned: float,
    make: Callable[[], Callable[[], Tensor]],
) -> None:
    """Time the step that `make` gives and print its row."""
    free()
    try:
        began = time.monotonic()
        step = make()
        step()
        torch.cuda.synchronize()
        first = time.monotonic() - began
        seconds = median_seconds(step, steps)
    except torch.OutOfMemoryError:
        print(f"{name:<34}  out of memory", flush=True)
        return
    finally:
        free()
    forward = plan.flops.forward.scores
    flops = 6 * plan.parameters.active + 3 * forward
    rate = tokens / seconds
    print(
        f"{name:<34}{plan.parameters.total / 1e6:>7.0f}M{plan.parameters.active / 1e6:>7.0f}M"
        f"{seconds * 1e3:>8.1f}{rate:>10,.0f}{flops * rate / plan.target.bf16_rate:>7.1%}"
        f"{torch.cuda.max_memory_allocated() / GIB:>10.2f}"
        f"{torch.cuda.max_memory_reserved() / GIB:>9.2f}{planned:>8.2f}{first:>8.1f}",
        flush=True,
    )


def median_seconds(step: Callable[[], Tensor], steps: int) -> float:
    """Median time of a step, by events of the device, after three to warm up."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        loss = step()
        mark.record()
    torch.cuda.synchronize()
    if not bool(loss.isfinite()):
        raise SystemExit("the loss is not finite: the times mean nothing")
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(times) / 1e3


def free() -> None:
    """Give back what the last row held; compiled code goes with it."""
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Time training steps of whole models.")
    add = parser.add_argument
    add("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    add("--checkpoint", nargs="+", type=int, default=[0, 3, 1], help="periods (default: 0 3 1)")
    add("--dispatch", default="triton_grouped", help="default: triton_grouped")
    add("--backward", default="recompute", choices=["recompute", "save"])
    add("--target", default="h200")
    add("--micro-batch", type=int, default=8)
    add("--context", type=int, default=4096)
    add("--loss-chunk", type=int, default=8192)
    add("--steps", type=int, default=20)
    add("--no-compile", action="store_true")
    add("--alternatives", action="store_true", help="HF Qwen2-MoE of the same size as well")
    return parser


if __name__ == "__main__":
    main()
