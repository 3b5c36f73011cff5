"""The public functions, as a user's own script calls them."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gptoss_builder as gb

SPECS = Path(__file__).parents[1] / "specs"


def tiny(**training: Any) -> dict[str, Any]:
    values = yaml.safe_load((SPECS / "tiny.yaml").read_text(encoding="utf-8"))
    values["model"].update(layers=2, d_model=32)
    values["model"]["moe"]["d_ff"] = 24
    values["training"].update(training)
    values["training"]["optimizer"]["warmup_steps"] = 0
    values["inference"] = None
    return values


def test_importing_the_package_or_the_api_imports_no_torch() -> None:
    code = (
        "import sys, gptoss_builder as g; g.load_spec, g.build_model, g.train; "
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        gb.no_such_name  # noqa: B018
    assert set(gb.__all__) <= set(dir(gb))


@pytest.mark.parametrize("name", sorted(path.name for path in SPECS.glob("*.yaml")))
def test_counts_equal_the_built_model(name: str) -> None:
    model = gb.build_model(SPECS / name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == model.plan.parameters.total


def test_a_path_a_mapping_and_a_spec_build_the_same_model() -> None:
    values = tiny()
    from_mapping = gb.build_model(values)
    from_spec = gb.build_model(gb.load_spec(values))
    for (name, first), (_, second) in zip(
        from_mapping.named_parameters(), from_spec.named_parameters(), strict=True
    ):
        assert first.equal(second), name


def test_a_bad_spec_raises_with_every_finding() -> None:
    values = tiny()
    values["model"]["moe"]["top_k"] = 9
    values["model"]["attention"]["kv_heads"] = 3
    with pytest.raises(gb.SpecError) as caught:
        gb.build_model(values)
    fields = {finding.field for finding in caught.value.findings}
    assert {"model.moe.top_k", "model.attention.kv_heads"} <= fields


def test_a_plan_for_a_gpu_does_not_build_on_the_cpu() -> None:
    with pytest.raises(gb.GptossError, match="h200"):
        gb.build_model(SPECS / "gpt_oss_lite.yaml", target="h200", device="cpu")


@pytest.mark.parametrize("name", sorted(gb.__all__))
def test_a_public_name_stays_callable_once_every_module_is_imported(name: str) -> None:
    for module in pkgutil.iter_modules(gb.__path__, "gptoss_builder."):
        importlib.import_module(module.name)
    assert callable(getattr(gb, name))


def test_train_takes_a_plan_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 400, encoding="utf-8")
    values = tiny(steps=3, context=32, micro_batch=2, eval_tokens=64)
    values["data"] = {"path": str(tmp_path / "text.txt"), "tokenizer": "bytes"}
    result = gb.train(gb.make_plan(values), run_dir=tmp_path / "run")
    assert result.steps_done == 3
    assert result.checkpoint.is_dir()
    assert result.held_out is not None


def test_train_is_the_same_before_and_after_its_package_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox\n" * 400, encoding="utf-8")
    values = tiny(steps=1, context=32, micro_batch=1, eval_tokens=32)
    values["data"] = {"path": str(tmp_path / "text.txt"), "tokenizer": "bytes"}
    plan = gb.make_plan(values)
    monkeypatch.chdir(tmp_path)
    function = importlib.import_module("gptoss_builder.api").train
    package = importlib.import_module("gptoss_builder.train")
    first, second = function(plan), package(plan, run_dir=tmp_path / "run")
    assert first.checkpoint == Path("runs/tiny-cpu/checkpoints/step-00000001")
    assert second.checkpoint == tmp_path / "run/checkpoints/step-00000001"
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert ours.equal(theirs)


def test_the_documented_training_finds_its_data_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (SPECS.parent / "docs" / "training.md").read_text(encoding="utf-8")
    example, loading = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for folder in ("checkout/specs", "checkout/build/data/stdlib", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    text = tmp_path / "checkout/build/data/stdlib/text.txt"
    text.write_text("the quick brown fox\n" * 400, encoding="utf-8")
    values = tiny(steps=1, context=32, micro_batch=1, eval_tokens=32)
    spec = tmp_path / "checkout/specs/tiny.yaml"
    spec.write_text(yaml.safe_dump(values), encoding="utf-8")

    monkeypatch.chdir(tmp_path / "checkout")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["result"].steps_done == 1
    names["tokens"] = torch.tensor([[1, 2, 3]])
    exec(loading, names)
    assert names["logits"].shape == (1, 3, values["model"]["vocab"])
    model = gb.build_model("specs/tiny.yaml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = gb.train(names["plan"], model=model, run_dir="of the plan")
    there = gb.train(gb.make_plan("../checkout/specs/tiny.yaml"), run_dir="of the path")
    of_model = gb.train(gb.build_model(spec).plan, run_dir="of the model")
    of_spec = importlib.import_module("gptoss_builder.train")(spec, run_dir="of the spec")
    lost = {each.held_out for each in (again, there, of_model, of_spec, names["result"])}
    assert len(lost) == 1


def test_data_of_a_mapping_starts_at_the_working_directory() -> None:
    plan = gb.make_plan(tiny())
    assert plan.spec.data is not None
    assert plan.spec.data.path == "../build/data/stdlib"


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(gb.GptossError, match="nonsense is not a device"):
        gb.build_model(tiny(), device="nonsense")
