"""Training sequences: which tokens a position of the run stands for, and getting them there.

Order is a pure function. A run consumes sequences one by one; the sequence at a position
depends on the position, the seed and the corpus only, so the position is all that a checkpoint
must hold to continue exactly, in any epoch and with any accumulation.

Dimensions: A micro-batches of a step, B sequences of a micro-batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gptoss_builder.errors import DataError
from gptoss_builder.train.corpus import Corpus
from gptoss_builder.train.loss import IGNORE

Pair = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Tokens and labels of one sequence, both `[T]`; the label of a token is the one after it."""


class TrainingData(Protocol):
    """What the trainer trains on; any object of this shape can be handed to `train`."""

    identity: str
    """Changes when content or order changes; a resumed run refuses another one."""
    held_out_count: int
    """Sequences that are never trained on."""

    def sequence(self, position: int) -> Pair:
        """The sequence at `position` of the run, from 0, without end."""

    def held_out(self, index: int) -> Pair:
        """Held-out sequence `index`; labels of padding are `IGNORE`."""


def require_training_data(data: object) -> None:
    """Hold a user's object to `TrainingData`, before a run leaves checkpoints that hold it.

    Raises:
        DataError: it lacks one of its members, or one that is no method has another type.
    """
    members = ("identity", "held_out_count", "sequence", "held_out")
    missing = [name for name in members if not hasattr(data, name)]
    if missing:
        raise DataError(
            f"{type(data).__name__} has no {', '.join(missing)}; see train.data.TrainingData"
        )
    identity, held_out_count = (getattr(data, name) for name in members[:2])
    if not isinstance(identity, str):
        raise DataError(f"{type(data).__name__}.identity is {identity!r}; it must be a text")
    if not isinstance(held_out_count, int | np.integer) or held_out_count < 0:
        raise DataError(
            f"{type(data).__name__}.held_out_count is {held_out_count!r}; it must be a whole "
            "number from 0 on"
        )


class StepBatch(NamedTuple):
    """Tokens and labels of one optimizer step on the device, int64, and their valid labels."""

    tokens_ABT: Tensor
    labels_ABT: Tensor
    valid: int


