"""A WordPiece vocabulary learnt from a text, the same on every machine and in every process.

Learning is byte-pair merging on words, as in Schuster and Nakajima, "Japanese and Korean Voice Search",
ICASSP 2012, with the merge chosen by frequency as the `tokenizers` package does. That package's own trainer
breaks ties by hash order, so two ranks would learn different ids; here ties fall to the
lexicographically smaller pair. Encoding is left to `tokenizers`, and so is cutting a text into words.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

PAD, UNKNOWN, CLASSIFY, SEPARATE, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL = (PAD, UNKNOWN, CLASSIFY, SEPARATE, MASK)

Pair = tuple[str, str]


def learn_vocabulary(words: Iterable[str], num_tokens: int) -> list[str]:
    """The tokens in the order of their ids: special ones, characters, then merges until `num_tokens`.

    `words` are those that are encoded later, each as often as the text has it. Fewer tokens come back if they have no
    more to merge; if they have more characters than that, the most frequent ones.
    """
    counts = Counter(words)
    spelt = sorted(counts)
    pieces = [[word[0], *(f"##{character}" for character in word[1:])] for word in spelt]
    times = [counts[word] for word in spelt]
    tokens = [*SPECIAL, *sorted(_characters(pieces, times)[: num_tokens - len(SPECIAL)])]
    merges = _Merges(pieces, times)
    known = set(tokens)
    while len(tokens) < num_tokens and (merged := merges.next()) is not None:
        if merged not in known:
            known.add(merged)
            tokens.append(merged)
    return tokens


def _characters(pieces: list[list[str]], counts: Sequence[int]) -> list[str]:
    """Every piece of a word, the most frequent first."""
    found: Counter[str] = Counter()
    for word, count in zip(pieces, counts, strict=True):
        for piece in word:
            found[piece] += count
    return sorted(found, key=lambda piece: (-found[piece], piece))


class _Merges:
    """Pieces of every word, with counts of neighbouring pairs kept up to date merge by merge."""

    def __init__(self, pieces: list[list[str]], counts: Sequence[int]) -> None:
        self._pieces = pieces
        self._counts = counts
        self._pair_count: Counter[Pair] = Counter()
        self._words_of: defaultdict[Pair, set[int]] = defaultdict(set)
        for word in range(len(pieces)):
            self._add(word)
        self._heap = [(-count, pair) for pair, count in self._pair_count.items()]
        heapq.heapify(self._heap)

    def next(self) -> str | None:
        """Join the most frequent pair everywhere and return the new token; None when nothing is left."""
        while self._heap:
            negative, pair = heapq.heappop(self._heap)
            if self._pair_count[pair] == -negative > 0:
                return self._join(pair)
        return None

    def _join(self, pair: Pair) -> str:
        joined = pair[0] + pair[1].removeprefix("##")
        touched: set[Pair] = set()
        for word in self._words_of.pop(pair):
            touched.update(self._remove(word))
            self._pieces[word] = _join_in(self._pieces[word], pair, joined)
            touched.update(self._add(word))
        for changed in touched:
            if self._pair_count[changed] > 0:
                heapq.heappush(self._heap, (-self._pair_count[changed], changed))
        return joined

    def _add(self, word: int) -> Iterable[Pair]:
        pairs = list(pairwise(self._pieces[word]))
        for pair in pairs:
            self._pair_count[pair] += self._counts[word]
            self._words_of[pair].add(word)
        return pairs

    def _remove(self, word: int) -> Iterable[Pair]:
        pairs = list(pairwise(self._pieces[word]))
        for pair in pairs:
            self._pair_count[pair] -= self._counts[word]
        return pairs


def _join_in(pieces: list[str], pair: Pair, joined: str) -> list[str]:
    result: list[str] = []
    for piece in pieces:
        if result and (result[-1], piece) == pair:
            result[-1] = joined
        else:
            result.append(piece)
    return result
