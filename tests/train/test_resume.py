"""What may change between the parts of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptoss_builder.errors import ArtifactError, InputError
from gptoss_builder.train.resume import changes
from tests.train.runs import small_plan


def test_the_same_spec_has_no_changes(tmp_path: Path) -> None:
    spec = small_plan(tmp_path).spec
    assert changes(spec.model_dump(mode="json"), spec) == []


def test_a_field_that_an_older_version_did_not_write_had_its_default(tmp_path: Path) -> None:
    spec = small_plan(tmp_path).spec
    saved = spec.model_dump(mode="json")
    del saved["model"]["norm_eps"], saved["training"]["z_loss"]
    assert changes(saved, spec) == []


@pytest.mark.parametrize(
    "field",
    ["aux_loss", "dispatch", "backward", "top_k", "experts"],
)
def test_how_to_compute_may_change_and_what_the_weights_are_may_not(
    tmp_path: Path, field: str
) -> None:
    spec = small_plan(tmp_path).spec
    saved = spec.model_dump(mode="json")
    other = {"aux_loss": 0.5, "dispatch": "grouped_mm", "backward": "save"}.get(field, 1)
    saved["model"]["moe"][field] = other
    line = f"model.moe.{field}: {other} → {getattr(spec.model.moe, field)}"
    if field in ("top_k", "experts"):
        with pytest.raises(InputError, match=line):
            changes(saved, spec)
    else:
        assert changes(saved, spec) == [line]


def test_a_spec_of_another_version_is_refused(tmp_path: Path) -> None:
    spec = small_plan(tmp_path).spec
    for saved in ({}, spec.model_dump(mode="json") | {"more": 1}):
        with pytest.raises(ArtifactError, match="not one of this version"):
            changes(saved, spec)
