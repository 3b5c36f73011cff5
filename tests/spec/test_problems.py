"""The table of faults: complete, and its examples do what they say."""

from __future__ import annotations

import pytest

from gptoss_builder.spec.problems import NOT_UTF8, PROBLEMS, Problem
from gptoss_builder.spec.yaml_text import parse
from tests.spec.examples import read


def codes(fragment: str, problem: Problem) -> set[str]:
    content = fragment.encode()
    if problem.code == NOT_UTF8:
        content = content.replace(b"\\xe9", b"\xe9")
    return {finding.code for finding in read(content).findings}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.code)
def test_the_bad_fragment_brings_its_code_and_the_good_one_does_not(problem: Problem) -> None:
    assert problem.code in codes(problem.bad, problem)
    assert codes(problem.good, problem) <= {"SP013"}  # a fragment lacks most of a spec


def test_the_good_fragment_of_a_missing_field_has_it() -> None:
    bad, good = (
        {finding.field for finding in read(fragment).findings}
        for fragment in (PROBLEMS["SP013"].bad, PROBLEMS["SP013"].good)
    )
    assert bad - good == {"target.gpu"}


def test_codes_are_numbered_without_gaps_and_told_in_words() -> None:
    own = [code for code in PROBLEMS if code.startswith("SP")]
    assert own == [f"SP{number:03d}" for number in range(1, len(own) + 1)]
    for problem in PROBLEMS.values():
        assert len(problem.title) <= 72
        assert problem.why.endswith(".")


def test_good_fragments_are_yaml() -> None:
    for problem in PROBLEMS.values():
        assert parse(problem.good).complete
