"""Text from a model: what it starts with is settled before anything is trained or drawn."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gptoss_builder.errors import InputError
from gptoss_builder.generate import Sampling, context_limit, stream
from gptoss_builder.model.transformer import Transformer
from gptoss_builder.plan.schema import Plan
from gptoss_builder.tokenizer import ByteTokenizer, JsonTokenizer, load_tokenizer

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Start:
    """What a sample continues."""

    tokenizer: ByteTokenizer | JsonTokenizer
    prompt: str
    ids: list[int]
    """Token ids of the prompt, at least one."""
    room: int
    """Tokens that the context has left; can be 0."""


def sample_start(plan: Plan, prompt: str | None) -> Start | None:
    """The start of a sample; None for a spec without data, which names no tokenizer.

    Without a prompt it is the end of a document before, or a line break.

    Raises:
        InputError: the prompt leaves no room in the context or has an id outside the vocabulary.
        InputError, ArtifactError: the tokenizer cannot be used.
    """
    if plan.spec.data is None:
        return None
    tokenizer = load_tokenizer(plan.spec.data.tokenizer)
    vocab, limit = plan.spec.model.vocab, context_limit(plan.spec)
    before = [] if tokenizer.end is None else [tokenizer.end]
    ids = before + tokenizer.encode(prompt if prompt is not None else "" if before else "\n")
    if prompt is None and (not ids or max(ids) >= vocab):
        ids = [0]
    elif not ids:
        raise InputError("--prompt has no token in this tokenizer; give another one")
    elif max(ids) >= vocab:
        raise InputError(
            f"--prompt has token id {max(ids)}, and model.vocab is {vocab}; give another one"
        )
    elif prompt is not None and len(ids) >= limit:
        raise InputError(
            f"--prompt has {len(ids)} tokens and fills the whole context of {limit}; give a "
            "shorter one"
        )
    return Start(tokenizer, prompt or "", ids, limit - len(ids))


def print_sample(model: Transformer, start: Start, tokens: int) -> None:
    """Print the prompt and its continuation by at most `tokens` tokens."""
    tokens = min(tokens, start.room)
    if tokens < 1:
        print("\nno sample: the context has no room for a token")
        return
    sampling = Sampling(temperature=TEMPERATURE, seed=model.plan.spec.seed)
    text = "".join(continuation(model, start, tokens, sampling))
    print(
        f"\nsample of {tokens} tokens at temperature {TEMPERATURE}:\n{_shown(start.prompt)}{text}"
    )


def continuation(
    model: Transformer, start: Start, tokens: int, sampling: Sampling
) -> Iterator[str]:
    """The text after the prompt, a piece as soon as its characters are whole; see `_shown`."""
    ids: list[int] = []
    given = 0
    for token in stream(model, torch.tensor([start.ids]), tokens, sampling):
        ids.append(int(token))
        text = start.tokenizer.decode(ids)
        if not text.endswith("\ufffd"):  # of which the next token may make a character
            yield _shown(text[given:])
            given = len(text)
    yield _shown(start.tokenizer.decode(ids)[given:])


def _shown(text: str) -> str:
    """The text with U+FFFD for control characters, to which a terminal would listen."""
    return "".join(
        "\ufffd" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
        for char in text
    )
