"""One run reports all that is wrong, in its place; what passes the rules has a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptoss_builder import pipeline
from gptoss_builder.errors import InputError, LaunchError, SpecError, TargetError
from gptoss_builder.findings import Severity
from gptoss_builder.pipeline import check, make_plan
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.spec.load import load_spec
from gptoss_builder.targets import lookup
from tests.checkers.samples import GPU_SAMPLE, SAMPLE, edited

TWELVE = """\
spec: 1
name: twelve
model:
  vocab: 256
  d_model: 9000
  layers: 4
  attention:
    heads: 4
    kv_heads: 3
    head_dim: 15
    patern: [window, full]
  moe:
    experts: 4
    top_k: 6
    d_ff: true
training:
  context: 010
  micro_batch: 2
  steps: 100
  precision: fp16
  optimizer: {lr: 4, warmup_steps: 100}
  nan_guard: {enabled: false}
target: {gpu: a100}
"""


def test_twelve_faults_of_different_kinds_give_twelve_findings_in_their_places():
    found = check("twelve.yaml", text=TWELVE)
    assert [
        (finding.position.line, finding.position.column, finding.code)
        for finding in found.errors
        if finding.position is not None
    ] == [
        (5, 12, "HC001"),
        (9, 15, "AT001"),
        (10, 15, "AT008"),
        (11, 5, "SP012"),
        (14, 12, "MO001"),
        (15, 11, "SP015"),
        (17, 12, "SP016"),
        (20, 14, "SP019"),
        (21, 19, "TN002"),
        (21, 36, "TN001"),
        (22, 24, "TN007"),
        (23, 15, "SP101"),
    ]
    assert found.plan is None


def test_a_rule_is_silent_about_fields_that_are_invalid():
    text = edited(SAMPLE, ("top_k: 2", "top_k: two"), ("experts: 4", "experts: 1"))
    assert [finding.code for finding in check("x.yaml", text=text).errors] == ["SP015"]


def test_training_faults_do_not_hide_that_the_model_does_not_fit():
    text = edited(
        GPU_SAMPLE,
        ("warmup_steps: 10", "warmup_steps: 100"),
        ("micro_batch: 2", "micro_batch: 1000000"),
    )
    assert [finding.code for finding in check("x.yaml", text=text).errors] == ["VR001", "TN001"]


def test_target_argument_wins_over_the_spec():
    assert check("x.yaml", text=SAMPLE, target="h200").plan.target.name == "h200"
    with pytest.raises(TargetError, match="h20"):
        check("x.yaml", text=SAMPLE, target="h20")


def test_architecture_keeps_the_card_of_the_spec():
    text = edited(GPU_SAMPLE, ("gpu: h200", "gpu: a100-40gb"))
    assert check("x.yaml", text=text, target="sm80").plan.target.name == "a100-40gb"
    assert check("x.yaml", text=GPU_SAMPLE, target="sm80").plan.target.name == "a100-80gb"


def test_refusal_of_resolve_becomes_a_finding(monkeypatch):
    def refuse(*_: object) -> None:
        raise LaunchError("the kernel needs 9 GB of registers; set kernel: auto")

    monkeypatch.setattr(pipeline, "resolve", refuse)
    found = check("x.yaml", text=SAMPLE)
    (finding,) = found.errors
    assert (finding.code, finding.fix) == ("SP104", "set kernel: auto")
    assert found.plan is None


def test_mapping_and_spec_are_checked_like_a_file():
    spec = load_spec(SAMPLE)
    assert make_plan(spec) == make_plan(spec.model_dump(mode="json"))
    found = check({"spec": 1, "name": "x"})
    assert found.errors
    assert all(finding.position is None for finding in found.errors)


def test_make_plan_raises_every_error_at_once():
    text = edited(SAMPLE, ("top_k: 2", "top_k: 9"), ("kv_heads: 2", "kv_heads: 3"))
    values = load_spec(text).model_dump(mode="json")
    with pytest.raises(SpecError) as caught:
        make_plan(values)
    assert {finding.code for finding in caught.value.findings} == {"MO001", "AT001"}


def test_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        check(tmp_path / "none.yaml")


ADVISED = edited(
    SAMPLE, ("training:\n", "training:\n  checkpoint_every: 3\n"), ("layers: 4", "layers: 8")
)
SUPPRESSED = ADVISED + "suppress: [{rule: CK002, reason: measured best}]\n"


def test_suppressed_advice_is_counted_and_not_listed():
    assert [f.code for f in check("x.yaml", text=ADVISED).findings] == ["CK002"]
    found = check("x.yaml", text=SUPPRESSED)
    assert (found.findings, found.suppressed) == ((), 1)


def test_suppression_never_hides_an_error():
    text = edited(SUPPRESSED, ("top_k: 2", "top_k: 9")).replace("rule: CK002", "rule: MO001")
    assert [f.code for f in check("x.yaml", text=text).errors] == ["MO001", "SP102"]


def test_suppressed_advice_on_data_stands_where_the_data_are_not(tmp_path):
    text = SAMPLE + "suppress: [{rule: TN022, reason: a small text on purpose}]\n"
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert check(path).findings == ()
    (tmp_path / "text").write_text("words " * 1000)  # 100 steps of 256 tokens, 4.5 times over
    assert (check(path).findings, check(path).suppressed) == ((), 1)
    (tmp_path / "text").write_text("words " * 100_000)
    assert [finding.code for finding in check(path).findings] == ["SP102"]


def test_suppressed_advice_on_the_own_card_stands_under_another_target(tmp_path):
    kernel = "kernel: {block_t: 64, block_k: 32, block_n: 64, num_warps: 4, num_stages: 2}\n"
    text = edited(
        GPU_SAMPLE,
        ("gpu: h200", "gpu: t4"),
        ("precision: bf16", "precision: fp32"),
        ("d_ff: 64", "d_ff: 64\n    dispatch: triton_grouped"),
    )
    text += kernel + "suppress: [{rule: KL007, reason: x}, {rule: MO008, reason: y}]\n"
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    assert (check(path).findings, check(path).suppressed) == ((), 2)
    assert "SP102" not in {finding.code for finding in check(path, target="h200").findings}


def test_unused_suppression_is_not_reported_while_rules_could_not_run():
    # Without a plan the plan rules have not run, so nobody knows whether it is used.
    text = edited(SAMPLE, ("top_k: 2", "top_k: 9")) + "suppress: [{rule: CK004, reason: timed}]\n"
    assert [f.code for f in check("x.yaml", text=text).findings] == ["MO001"]


@pytest.mark.parametrize("name", ["gpt_oss_lite", "gpt_oss_smoke", "tiny"])
def test_shipped_spec_is_legal(name):
    found = check(Path(__file__).parents[2] / "specs" / f"{name}.yaml")
    assert [str(f) for f in found.findings if f.severity is Severity.ERROR] == []
    assert found.plan is not None


def test_cache_of_the_shipped_spec_shrinks_twofold():
    plan = make_plan(Path(__file__).parents[2] / "specs" / "gpt_oss_lite.yaml")
    assert plan.kv_cache.reduction == pytest.approx(2.0, abs=0.005)


@pytest.mark.parametrize("window", [1, 8, 14, 15, 64, 127, 128, 4096])
def test_cache_rule_says_what_the_plan_says(window):
    text = edited(SAMPLE, ("window: 8", f"window: {window}"))
    values = load_spec(text)
    reduction = resolve(values, lookup("cpu")).kv_cache.reduction
    found = [finding for finding in check("x.yaml", text=text).errors if finding.code == "AT007"]
    assert bool(found) == (reduction < 1.8)
    assert all(f"is {reduction:.2f} times" in finding.message for finding in found)


def test_spec_for_serving_is_judged_in_the_precision_of_its_card():
    text = edited(
        GPU_SAMPLE,
        (GPU_SAMPLE[GPU_SAMPLE.index("training:") : GPU_SAMPLE.index("inference:")], ""),
        ("window: 8", "window: 8\n    backend: flash"),
    )
    assert check("x.yaml", text=text).findings == ()
    assert [finding.code for finding in check("x.yaml", text=text, target="t4").errors] == ["AT013"]
