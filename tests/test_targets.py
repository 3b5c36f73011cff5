import json
from pathlib import Path

import pytest

from gptoss_builder import cards_page
from gptoss_builder.errors import TargetError
from gptoss_builder.targets import ARCHITECTURES, CARDS, lookup

# NVIDIA's names of the same limits in KiB: opt-in a block, a multiprocessor.
SHARED_KIB = {
    "sm75": (64, 64),
    "sm80": (163, 164),
    "sm86": (99, 100),
    "sm89": (99, 100),
    "sm90": (227, 228),
    "sm100": (227, 228),
    "sm103": (227, 228),
    "sm120": (99, 100),
}


def test_a_card_is_found_by_its_name_in_any_case():
    assert lookup("A100-40GB").name == "a100-40gb"


def test_an_architecture_means_its_reference_card():
    assert lookup("sm80").name == "a100-80gb"


def test_a_spec_whose_card_has_the_architecture_keeps_it():
    assert lookup("sm80", keep="a100-40gb").name == "a100-40gb"
    assert lookup("sm90", keep="a100-40gb").name == "h100-80gb"
    assert lookup("sm80", keep="sm80").name == "a100-80gb"
    assert lookup("sm80", keep="no such card").name == "a100-80gb"


def test_a_card_wins_over_the_one_to_keep():
    assert lookup("h200", keep="a100-40gb").name == "h200"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("a100", "a100-40gb or a100-80gb"),
        ("h20", "h200"),
        ("sm_80", "sm80"),
        ("rtx-4090", "rtx4090"),
        ("zzz", "known are cpu, gtx1650"),
        ("", "known are"),
        ("sm88", "sm8"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, suggestion):
    with pytest.raises(TargetError, match="unknown target") as caught:
        lookup(name)
    assert suggestion in str(caught.value)


def test_only_the_h200_says_that_its_memory_was_measured():
    measured = {
        card.name: card.memory_bytes for card in CARDS.values() if card.memory_source == "measured"
    }
    record = Path(__file__).parents[1] / "docs/benchmarks/2026-11-30-h200-memory.json"
    assert measured == {"h200": json.loads(record.read_text(encoding="utf-8"))["total_bytes"]}


def test_derived_memory_is_below_the_capacity_on_the_box():
    assert lookup("t4").memory_bytes == int(15 * 0.98 * 2**30)
    assert lookup("a100-80gb").memory_bytes == int(80 * 0.98 * 2**30)
    assert lookup("rtx4090").memory_bytes == int(24 * 0.98 * 2**30)


def test_every_architecture_has_nvidias_shared_memory_and_a_card_of_its_own():
    assert set(ARCHITECTURES) == set(SHARED_KIB)
    for name, (block, multiprocessor) in SHARED_KIB.items():
        arch = ARCHITECTURES[name]
        assert arch.shared_memory_per_block == block * 1024
        assert arch.shared_memory_per_multiprocessor == multiprocessor * 1024
        assert CARDS[arch.reference_card].arch == name


def test_turing_has_no_bf16_and_no_tensor_cores_in_triton():
    assert not ARCHITECTURES["sm75"].bf16
    assert ARCHITECTURES["sm75"].dot == "fma"
    assert all(
        (card.bf16_rate > 0) == ARCHITECTURES[card.arch].bf16
        for card in CARDS.values()
        if card.arch != "cpu"
    )


def test_grouped_products_are_native_on_hopper_and_data_centre_blackwell_only():
    native = [arch.name for arch in ARCHITECTURES.values() if arch.grouped_mm == "native"]
    assert native == ["sm90", "sm100", "sm103"]


def test_every_card_says_where_its_figures_come_from():
    assert all(card.evidence for card in CARDS.values())


def test_the_page_of_cards_is_fresh_and_has_every_figure_with_its_evidence():
    published = Path(__file__).parents[1] / cards_page.PAGE
    assert published.read_text(encoding="utf-8") == cards_page.page(), "run `make docs`"
    rows = [line.strip("| ").split(" | ") for line in cards_page.page().split("\n")]
    cards = {row[0].strip("`"): row for row in rows if row[0].strip("`") in CARDS}
    assert cards.keys() == CARDS.keys() - {"cpu"}
    assert cards["h200"][2:5] == ["139.80", "measured", "4,800"]
    assert cards["t4"][1:8] == ["sm75", "14.70", "derived", "300", "–", "65", "8.1"]
    assert {row[0].strip("`") for row in rows} >= set(ARCHITECTURES)
    assert all(row[-1] == CARDS[name].evidence for name, row in cards.items())
