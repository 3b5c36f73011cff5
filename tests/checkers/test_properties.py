"""Random specs: the checker never crashes, and what it lets pass is built and trains a step."""

from __future__ import annotations

from math import gcd
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gptoss_builder.errors import GptossError
from gptoss_builder.pipeline import check
from gptoss_builder.spec.load import load_spec
from gptoss_builder.targets import ARCHITECTURES, CARDS

Values = dict[str, Any]
Integers = st.SearchStrategy[int]
SMALL = st.sampled_from([1, 2, 3, 4, 5, 8])
WIDE = st.sampled_from([1, 2, 7, 8, 16, 24, 96, 1000, 8192, 8193, 2**31, 2**40])
LARGE = st.sampled_from([0, 1, 2, 3, 64, 4096, 131072, 2**31, 2**40])
FACTOR = st.sampled_from([0.0, 1e-30, 1e-8, 1e-4, 0.1, 0.5, 0.75, 1.0, 2.0, 1e6, 1e30])


def specs(
    counts: st.SearchStrategy[int], widths: st.SearchStrategy[int]
) -> st.SearchStrategy[dict]:
    """Specs that are mostly legal field by field, and seldom legal as a whole."""
    attention = st.fixed_dictionaries(
        {"heads": counts, "kv_heads": counts, "head_dim": widths},
        optional={
            "pattern": st.lists(st.sampled_from(["window", "full"]), min_size=1, max_size=5),
            "window": st.none() | counts | widths,
            "sinks": st.booleans(),
            "backend": st.sampled_from(["auto", "flash", "math"]),
            "rope": st.fixed_dictionaries(
                {},
                optional={
                    "full_layers_rotary": FACTOR,
                    "yarn": st.none()
                    | st.fixed_dictionaries(
                        {"factor": FACTOR, "original_context": widths},
                        optional={"beta_fast": FACTOR, "beta_slow": FACTOR},
                    ),
                },
            ),
        },
    )
    moe = st.fixed_dictionaries(
        {"experts": counts, "top_k": counts, "d_ff": widths},
        optional={
            "shared_experts": counts,
            "aux_loss": FACTOR,
            "dispatch": st.sampled_from(["stacked", "grouped_mm", "triton_grouped"]),
            "backward": st.sampled_from(["recompute", "save"]),
        },
    )
    training = st.fixed_dictionaries(
        {
            "context": counts | widths,
            "steps": counts,
            "optimizer": st.fixed_dictionaries(
                {"lr": FACTOR},
                optional={"warmup_steps": counts, "grad_clip": FACTOR, "eps": FACTOR},
            ),
        },
        optional={
            "micro_batch": counts | LARGE,
            "accumulate": counts,
            "checkpoint_every": counts | LARGE,
            "precision": st.sampled_from(["bf16", "fp32"]),
            "loss_chunk": widths,
            "eval_tokens": widths,
            "save_every": LARGE,
            "nan_guard": st.fixed_dictionaries({"enabled": st.booleans()}),
        },
    )
    return st.fixed_dictionaries(
        {
            "spec": st.just(1),
            "name": st.just("random"),
            "model": st.fixed_dictionaries(
                {
                    "vocab": widths,
                    "d_model": widths,
                    "layers": counts,
                    "attention": attention,
                    "moe": moe,
                },
                optional={"tie_embeddings": st.booleans()},
            ),
            "target": st.fixed_dictionaries(
                {"gpu": st.sampled_from([*CARDS, *ARCHITECTURES, "none"])},
                optional={"margin_gib": FACTOR},
            ),
        },
        optional={
            "training": st.none() | training,
            "inference": st.none()
            | st.fixed_dictionaries({"context": counts | LARGE}, optional={"batch": LARGE}),
            "data": st.none() | st.fixed_dictionaries({"path": st.just("nowhere")}),
            "kernel": st.just("auto")
            | st.fixed_dictionaries(
                {
                    "block_t": widths,
                    "block_k": widths,
                    "block_n": widths,
                    "num_warps": counts,
                    "num_stages": counts,
                }
            ),
        },
    )


ANY = specs(SMALL | LARGE, WIDE)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(ANY)
def test_random_specs_are_judged_without_a_crash(values):
    checked = check(values)
    assert checked.plan is not None or checked.errors
    # Whatever resolve refuses a rule has foreseen.
    assert "SP104" not in {finding.code for finding in checked.findings}


TINY = specs(st.sampled_from([1, 2, 3, 4]), st.sampled_from([2, 8, 16, 24]))


def trainable(values: Values) -> Values:
    """The spec on the CPU, in fp32, with a training section."""
    training = values.get("training") or {"context": 8, "steps": 2, "optimizer": {"lr": 1e-3}}
    training = {**training, "precision": "fp32", "micro_batch": 2}
    return {**values, "target": {"gpu": "cpu"}, "kernel": "auto", "training": training}


def mostly_legal(values: Values) -> Values:
    """The spec with its most frequent disagreements settled, so that many examples pass."""
    model, training = values["model"], values["training"]
    attention, moe = model["attention"], model["moe"]
    attention = {
        **attention,
        "kv_heads": gcd(attention["heads"], attention["kv_heads"]),
        "pattern": attention.get("pattern", ["full"])[: model["layers"]],
        "window": attention.get("window") or 3,
        "backend": "auto",
    }
    moe = {**moe, "top_k": min(moe["top_k"], moe["experts"]), "dispatch": "stacked"}
    optimizer = {**training["optimizer"], "lr": 1e-3, "warmup_steps": 0}
    return {
        **values,
        "model": {**model, "vocab": 256, "attention": attention, "moe": moe},
        "training": {**training, "optimizer": optimizer, "nan_guard": {"enabled": True}},
    }


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(TINY.map(trainable).map(mostly_legal))
def test_what_passes_is_built_and_trains_a_step(values):
    torch = pytest.importorskip("torch")
    from gptoss_builder.model.build import build

    checked = check(values)
    if checked.errors:
        return
    model = build(checked.plan)
    assert sum(p.numel() for p in model.parameters()) == checked.plan.parameters.total
    training, vocab = checked.plan.spec.training, checked.plan.spec.model.vocab
    tokens = torch.randint(vocab, (training.micro_batch, training.context + 1))
    output = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(
        output.logits_BTV.reshape(-1, vocab), tokens[:, 1:].reshape(-1)
    )
    (loss + checked.plan.spec.model.moe.aux_loss * output.aux_loss).backward()
    assert torch.isfinite(loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(TINY.map(trainable))
def test_what_the_builder_refuses_the_checker_refused(values):
    pytest.importorskip("torch")
    from gptoss_builder.model.build import build
    from gptoss_builder.plan.resolve import resolve
    from gptoss_builder.targets import lookup

    checked = check(values)
    if checked.document.spec is None:
        return
    try:
        plan = resolve(load_spec(values), lookup("cpu"))
        build(plan, device="meta")
    except GptossError as error:
        refused = str(error)
    else:
        refused = ""
    assert not refused or checked.errors, refused
