from itertools import islice

import torch
from datasets import Dataset

from fbt_rl.training.rows import IGNORED, RowCollator, ShuffledRows, pack_rows


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
