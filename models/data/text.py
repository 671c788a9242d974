"""Text for language models: a corpus, its tokens, and what is to be predicted of them.

Masked: the corpus is cut into sequences `[CLS] … [SEP]` without padding. In each 15 % of the tokens are to be
predicted: of those 80 % show `[MASK]`, 10 % a random token and 10 % themselves (Devlin et al., 2019).
Held-out sequences are always masked alike.

Next token: the corpus is cut into sequences of one token more than a sample has. All but the last are
shown, and at each place the token behind it is to be predicted.

No token is in two sequences, and every tenth sequence is held out, so nothing that is held out is ever trained on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.data.sampling import Shard, generator_for, index_batches
from models.data.sources import held_in
from models.data.vocabulary import CLASSIFY, MASK, SEPARATE, SPECIAL, UNKNOWN, learn_vocabulary
from models.network import SampleShape
from models.settings import cache_folder
from models.values import Batch, WorkloadError
from results.files import replacing

IGNORED = -100  # target of a token that is not to be predicted, as torch's cross-entropy has it
NUM_TOKENS = 2_048
_HELD_OUT_EVERY = 10
_MASKED, _SHOW_MASK, _SHOW_RANDOM = 0.15, 0.8, 0.1
_CACHE_FORMAT = "2"
_LEARN_CHARACTERS = 4_000_000  # a vocabulary of 2,048 needs no more, and time grows with it

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Batches of sequences from one corpus: masked, or (`next_token`) with the token behind each as its target."""

    batch_size: int
    num_evaluation: int
    sequences: Tensor  # [sequences, length], with next_token [sequences, length + 1]
    next_token: bool = False

    @classmethod
    def open(
        cls,
        documents: list[str],
        sequence_length: int,
        batch_size: int,
        num_evaluation: int = 0,
        *,
        next_token: bool = False,
    ) -> Text:
        """Tokenise `documents` (cached by content). Raises: WorkloadError if they are too short."""
        tokens = _cached_tokens(documents)
        body = sequence_length + 1 if next_token else sequence_length - 2
        num_sequences = len(tokens) // body
        if num_sequences < 2 * _HELD_OUT_EVERY:
            raise WorkloadError(
                f"the corpus gives {num_sequences} sequences of {sequence_length} tokens, at least "
                f"{2 * _HELD_OUT_EVERY} are needed; give more text or a smaller sequence_length"
            )
        inner = tokens[: num_sequences * body].view(num_sequences, body)
        sequences = inner if next_token else _framed(inner)
        return cls(batch_size=batch_size, num_evaluation=num_evaluation, sequences=sequences, next_token=next_token)

    @property
    def shape(self) -> SampleShape:
        """A sequence's tokens, those to be predicted as classes."""
        return SampleShape(size=self.sequences.shape[1] - self.next_token, num_classes=NUM_TOKENS)

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        """Endless batches of this rank's share of the sequences; masks are drawn anew each time."""
        indices = held_in(len(self.sequences), _HELD_OUT_EVERY)
        shard = Shard(num_samples=len(indices), batch_size=self.batch_size, rank=rank, world=world, seed=seed)
        generator = generator_for(seed, rank, world)
        return (self._batch(self.sequences[indices[chosen]], generator) for _, chosen in index_batches(shard))

    def held_out(self) -> Iterator[Batch]:
        """Every tenth sequence, `num_evaluation` of them at most (0: all), masked alike each time."""
        sequences = self.sequences[::_HELD_OUT_EVERY][: self.num_evaluation or None]
        generator = generator_for(0)
        return (self._batch(part, generator) for part in torch.split(sequences, 32))

    def _batch(self, tokens: Tensor, generator: torch.Generator) -> Batch:
        return shift(tokens) if self.next_token else mask(tokens, generator)


