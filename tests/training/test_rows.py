from itertools import islice
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from fbt_rl.training.rows import IGNORED, RowCollator, ShuffledRows, kept_rows, lengths, on_disk, pack_rows


def documents(*lengths: int, first: int = 10) -> Dataset:
    """Documents of distinct tokens, so that each is found again."""
    ids, start = [], first
    for length in lengths:
        ids.append(list(range(start, start + length)))
        start += length
    return Dataset.from_dict({"input_ids": ids})


def split_rows(rows) -> list[list[int]]:
    """The documents of packed rows, sorted by first token."""
    found = []
    for row in rows:
        start = 0
        for length in row["seq_lengths"]:
            found.append(row["input_ids"][start : start + length])
            start += length
        assert start == len(row["input_ids"])
    return sorted(found)


def test_packing_keeps_every_document_whole():
    source = documents(5, 3, 8, 2, 4, 1)
    rows = pack_rows(source, 8, split=False)
    assert split_rows(rows) == source["input_ids"][:]
    assert len(rows) == 3  # 23 tokens fit into three rows of 8
    assert all(len(row["input_ids"]) <= 8 for row in rows)
    assert rows["row_id"][:] == [0, 1, 2]


def test_long_documents_go_on_in_further_rows():
    rows = pack_rows(documents(20, 3), 8, split=True)
    assert sorted(token for row in rows for token in row["input_ids"]) == list(range(10, 33))
    assert sorted(len(part) for part in split_rows(rows)) == [3, 4, 8, 8]


def test_rows_are_made_once_and_mapped(tmp_path):
    """By one process for all of them; what they depend on is their name, and other rows take their place."""
    calls = []

    def make(name):
        def call(work):
            calls.append(name)
            tokens = on_disk(lambda: iter([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]), ("input_ids",), work)
            return pack_rows(tokens, 8, split=True), {"documents": 2}

        return call

    rows, counts = kept_rows(tmp_path / "rows", {"of": "a"}, make("a"), first=True)
    assert rows["input_ids"][:] == [[1, 2, 3, 4, 5]]
    assert lengths(rows).tolist() == [5]
    assert counts == {"documents": 2}
    (mapped,) = {Path(file["filename"]).parent.parent for file in rows.cache_files}
    assert mapped == tmp_path / "rows"
    again = [kept_rows(tmp_path / "rows", {"of": "a"}, make("again"), first=first) for first in (True, False)]
    assert [found["row_id"][:] for found, _ in again] == [[0], [0]]
    kept_rows(tmp_path / "rows", {"of": "b"}, make("b"), first=True)
    assert calls == ["a", "b"]
    assert len(list((tmp_path / "rows").iterdir())) == 1


def test_half_made_rows_are_made_anew(tmp_path):
    def breaks_off(work):
        work.mkdir()
        (work / "part").write_text("")
        raise OSError("no room")

    def make(work):
        tokens = on_disk(lambda: iter([{"input_ids": [1]}]), ("input_ids",), work)
        return pack_rows(tokens, 8, split=True), {}

    with pytest.raises(OSError, match="no room"):
        kept_rows(tmp_path / "rows", {}, breaks_off, first=True)
    rows, _ = kept_rows(tmp_path / "rows", {}, make, first=True)
    assert rows["input_ids"][:] == [[1]]
    assert [path.name[0] for path in (tmp_path / "rows").iterdir()] != ["."]


def test_nothing_to_write_is_told_apart(tmp_path):
    assert on_disk(lambda: iter([]), ("input_ids",), tmp_path) is None


def test_collator():
    rows = pack_rows(documents(3, 2), 6, split=False)
    batch = RowCollator(row_length=6, pad_token_id=0)(list(rows))
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    # nothing predicts the first token of a document or padding
    assert batch["labels"].tolist() == [[IGNORED, 11, 12, IGNORED, 14, IGNORED]]
    assert batch["row_ids"] == [0]
    assert batch["num_tokens"] == 5
    assert batch["input_ids"].dtype == torch.int64


def test_collator_keeps_given_labels():
    source = documents(3, 2).add_column("labels", [[IGNORED, IGNORED, 12], [IGNORED, 14]])
    batch = RowCollator(6, 0)(list(pack_rows(source, 6, split=False)))
    assert batch["labels"].tolist() == [[IGNORED, IGNORED, 12, IGNORED, 14, IGNORED]]


def test_order_is_epochs_of_permutations():
    order = list(ShuffledRows(num_rows=5, num_draws=13, seed=2))
    assert len(order) == len(ShuffledRows(5, 13, 2)) == 13
    assert sorted(order[:5]) == sorted(order[5:10]) == [0, 1, 2, 3, 4]
    assert order[:5] != order[5:10]
    assert order == list(ShuffledRows(5, 13, 2))
    assert order != list(ShuffledRows(5, 13, 3))
    assert list(islice(ShuffledRows(5, 100, 2), 13)) == order  # a longer run starts the same
