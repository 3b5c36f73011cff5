"""Failures that people reported in public, groups (a) and (c): each gives its finding."""

from __future__ import annotations

import pytest

from gptoss_builder.pipeline import check
from gptoss_builder.plan.launch import choose
from gptoss_builder.targets import ARCHITECTURES
from tests.checkers.samples import GPU_SAMPLE, SAMPLE, edited


def codes(text: str | bytes, target: str | None = None) -> list[str]:
    return [finding.code for finding in check("x.yaml", text=text, target=target).errors]


@pytest.mark.parametrize("number", ["1e-4", "2e-5", "1.5e5", "1.0e4", "1e+4", "1.0e-4"])
def test_a1_exponents_are_floats(number):
    text = edited(SAMPLE, ("window: 8", f"window: 8\n    rope: {{theta: {number}}}"))
    found = check("x.yaml", text=text)
    if float(number) > 1:
        assert found.plan.spec.model.attention.rope.theta == float(number)
    else:
        assert [finding.code for finding in found.errors] == ["SP017"]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("  layers: 4", "  layers: 4\n  layers: 8", "SP008"),
        ("spec: 1", "yes: 1\ntrue: 2\nspec: 1", "SP008"),
        ("{lr: 1.0e-3,", "{learning-rate: 1.0e-3,", "SP012"),
        ("spec: 1", "spec: 1\nlr: 1.0e-3", "SP012"),
        ("    top_k: 2", "    topk: 2", "SP012"),
        ("heads: 4", "heads: 010", "SP016"),
        ("heads: 4", "heads: 0128", "SP016"),
        ("heads: 4", "heads: 08", "SP016"),
        ("window: 8", "window: 1:30", "SP016"),
        ("context: 128", "context: 131072k", "SP016"),
        ("layers: 4", "layers: 4#c", "SP016"),
        ("layers: 4", "layers: true", "SP015"),
        ("top_k: 2", "top_k: false", "SP015"),
        ("layers: 4", "layers: 12.0", "SP015"),
        ("layers: 4", "layers: 12.5", "SP015"),
        ("lr: 1.0e-3", "lr: .nan", "SP018"),
        ("lr: 1.0e-3", "lr: .inf", "SP018"),
        ("lr: 1.0e-3", "lr: 1.0e+400", "SP018"),
        ("layers: 4", "layers: 99999999999999999999999", "SP017"),
        ("layers: 4", "layers:", "SP014"),
        ("target:", "---\ntarget:", "SP007"),
        ("  vocab: 256", "\tvocab: 256", "SP004"),
    ],
)
def test_a2_to_a8_faults_of_yaml_have_their_finding(old, new, code):
    assert code in codes(edited(SAMPLE, (old, new)))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "- spec: 1\n", "spec\n"])
def test_a8_files_without_a_spec_have_one_finding(text):
    assert len(codes(text)) == 1


def test_a7_byte_order_mark_and_smart_quotes_change_nothing():
    text = edited(SAMPLE, ("spec: 1", "# “quoted” — so\nspec: 1"))
    assert codes(b"\xef\xbb\xbf" + text.encode()) == []
    assert codes(text.encode("utf-16")) == ["SP001"]


def launch(stages: int, precision: str = "bf16") -> str:
    return edited(
        GPU_SAMPLE,
        ("precision: bf16", f"precision: {precision}"),
        ("d_ff: 64", "d_ff: 64\n    dispatch: triton_grouped"),
        ("d_model: 64", "d_model: 1024"),
        (
            "target:",
            "kernel: {block_t: 128, block_k: 64, block_n: 128, num_warps: 8, "
            f"num_stages: {stages}}}\ntarget:",
        ),
    )


# (stages − 1) tiles of (128 + 2·128)·64 bf16, 49,152 bytes each: 147,456 of 101,376, and 98,304.
@pytest.mark.parametrize("target", ["sm86", "sm89", "sm120"])
def test_c1_launch_for_larger_cards_is_refused_on_smaller_ones(target):
    assert codes(launch(4), target) == ["KL003"]
    assert codes(launch(3), target) == []
    assert codes(launch(3, "fp32"), target) == ["KL003"]


def test_c1_message_has_the_bytes_and_the_stages_that_fit():
    (finding,) = check("x.yaml", text=launch(4), target="rtx4090").errors
    assert "147,456" in finding.message
    assert "101,376" in finding.message
    assert finding.fix.startswith("set num_stages to 3")


@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_c1_every_launch_that_the_table_chooses_passes_the_rules(arch, precision):
    if precision == "bf16" and not ARCHITECTURES[arch].bf16:
        return
    row = choose(arch, precision, 1024, 64, "auto")
    own = {name: getattr(row, name) for name in ("block_t", "block_k", "block_n")}
    text = edited(
        launch(2, precision),
        ("block_t: 128, block_k: 64, block_n: 128", ", ".join(f"{k}: {v}" for k, v in own.items())),
        ("num_warps: 8", f"num_warps: {row.num_warps}"),
        ("num_stages: 2", f"num_stages: {row.num_stages}"),
    )
    assert codes(text, arch) == []


def test_c3_bf16_on_sm75_is_refused_with_the_way_out():
    (finding,) = check("x.yaml", text=GPU_SAMPLE, target="sm75").errors
    assert finding.code == "TN016"
    assert "fp32" in finding.fix
