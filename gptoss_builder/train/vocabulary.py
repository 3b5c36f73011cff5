"""Training a byte-level BPE vocabulary: text to a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gptoss_builder.errors import InputError, install
from gptoss_builder.files import write_text
from gptoss_builder.train.corpus import read_text

END = "<|endoftext|>"
MIN_VOCAB, MAX_VOCAB = 257, 2**24
"""Every byte and the end of a document; a vocabulary that its trainer, which reserves memory for
every id before it starts, still holds in about a gigabyte."""


def train_bpe(
    out: Path,
    files: Sequence[Path],
    *,
    vocab: int,
    max_bytes: int | None = None,
    progress: bool = False,
) -> tuple[int, int]:
    """Train a byte-level BPE and write it as a `tokenizer.json`.

    Text is split as GPT-2 splits it, so runs of spaces are one piece. Id 0 is `<|endoftext|>`.
    The same text gives the same file.

    Args:
        out: the file to write.
        files: UTF-8 text, as `corpus.text_files` finds it.
        vocab: ids are 0 … vocab − 1, or fewer where the text has too few pairs that repeat.
        max_bytes: learn from the first files that come to this size; from all if None.
        progress: show bars on standard error.

    Returns:
        Ids of the vocabulary, and bytes of text that it learned from.

    Raises:
        InputError: `vocab` is below 257 or above 2²⁴, or the `tokenizers` package is missing.
        DataError: a file cannot be read or is not UTF-8.
        OSError: `out` cannot be written.
    """
    if vocab < MIN_VOCAB:
        raise InputError(
            f"a vocabulary of {vocab} does not hold all 256 bytes and {END}; give at least "
            f"{MIN_VOCAB}"
        )
    if vocab > MAX_VOCAB:
        raise InputError(f"a vocabulary of {vocab} is too large; give at most {MAX_VOCAB}")
    tokenizers = _backend()
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    text = _Text(files, max_bytes)
    backend.train_from_iterator(iter(text), trainer)
    write_text(out, backend.to_str() + "\n")
    return int(backend.get_vocab_size()), text.size


class _Text:
    """Texts of the files, counted as they are read."""

    def __init__(self, files: Sequence[Path], max_bytes: int | None) -> None:
        self._files, self._max = files, max_bytes
        self.size = 0

    def __iter__(self) -> Iterator[str]:
        for file in self._files:
            text = read_text(file)
            self.size += len(text.encode())
            yield text
            if self._max is not None and self.size >= self._max:
                return


def _backend() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise InputError(
            f"training a vocabulary needs the tokenizers package; {install('tokenizers')}"
        ) from error
    return tokenizers