def mask(tokens: Tensor, generator: torch.Generator) -> Batch:
    """Mask `tokens` [batch, length]. Every sequence keeps its special tokens and predicts at least one token."""
    chance = torch.rand(tokens.shape, generator=generator)
    random_tokens = torch.randint(len(SPECIAL), NUM_TOKENS, tokens.shape, generator=generator)
    fate = torch.rand(tokens.shape, generator=generator)
    chance[:, 0] = chance[:, -1] = 1.0
    # The token with the smallest draw is always predicted, so no batch is without a loss.
    predicted = (chance < _MASKED) | (chance == chance.amin(dim=1, keepdim=True))
    inputs = tokens.clone()
    inputs[predicted & (fate < _SHOW_MASK)] = SPECIAL.index(MASK)
    shown_random = predicted & (fate >= _SHOW_MASK) & (fate < _SHOW_MASK + _SHOW_RANDOM)
    inputs[shown_random] = random_tokens[shown_random]
    return Batch((inputs,), tokens.masked_fill(~predicted, IGNORED))


def shift(tokens: Tensor) -> Batch:
    """All but the last of `tokens` [batch, length + 1] as inputs, and at each place the next one as the target."""
    return Batch((tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous())


def _framed(tokens: Tensor) -> Tensor:
    first, last = (torch.full((len(tokens), 1), SPECIAL.index(token)) for token in (CLASSIFY, SEPARATE))
    return torch.cat((first, tokens, last), dim=1)


def documentation_text() -> list[str]:
    """The interpreter's own language documentation: about 370 kB of English, each paragraph once.

    Topics quote each other: a fifth of the text stands there twice, and would be both learnt and held out.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    return ["\n\n".join(_unseen(topics[name].split("\n\n"), seen)) for name in sorted(topics)]


def _unseen(paragraphs: list[str], seen: set[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        words = " ".join(paragraph.split())
        if words not in seen:
            seen.add(words)
            yield paragraph


def read_corpus(path: str) -> list[str]:
    """A text file, or every .txt below a folder in order of path, as UTF-8.

    Raises: WorkloadError if there is none, or a file is not UTF-8 text.
    """
    root = Path(path)
    if not path or not root.exists():
        raise WorkloadError(f"data_path {path!r} does not exist; give a text file or a folder of .txt files")
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*.txt") if file.is_file())
    documents = [_read_utf8(file) for file in files]
    if not any(document.strip() for document in documents):
        raise WorkloadError(f"data_path {path!r} holds no text; give a text file or a folder of .txt files")
    return documents


def _read_utf8(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}); convert it") from error


def _cached_tokens(documents: list[str]) -> Tensor:
    digest = hashlib.sha256(f"{_CACHE_FORMAT} {NUM_TOKENS}".encode())
    for document in documents:
        digest.update(document.encode() + b"\0")
    path = cache_folder() / f"tokens-{digest.hexdigest()[:32]}.npy"
    if (kept := _kept_tokens(path)) is not None:
        return kept
    tokens = np.asarray(tokenise(documents), dtype=np.int32)
    try:
        with replacing(path) as file:
            np.save(file, tokens, allow_pickle=False)
    except OSError as error:
        _log.info("tokens are not cached, so the next start tokenises again: %s", error)
    return torch.from_numpy(tokens).long()


def _kept_tokens(path: Path) -> Tensor | None:
    """What an earlier start has kept; None where it is not there, or damaged (a full disk, a foreign file)."""
    try:
        tokens = np.load(path, allow_pickle=False)
        if isinstance(tokens, np.ndarray) and tokens.ndim == 1 and tokens.dtype == np.int32:
            return torch.from_numpy(tokens).long()
        _log.warning("%s is no list of tokens, and is made anew", path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        _log.warning("%s is damaged and is made anew: %s", path, error)
    return None


def tokenise(documents: list[str]) -> list[int]:
    """Ids of all documents one after the other, by a vocabulary learnt from their beginning."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    # As BERT's: an ideograph is a word by itself. Accents stay, since they tell words apart.
    normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=True
    )
    splitter = pre_tokenizers.BertPreTokenizer()
    beginning = normalizer.normalize_str("\n".join(documents)[:_LEARN_CHARACTERS])
    vocabulary = learn_vocabulary((word for word, _ in splitter.pre_tokenize_str(beginning)), NUM_TOKENS)
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(vocab=ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    return [token for document in documents for token in tokenizer.encode(document).ids]
