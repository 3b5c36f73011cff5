"""Writes docs/cards.md from the table of targets: `python -m gptoss_builder.cards_page`."""

from __future__ import annotations

from pathlib import Path

from gptoss_builder.files import write_text
from gptoss_builder.targets import ARCHITECTURES, CARDS, GIB, KIB, TERA, Architecture, Target

PAGE = Path("docs/cards.md")
_HEAD = """\
# Cards

<!-- Generated from gptoss_builder/targets.py by `make docs`; edit that file. -->

What `target.gpu` and `--target` take, in any case: a card, an architecture (its reference card, or
the spec's own card if it has that architecture), or `cpu`, of which nothing is assumed.

- **Memory** is what a program can use. *Derived*: the capacity that the card is sold with, less a
  sixteenth where GDDR memory carries its error correction inline and has it on by default, less two
  percent for the driver. *Measured*: as its evidence says.
- **Bandwidth** and **rates** are the datasheet's, dense, with fp32 accumulation; fp32 is without
  tensor cores. A dash is what the card does not have. What of them training reaches is in
  [cost.md](cost.md).

| card | architecture | memory, GiB | | bandwidth, GB/s | bf16, TFLOP/s | fp16 | fp32 | evidence |
|---|---|---|---|---|---|---|---|---|
"""
_ARCHITECTURES = """
## Architectures

Shared memory is the most that a block of threads can have. Where `grouped_mm` is a loop, PyTorch
walks over the experts and waits for the device.

| architecture | reference card | bf16 | shared memory, KiB | `grouped_mm` | evidence of that |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page, as Markdown."""
    cards = [_card(card) for card in CARDS.values() if card.arch != "cpu"]
    return _HEAD + "".join(cards) + _ARCHITECTURES + "".join(map(_arch, ARCHITECTURES.values()))


def _card(card: Target) -> str:
    rates = (card.bf16_rate, card.fp16_rate, card.fp32_rate)
    cells = [
        f"`{card.name}`",
        card.arch,
        f"{card.memory_bytes / GIB:.2f}",
        card.memory_source,
        f"{card.bandwidth / 1e9:,.0f}",
        *(f"{rate / TERA:,.5g}" if rate else "–" for rate in rates),
        card.evidence,
    ]
    return f"| {' | '.join(cells)} |\n"


def _arch(arch: Architecture) -> str:
    cells = [
        f"`{arch.name}`",
        f"`{arch.reference_card}`",
        "yes" if arch.bf16 else "no",
        f"{arch.shared_memory_per_block // KIB}",
        arch.grouped_mm,
        arch.grouped_mm_evidence,
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    write_text(PAGE, page())