class CorpusData:
    """Sequences of a corpus, in an order that is shuffled anew in every epoch.

    The last `holdout` part of the tokens is held out. What comes before is cut into sequences
    of `context` tokens and their labels, one token further on, so n tokens give
    (n − 1) // context sequences; a shorter rest is left over.
    """

    def __init__(
        self, corpus: Corpus, *, context: int, holdout: float, seed: int, vocab: int
    ) -> None:
        """Split and count.

        Raises:
            DataError: the training part is shorter than one sequence and its last label, or
                fewer than two tokens are held out.
        """
        self._corpus, self._context, self._seed, self._vocab = corpus, context, seed, vocab
        held = int(len(corpus) * holdout)
        self._train_tokens = len(corpus) - held
        self.sequences = max(0, self._train_tokens - 1) // context
        """Sequences of one epoch."""
        if self.sequences < 1:
            raise DataError(
                f"{corpus.name} has {len(corpus)} tokens, {self._train_tokens} of them to train "
                f"on, but one sequence of training.context {context} needs {context + 1}; add "
                "data or lower training.context"
            )
        if held < 2:
            raise DataError(
                f"data.holdout {holdout} of {len(corpus)} tokens holds out {held}, but a label "
                "needs at least 2; raise data.holdout or add data"
            )
        self._held_tokens = held
        self.held_out_count = -(-(held - 1) // context)
        self.identity = f"{corpus.identity} context={context} holdout={holdout} seed={seed}"
        self._epoch = -1
        self._order = np.empty(0, np.int64)

    def sequence(self, position: int) -> Pair:
        """The sequence at `position` of the run.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        epoch, index = divmod(position, self.sequences)
        if epoch != self._epoch:
            self._order, self._epoch = self._permutation(epoch), epoch
        start = int(self._order[index]) * self._context
        tokens = self._corpus.read(start, start + self._context + 1, self._vocab)
        return tokens[:-1], tokens[1:]

    def held_out(self, index: int) -> Pair:
        """Held-out sequence `index`; the last one is padded."""
        start = self._train_tokens + index * self._context
        stop = min(start + self._context + 1, self._train_tokens + self._held_tokens)
        ids = self._corpus.read(start, stop, self._vocab)
        tokens = np.zeros(self._context, np.int64)
        labels = np.full(self._context, IGNORE, np.int64)
        tokens[: len(ids) - 1], labels[: len(ids) - 1] = ids[:-1], ids[1:]
        return tokens, labels

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        # RandomState's stream is frozen by numpy's policy (NEP 19), Generator's is not, and
        # a resumed run must see the same order under another numpy.
        return np.random.RandomState([self._seed, epoch]).permutation(self.sequences)


class Loader:
    """Assembles the batch of each optimizer step one step ahead, in a thread, in pinned memory."""

    def __init__(
        self,
        data: TrainingData,
        *,
        accumulate: int,
        micro_batch: int,
        context: int,
        vocab: int,
        device: torch.device,
    ) -> None:
        self._data, self._device, self._vocab = data, device, vocab
        self._shape = (accumulate, micro_batch, context)

    def steps(self, position: int, count: int) -> Iterator[StepBatch]:
        """Batches of `count` optimizer steps, the first sequence being that at `position`.

        Raises:
            DataError: a sequence has another shape or type, or an id outside the vocabulary.
        """
        per_step = self._shape[0] * self._shape[1]
        with ThreadPoolExecutor(1, thread_name_prefix="data") as pool:
            ahead: Future[Tensor] | None = None
            for left in range(count, 0, -1):
                ready = ahead or pool.submit(self._assemble, position)
                position += per_step
                ahead = pool.submit(self._assemble, position) if left > 1 else None
                yield self._to_device(ready.result())

    def held_out(self, tokens: int) -> Iterator[StepBatch]:
        """Held-out micro-batches of at most `tokens` tokens in all, at least one sequence.

        All have the shape of a training micro-batch, so that nothing compiles again; sequences
        that are missing in the last one are ignored labels.
        """
        _, micro_batch, context = self._shape
        count = min(self._data.held_out_count, max(1, tokens // context))
        for first in range(0, count, micro_batch):
            batch = self._empty((1, micro_batch, context))
            for row, index in enumerate(range(first, min(first + micro_batch, count))):
                self._fill(batch, (0, row), self._data.held_out(index), f"held-out {index}")
            yield self._to_device(batch)

    def _assemble(self, position: int) -> Tensor:
        batch = self._empty(self._shape)
        for micro in range(self._shape[0]):
            for row in range(self._shape[1]):
                pair = self._data.sequence(position)
                self._fill(batch, (micro, row), pair, f"training {position}")
                position += 1
        return batch

    def _empty(self, shape: tuple[int, int, int]) -> Tensor:
        batch = torch.zeros((2, *shape), dtype=torch.int64, pin_memory=self._device.type == "cuda")
        batch[1] = IGNORE
        return batch

    def _fill(self, batch: Tensor, where: tuple[int, int], pair: Pair, name: str) -> None:
        try:
            tokens, labels = (np.asarray(ids) for ids in pair)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} sequence is no pair of tokens and labels: {error}") from error
        context = self._shape[2]
        if tokens.dtype.kind not in "iu" or labels.dtype.kind not in "iu":
            raise DataError(
                f"{name} sequence has tokens of {tokens.dtype} and labels of {labels.dtype}; both "
                "must be whole numbers"
            )
        if tokens.shape != (context,) or labels.shape != (context,):
            raise DataError(
                f"{name} sequence has tokens {tokens.shape} and labels {labels.shape}; both "
                f"must be ({context},), training.context"
            )
        for kind, ids, legal in (
            ("token", tokens, (tokens >= 0) & (tokens < self._vocab)),
            ("label", labels, ((labels >= 0) & (labels < self._vocab)) | (labels == IGNORE)),
        ):
            if not legal.all():
                at = int(legal.argmin())
                raise DataError(
                    f"{name} sequence, {kind} {at}: id {ids[at]} is outside the vocabulary "
                    f"0 … {self._vocab - 1} of model.vocab"
                )
        batch[0][where] = torch.from_numpy(np.ascontiguousarray(tokens, np.int64))
        batch[1][where] = torch.from_numpy(np.ascontiguousarray(labels, np.int64))

    def _to_device(self, batch: Tensor) -> StepBatch:
        valid = int((batch[1] != IGNORE).sum())
        tokens, labels = batch.to(self._device, non_blocking=True)
        return StepBatch(tokens, labels, valid)
