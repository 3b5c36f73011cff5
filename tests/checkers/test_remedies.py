"""Doing what a finding says makes it go away, and brings no other."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from gptoss_builder.findings import Finding
from gptoss_builder.pipeline import check

LITE = yaml.safe_load((Path(__file__).parents[2] / "specs/gpt_oss_lite.yaml").read_text("utf-8"))
SETTING = re.compile(r"([a-z_.]+)(?: to |: )([a-z0-9-]+)")


def changed(**fields: object) -> dict[str, object]:
    spec = deepcopy(LITE)
    for name, value in fields.items():
        *sections, field = name.split("__")
        place = spec
        for section in sections:
            place = place[section]
        place[field] = value
    return spec


def told(finding: Finding) -> list[dict[str, object]]:
    """The settings that a fix names, each choice by itself: `set a.b: 1 and a.c: 2, or d.e: 3`."""
    section, _, own = finding.field.partition(".")

    def name(field: str) -> str:
        field = own if field == "it" else field
        return (field if "." in field else f"{section}.{field}").replace(".", "__")

    return [
        {
            name(field): int(value) if value.isdecimal() else value
            for field, value in SETTING.findall(choice)
        }
        for choice in finding.fix.split(", or ")
    ]


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        ({"training__micro_batch": 64}, "VR001", {"training__micro_batch", "training__accumulate"}),
        (
            {"training__micro_batch": 32, "training__checkpoint_every": 0},
            "VR001",
            {"training__micro_batch", "training__accumulate"},
        ),
        (
            {"training__loss_chunk": 2**15, "training__micro_batch": 10},
            "VR001",
            {"training__loss_chunk"},
        ),
        ({"inference__batch": 64}, "VR002", {"inference__batch"}),
        ({"training__checkpoint_every": 7}, "CK002", {"training__checkpoint_every"}),
        ({"training__checkpoint_every": 11}, "CK002", {"training__checkpoint_every"}),
        ({"training__checkpoint_every": 40}, "CK001", set()),
        ({"training__eval_tokens": 10}, "TN015", set()),
    ],
)
def test_setting_what_the_finding_says_repairs_it(change, code, fields):
    change = {"target__gpu": "rtx4090", **change}
    found = check(changed(**change)).findings
    assert [finding.code for finding in found] == [code]
    if fields:
        settings = told(found[0])[0]
        assert settings.keys() == fields
        assert check(changed(**{**change, **settings})).findings == ()


@pytest.mark.parametrize(
    "change",
    [
        {"training__micro_batch": 64},
        {"training__micro_batch": 64, "training__context": 16384},
        {"training__micro_batch": 32, "training__checkpoint_every": 0},
        {"training__loss_chunk": 2**15, "training__micro_batch": 10},
        {"inference__batch": 64},
        {"target__gpu": "gtx1650", "training__precision": "fp32", "training__micro_batch": 1},
    ],
)
def test_each_change_that_is_offered_makes_it_fit_and_none_is_told_twice(change):
    change = {"target__gpu": "rtx4090", **change}
    found = [item for item in check(changed(**change)).findings if item.code in ("VR001", "VR002")]
    assert found
    for finding in found:
        assert "fits" not in finding.message  # the fix alone says what would
        choices = told(finding)
        assert len({tuple(choice) for choice in choices}) == len(choices)
        for choice in choices:
            again = check(changed(**{**change, **choice})).findings
            assert finding.code not in {item.code for item in again}, choice


@pytest.mark.parametrize(
    ("context", "shorter", "card"),
    [(2**20, True, True), (2**21, False, True), (2**23, True, False)],
)
def test_a_context_of_a_small_part_is_proposed_only_where_no_card_is_enough(context, shorter, card):
    least = {"micro_batch": 1, "checkpoint_every": 1, "context": context, "eval_tokens": context}
    spec = {
        **changed(target__gpu="rtx4090", inference__context=4096),
        "training": {**LITE["training"], **least},
    }
    attention = {**LITE["model"]["attention"], "rope": {"theta": 100000}}
    spec["model"] = {**LITE["model"], "attention": attention}
    (finding,) = (finding for finding in check(spec).findings if finding.code == "VR001")
    assert ("training.context: " in finding.fix) == shorter
    assert ("target.gpu: " in finding.fix) == card


def test_a_context_of_one_token_has_no_narrower_window():
    spec = changed(training__context=1, training__eval_tokens=1)
    found = [finding for finding in check(spec).findings if finding.code == "AT004"]
    assert [finding.fix for finding in found] == [
        "make the layers full, or set training.context to more than 1"
    ]


def test_no_card_is_proposed_where_none_is_enough():
    found = check(changed(model__vocab=2**31 - 1)).findings
    fixes = {finding.code: finding.fix for finding in found}
    assert fixes["VR001"] == fixes["VR002"] == "narrow the model; no other change is enough"


def test_prime_number_of_layers_has_no_even_period_to_propose():
    spec = changed(training__checkpoint_every=3)
    spec["model"]["layers"] = 13
    spec["model"]["attention"] = {
        **spec["model"]["attention"],
        "pattern": ["window"] * 6 + ["full"] * 7,
    }
    assert "CK002" not in {finding.code for finding in check(spec).findings}


@pytest.mark.parametrize(("every", "better"), [(4, 5), (6, 7)])
def test_a_dominated_period_of_a_prime_number_of_layers_is_told(every, better):
    spec = changed(training__checkpoint_every=every, model__layers=13, model__vocab=2000)
    pattern = ["window", "full"] * 6 + ["window"]
    spec["model"]["attention"] = {**spec["model"]["attention"], "pattern": pattern}
    (finding,) = (finding for finding in check(spec).findings if finding.code == "CK004")
    assert finding.fix == f"set checkpoint_every: {better}"
    spec["training"]["checkpoint_every"] = better
    assert "CK004" not in {finding.code for finding in check(spec).findings}


def test_checkpointing_that_makes_it_fit_is_not_advised_away():
    small = {"training__context": 768, "training__eval_tokens": 768, "training__micro_batch": 1}
    small |= {"training__checkpoint_every": 3, "target__gpu": "rtx4090"}
    spec = changed(**small)
    estimates = [
        check(changed(**{**small, "training__checkpoint_every": every})).plan.memory.training
        for every in (3, 0)
    ]
    with_it, without = (estimate.total_bytes for estimate in estimates)
    assert 0 < without - with_it < 0.01 * without
    assert "CK003" in {finding.code for finding in check(spec).findings}
    usable = check(spec).plan.target.memory_bytes
    spec["target"]["margin_gib"] = (usable - (with_it + without) / 2) / 2**30
    assert not {"CK003", "VR001"} & {finding.code for finding in check(spec).findings}
