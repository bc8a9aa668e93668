"""Making the rows of a pretraining stage: tokens a second, memory, the second start, and how full rows are.

    python benchmarks/rows.py [--tokens 50] [--kind bpe] [--compare]

``--tokens`` in millions, of the books in ``../shared/data/text`` over and over. Every part runs in a process of its
own, so that its peak memory is its own. ``--compare`` also makes them as transformers' examples do, by ``datasets`` in
the process's memory, and checks that the rows are equal.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = Path(__file__).parents[2] / "shared" / "data" / "text"
ROW_LENGTH = 8192  # the paper's context


def corpus(folder: Path, characters: int) -> Path:
    """A text file of about so many characters."""
    books = "\n\n".join(path.read_text(encoding="utf-8-sig") for path in sorted(TEXT.glob("*.txt")))
    path = folder / "books.txt"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(-(-characters // len(books))):
            file.write(books + "\n\n")
    return path


def part(name: str, folder: Path, kind: str) -> dict[str, float]:
    from datasets import Dataset, concatenate_datasets

    from fbt_rl.config import FileData, TokenizerConfig
    from fbt_rl.data.tasks import encode_document
    from fbt_rl.data.tokenization import build_tokenizer, load_tokenizer
    from fbt_rl.training.rows import kept_rows, pack_rows
    from pretrain.data import build_rows, read_documents

    data = [FileData(paths=[str(folder / "books.txt")])]
    tokenizer_folder = folder / "tokenizer"
    if name == "tokenizer":
        from itertools import islice

        documents = islice(read_documents(data, 0), 2000)
        build_tokenizer(TokenizerConfig(kind=kind), documents).save_pretrained(tokenizer_folder)
        return {}
    tokenizer = load_tokenizer(tokenizer_folder)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if name == "in memory":
        documents = Dataset.from_dict({"text": list(read_documents(data, 0))})
        tokens = documents.map(
            lambda batch: {"input_ids": [encode_document(tokenizer, text) for text in batch["text"] if text.strip()]},
            batched=True,
            remove_columns=["text"],
        )
        rows = pack_rows(tokens, ROW_LENGTH, split=True)
        counts = {"tokens": sum(len(ids) for ids in tokens["input_ids"])}
    else:
        rows, counts = kept_rows(
            folder / "rows",
            {},
            lambda work: build_rows(read_documents(data, 0), tokenizer, ROW_LENGTH, work),
            first=True,
        )
    seconds = time.perf_counter() - start
    if name == "compare":
        kept = Dataset.load_from_disk(str(folder / "in-memory"))
        same = len(rows) == len(kept) and all(
            a["input_ids"] == b["input_ids"] and a["seq_lengths"] == b["seq_lengths"]
            for a, b in zip(rows.iter(1000), kept.iter(1000), strict=True)
        )
        return {"equal": same}
    first = concatenate_datasets([rows.select(range(min(32, len(rows))))])[:]  # as a rank reads
    assert len(first["input_ids"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name == "in memory":
        rows.save_to_disk(str(folder / "in-memory"))
    return {
        "tokens": counts["tokens"],
        "seconds": seconds,
        "peak_mib": peak / 1024,
        "before_mib": before / 1024,
        "full": counts["tokens"] / (len(rows) * ROW_LENGTH),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=float, default=50.0, help="millions")
    parser.add_argument("--kind", choices=("characters", "bpe"), default="bpe")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(part(options.part, options.folder, options.kind)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpus(folder, int(options.tokens * 1e6 * (3.6 if options.kind == "bpe" else 1.0)))
        names = ["tokenizer", "made", "second start", *(["in memory", "compare"] if options.compare else [])]
        for name in names:
            command = [sys.executable, __file__, "--part", name, "--folder", place, "--kind", options.kind]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if "seconds" in found:
                print(
                    f"{name}: {found['tokens'] / 1e6:.1f} M tokens in {found['seconds']:.1f} s, "
                    f"{found['tokens'] / found['seconds'] / 1e6:.2f} M a second; peak {found['peak_mib']:,.0f} MiB "
                    f"({found['before_mib']:,.0f} before), rows {found['full']:.1%} full",
                    flush=True,
                )
            elif found:
                print(f"rows equal to those made in memory: {found['equal']}")


if __name__ == "__main__":
    main()
