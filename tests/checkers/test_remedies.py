"""Doing what a finding says makes it go away, and brings no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gptoss_builder.findings import Finding
from gptoss_builder.pipeline import check

LITE = yaml.safe_load((Path(__file__).parents[2] / "specs/gpt_oss_lite.yaml").read_text("utf-8"))
SETTING = re.compile(r"(?:(training|inference|target)\.)?([a-z_]+) to (\d+)")


def changed(**fields: object) -> dict[str, object]:
    spec = {**LITE, "model": {**LITE["model"]}}
    for name, value in fields.items():
        section, _, field = name.partition("__")
        spec[section] = {**spec[section], field: value}
    return spec


def told(finding: Finding) -> dict[str, int]:
    """The settings that a fix names: `set training.micro_batch to 16`, `set it to 4`."""
    section, _, own = finding.field.partition(".")
    return {
        f"{part or section}__{own if field == 'it' else field}": int(number)
        for part, field, number in SETTING.findall(finding.fix)
    }


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
    settings = told(found[0])
    if fields:
        assert settings.keys() == fields
        assert check(changed(**{**change, **settings})).findings == ()


def test_card_that_is_proposed_is_enough():
    small = {"training__precision": "fp32", "training__micro_batch": 1}
    found = check(changed(target__gpu="gtx1650", **small)).findings
    (finding,) = (finding for finding in found if finding.code == "VR001")
    card = re.search(r"such as (\S+)$", finding.fix)
    assert card is not None
    again = check(changed(target__gpu=card[1], **small)).findings
    assert "VR001" not in {finding.code for finding in again}


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
    assert ("shorten training.context to 131072" in finding.fix) == shorter
    assert ("take a larger card" in finding.fix) == card


def test_a_context_of_one_token_has_no_narrower_window():
    spec = changed(training__context=1, training__eval_tokens=1)
    found = [finding for finding in check(spec).findings if finding.code == "AT004"]
    assert [finding.fix for finding in found] == [
        "make the layers full, or set training.context to more than 1"
    ]


def test_no_card_is_proposed_where_none_is_enough():
    found = check(changed(model__vocab=2**31 - 1)).findings
    fixes = {finding.code: finding.fix for finding in found}
    assert fixes["VR001"].endswith(": narrow the model")
    assert fixes["VR002"] == "narrow the model"


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
