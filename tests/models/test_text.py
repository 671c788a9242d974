"""The vocabulary is deterministic, masking is BERT's, corpora are checked."""

import collections
import unicodedata
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.data.sampling import generator_for
from models.data.text import IGNORED, NUM_TOKENS, Text, documentation_text, mask, read_corpus, tokenise
from models.data.vocabulary import CLASSIFY, MASK, SEPARATE, SPECIAL, UNKNOWN, learn_vocabulary
from models.values import WorkloadError

ID = {token: index for index, token in enumerate(SPECIAL)}


@pytest.fixture(scope="module")
def text() -> Text:
    return Text.open(documentation_text(), sequence_length=32, batch_size=16)


def slow_vocabulary(words: list[str], num_tokens: int) -> list[str]:
    """The rule itself, recounted from scratch for every merge."""
    counts = collections.Counter(words)
    pieces = {word: [word[0], *(f"##{c}" for c in word[1:])] for word in counts}
    characters = collections.Counter(piece for word, parts in pieces.items() for piece in parts * counts[word])
    by_number = sorted(characters, key=lambda piece: (-characters[piece], piece))
    tokens = [*SPECIAL, *sorted(by_number[: num_tokens - len(SPECIAL)])]
    while len(tokens) < num_tokens:
        pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        joined = best[0] + best[1].removeprefix("##")
        for word, parts in pieces.items():
            done: list[str] = []
            for part in parts:
                if done and (done[-1], part) == best:
                    done[-1] = joined
                else:
                    done.append(part)
            pieces[word] = done
        if joined not in tokens:
            tokens.append(joined)
    return tokens[:num_tokens]


@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=12), st.integers(6, 30))
def test_incremental_learning_follows_the_rule(words: list[str], num_tokens: int) -> None:
    assert learn_vocabulary(words, num_tokens) == slow_vocabulary(words, num_tokens)


def test_the_documentation_is_covered_by_its_vocabulary() -> None:
    ids = tokenise(documentation_text())
    assert len(ids) > 100_000
    assert ID[UNKNOWN] not in ids
    assert max(ids) == NUM_TOKENS - 1


@pytest.mark.parametrize(
    "text",
    [
        "The rate is 10€ at 20°C, a→b, ±5% and x≤3. ",
        unicodedata.normalize("NFD", "été déjà à la fenêtre où naît l'œuvre français "),
        "नमस्ते दुनिया यह एक परीक्षण है और यह हिन्दी में लिखा गया है। ",
        "".join(chr(0x4E00 + place) for place in range(1_500)) + "，" + "的一是了我不人在他有" * 300,
    ],
    ids=["signs", "accents apart", "vowel signs", "ideographs"],
)
def test_a_text_is_covered_by_its_vocabulary_in_any_script(text: str) -> None:
    assert ID[UNKNOWN] not in tokenise([text * 3])


def test_of_more_characters_than_tokens_the_frequent_ones_are_kept() -> None:
    rare = "".join(chr(0x4E00 + place) for place in range(3_000))
    assert tokenise([rare + "的一是了我不人在他有" * 300]).count(ID[UNKNOWN]) < 1_000


def test_cached_tokens_equal_fresh_ones(text: Text) -> None:
    again = Text.open(documentation_text(), sequence_length=32, batch_size=16)
    assert torch.equal(again.sequences, text.sequences)
    inner = text.sequences[:, 1:-1].flatten()
    assert inner.tolist() == tokenise(documentation_text())[: len(inner)]


def test_an_unwritable_cache_costs_time_but_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(Text.open(["some words " * 400], sequence_length=8, batch_size=2).sequences) > 20


@given(st.integers(0, 1000))
def test_masking_hides_only_what_is_to_be_predicted(seed: int) -> None:
    tokens = torch.randint(len(SPECIAL), NUM_TOKENS, (4, 16), generator=generator_for(seed))
    tokens[:, 0], tokens[:, -1] = ID[CLASSIFY], ID[SEPARATE]
    (inputs,), targets = mask(tokens, generator_for(seed, 1))
    predicted = targets != IGNORED
    assert torch.equal(inputs[~predicted], tokens[~predicted])
    assert torch.equal(targets[predicted], tokens[predicted])
    assert predicted.any(dim=1).all()
    assert not predicted[:, (0, -1)].any()


def test_masking_rates_are_those_of_bert() -> None:
    tokens = torch.full((200, 512), NUM_TOKENS - 1)
    (inputs,), targets = mask(tokens, generator_for(0))
    predicted = targets != IGNORED
    # 100,000 draws: three deviations are below 0.005 of all, 0.012 of the predicted.
    assert float(predicted.float().mean()) == pytest.approx(0.15 * 510 / 512, abs=0.005)
    assert float((inputs[predicted] == ID[MASK]).float().mean()) == pytest.approx(0.8, abs=0.012)
    assert float((inputs[predicted] == NUM_TOKENS - 1).float().mean()) == pytest.approx(0.1, abs=0.012)


def test_ranks_read_different_sequences_and_none_that_are_held_out() -> None:
    numbered = torch.arange(100).repeat(8, 1).T + 100  # sequence i holds only i + 100
    text = Text(batch_size=15, num_evaluation=0, sequences=numbered)
    shown = [batch.targets for rank in range(2) for batch in islice(text.batches(rank, 2, 0), 3)]
    rows = [int(row.max()) - 100 for targets in shown for row in targets]
    assert sorted(rows) == [i for i in range(100) if i % 10]
    held_out = [int(row.max()) - 100 for batch in text.held_out() for row in batch.targets]
    assert held_out == list(range(0, 100, 10))


def test_held_out_sequences_are_always_masked_alike(text: Text) -> None:
    for first, second in zip(text.held_out(), text.held_out(), strict=True):
        assert torch.equal(first.inputs[0], second.inputs[0])
        assert torch.equal(first.targets, second.targets)


def test_no_paragraph_of_the_documentation_comes_twice() -> None:
    paragraphs = [" ".join(p.split()) for document in documentation_text() for p in document.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))


def test_batches_depend_on_their_arguments_alone(text: Text) -> None:
    runs = [[batch.inputs[0] for batch in islice(text.batches(1, 2, 7), 3)] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_corpus_is_a_file_or_the_txt_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("third")
    (tmp_path / "ignored.md").write_text("no")
    assert read_corpus(str(tmp_path)) == ["second", "third"]
    assert read_corpus(str(tmp_path / "ignored.md")) == ["no"]


def test_bad_corpora_are_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"absent' does not exist; give a text file or a folder"):
        read_corpus(str(tmp_path / "absent"))
    with pytest.raises(WorkloadError, match=r"holds no text"):
        read_corpus(str(tmp_path))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(WorkloadError, match=r"latin\.txt is not UTF-8 text .* at byte 3"):
        read_corpus(str(tmp_path))
    with pytest.raises(WorkloadError, match=r"gives 0 sequences of 64 tokens, at least 20"):
        Text.open(["too short"], sequence_length=64, batch_size=1)
