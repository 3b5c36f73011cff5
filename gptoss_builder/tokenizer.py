"""Tokenizers: bytes, built in, and any `tokenizer.json` through the `tokenizers` extra."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gptoss_builder.errors import ArtifactError, InputError, install

END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "<|eot|>", "</s>", "<eos>")
"""Names under which a vocabulary may hold the token that ends a document, in this order."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    name: str
    """`bytes`, or the path of the tokenizer.json."""
    size: int
    """Ids are 0 … size − 1."""
    identity: str
    """`bytes`, or `sha256:` and the hash of the file."""
    end: int | None
    """Id that ends a document; None where the vocabulary has none."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with no special token added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""


class ByteTokenizer:
    """Ids are the bytes of the UTF-8 text; a document ends with byte 0, which text has no use for.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    name = "bytes"
    identity = "bytes"
    size = 256
    end: int | None = 0

    def encode(self, text: str) -> list[int]:
        """UTF-8 bytes of `text`."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes; ids above 255, which an untrained model may give, become U+FFFD."""
        return b"".join(bytes([id_]) if id_ < 256 else "\ufffd".encode() for id_ in ids).decode(
            errors="replace"
        )


class JsonTokenizer:
    """A `tokenizer.json` of the Hugging Face `tokenizers` library.

    Whole documents are wanted, so truncation and padding that the file asks for are left out.
    """

    def __init__(self, path: Path) -> None:
        """Read `path`.

        Raises:
            InputError: the file or the `tokenizers` package is missing.
            ArtifactError: the file is not a tokenizer.
        """
        text = _read_json_text(path)
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise InputError(
                f"{path} needs the tokenizers package; {install('tokenizers')}, or set "
                "data.tokenizer to bytes"
            ) from error
        try:
            self._backend: Any = Backend.from_str(text)
        except Exception as error:  # the package raises nothing narrower
            raise ArtifactError(f"{path} is not a tokenizer.json: {error}") from error
        # A file may ask for either. Cut documents would lose text, and pads would be trained on.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.name = str(path)
        self.identity = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values(), default=-1) + 1
        self.end = next((vocabulary[name] for name in END_OF_TEXT if name in vocabulary), None)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with no special token added."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of several texts, on all cores."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=False)
        return text


def load_tokenizer(name: str) -> ByteTokenizer | JsonTokenizer:
    """The tokenizer that `data.tokenizer` names: `bytes` or a path.

    Raises:
        InputError: the file or the `tokenizers` package is missing.
        ArtifactError: the file is not a tokenizer.
    """
    return ByteTokenizer() if name == "bytes" else JsonTokenizer(Path(name))


def _read_json_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except FileNotFoundError as error:
        raise InputError(
            f"tokenizer {path} is not there; give the path of a tokenizer.json, or bytes"
        ) from error
    except OSError as error:
        raise InputError(f"tokenizer {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested without end
        raise ArtifactError(f"{path} is not a tokenizer.json: {error}") from error
    return text
