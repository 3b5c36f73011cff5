import json
import math
from pathlib import Path

import pytest

from gptoss_builder.errors import ArtifactError
from gptoss_builder.plan.artifact import plan_text, read_plan, write_plan
from gptoss_builder.plan.json_schema import schema_text
from gptoss_builder.plan.resolve import resolve
from gptoss_builder.targets import lookup
from tests.plan.specs import lite


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "plan.json"
    write_plan(resolve(lite(), lookup("h200")), path)
    return path


def spoil(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_a_plan_is_read_as_it_was_written(written):
    assert read_plan(written) == resolve(lite(), lookup("h200"))


def test_the_same_plan_gives_the_same_bytes():
    assert plan_text(resolve(lite(), lookup("h200"))) == plan_text(resolve(lite(), lookup("h200")))


def test_nothing_is_left_beside_the_plan(written):
    assert [entry.name for entry in written.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        (lambda plan: plan["parameters"].update(total="many"), "/parameters/total"),
        (lambda plan: plan["spec"]["model"].update(d_model=9000), "/spec/model/d_model"),
        (lambda plan: plan["execution"].update(device="tpu"), "/execution/device"),
        (lambda plan: plan.update(plan=2), "/plan"),
        (lambda plan: plan.update(extra=1), "/: "),
        (lambda plan: plan.pop("memory"), "/: "),
        (lambda plan: plan["memory"]["training"]["moments"][0].update(name=3), "/moments/0/name"),
    ],
)
def test_a_value_that_does_not_belong_is_named_with_its_pointer(written, change, pointer):
    spoil(written, change)
    with pytest.raises(ArtifactError) as caught:
        read_plan(written)
    assert str(written) in str(caught.value)
    assert pointer in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'{"plan": NaN}', b"\xff\xfe{}", b"[" * 100_000],
)
def test_what_is_no_plan_is_refused_without_a_traceback(written, content):
    written.write_bytes(content)
    with pytest.raises(ArtifactError, match="plan"):
        read_plan(written)


def test_a_missing_file_says_who_writes_it(tmp_path):
    with pytest.raises(ArtifactError, match="gptoss-build"):
        read_plan(tmp_path / "plan.json")


def test_a_folder_is_no_plan(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_plan(tmp_path)


def test_numbers_in_a_plan_are_finite():
    def walk(value):
        if isinstance(value, dict):
            return all(map(walk, value.values()))
        if isinstance(value, list):
            return all(map(walk, value))
        return not isinstance(value, float) or math.isfinite(value)

    for target in ("h200", "cpu", "t4"):
        spec = lite(training__precision="fp32")
        assert walk(resolve(spec, lookup(target)).model_dump(mode="json"))


def test_the_published_schema_is_fresh():
    published = Path(__file__).parents[2] / "docs" / "plan.schema.json"
    assert published.read_text(encoding="utf-8") == schema_text(), (
        "run python -m gptoss_builder.plan.json_schema"
    )
