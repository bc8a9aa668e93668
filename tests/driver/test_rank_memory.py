"""A rank killed for memory: what it noted, and the one sentence that is made of it. With real Ray: test_cluster.py."""

import dataclasses
import os
import re
import socket

import pytest
from pipeline_helpers import make_config, training
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from fbt_rl.config.file import load_config
from fbt_rl.driver import rank_memory
from fbt_rl.driver.cluster import explain
from fbt_rl.driver.rank_memory import GIB, RankMemory, noted, probably_for_memory, ran_out, read_notes, to_lower

NOTES = {
    rank: RankMemory(rank, "gpu-1", 700 + rank, peak, 18 * GIB, 24 * GIB, None)
    for rank, peak in enumerate((GIB, 5 * GIB, 2 * GIB))
}
# As Ray 2.60 writes it, shortened.
DUMP = """3 worker(s) were killed due to the node running low on memory. Memory on the node \
(IP: 192.0.2.2, ID: 70ec) was 22.85GB used / 23.54GB limit (0.97)
OOM kill reason: Memory usage 6281031680B exceeded threshold of 6258382848B (24.8% of 25276182528B limit)
Object store memory usage: [- objects spillable: 1
Ray killed 3 worker(s) based on the killing policy
Selected to kill: (Actor(18): required resources={}, pid=700, actual memory used=0.33GB)
Selected to kill: (Actor(19): required resources={}, pid=702, actual memory used=6.50GB)
Selected to kill: (Actor(20): required resources={}, pid=999, actual memory used=9.00GB)
Top 10 memory users: PID	MEM(GB)	COMMAND
"""


def lost(cause):
    return WorkerHealthCheckFailedError("A worker health check failed.\nWorker info: Worker(\n", cause)


def told(error, notes=NOTES, max_failures=1):
    text = explain(error, notes, max_failures, lambda: "lower a.b (now 4)")
    assert "\n" not in text
    return text


@pytest.mark.parametrize("wrap", [OutOfMemoryError, lambda dump: ControllerError(OutOfMemoryError(dump))])
def test_rays_monitor_killed_the_controller_too(wrap):
    assert told(wrap(DUMP)) == (
        "rank 2 was killed for memory by Ray's monitor: it had 6.50 GiB at its peak, when its node held 22.85 of "
        "23.54 GiB; to need less, lower a.b (now 4)"
    )
    assert told(wrap(DUMP), {}) == (
        "Ray's memory monitor ended the worker group, whose node held 22.85 of 23.54 GiB; to need less, "
        "lower a.b (now 4)"
    )
    assert "whose node held too much" in told(wrap("other words"))


def test_rays_monitor_killed_ranks():
    error = WorkerGroupError("forty\nlines", {0: lost(OutOfMemoryError("no figures")), 1: lost(OutOfMemoryError(""))})
    assert told(error).startswith("rank 1 was killed for memory by Ray's monitor: it had 5.00 GiB at its peak")


def test_a_rank_gone_without_a_word():
    error = WorkerGroupError("forty\nlines", {2: lost(ActorDiedError()), 0: ValueError("a\nconsequence")})
    assert told(error) == (
        "rank 2 ended without an error, as by signal 9 (SIGKILL) from outside: it had 2.00 GiB at its peak, when its "
        "node held 18.00 of 24.00 GiB; resources.max_failures 1 is used up"
    )
    full = {rank: dataclasses.replace(note, node_used=23 * GIB, node=f"gpu-{rank}") for rank, note in NOTES.items()}
    assert told(error, full, 0) == (
        "rank 2 on node gpu-2 was killed by signal 9, probably for memory: it had 2.00 GiB at its peak, when its node "
        "held 23.00 of 24.00 GiB; to need less, lower a.b (now 4); resources.max_failures 0 is used up"
    )
    assert told(error, {}).startswith("rank 2 ended without an error, as by signal 9")


def test_other_failures_are_one_line_too():
    assert told(WorkerGroupError("", {1: ValueError("first\nsecond")})).startswith("rank 1: ValueError: first; ")
    assert told(RuntimeError("\n\n  no port\nmore")) == "the worker group could not be run: no port"
    assert told(RuntimeError("")) == "the worker group could not be run: RuntimeError"


def test_the_kernels_count_tells(monkeypatch):
    here = dataclasses.replace(NOTES[0], node=socket.gethostname(), kernel_kills=3)
    for count, expected in ((3, False), (4, True), (None, False)):
        monkeypatch.setattr(rank_memory, "kernel_kills", lambda count=count: count)
        assert probably_for_memory(here) is expected
        assert not probably_for_memory(dataclasses.replace(here, node="elsewhere"))


def test_a_rank_notes_its_peak(tmp_path):
    with noted(tmp_path / "notes", 3):
        before = read_notes(tmp_path / "notes")[3]
        held = bytearray(b"x") * (before.peak // 2)
        for _ in range(600):
            if (note := read_notes(tmp_path / "notes")[3]).peak > before.peak + len(held) // 2:
                break
            rank_memory.threading.Event().wait(0.05)
    assert note.peak > before.peak + len(held) // 2
    assert (note.node, note.pid) == (socket.gethostname(), os.getpid())
    assert 0 < note.node_used <= note.node_total
    assert read_notes(tmp_path / "none") == {}


def test_what_to_lower_is_named_by_its_key():
    def keys(stage, workers=2):
        text = to_lower(stage, workers, lambda key: f"stages.s.{key}", "resources.workers")
        return re.findall(r"(?:stages\.s|resources)\.(\w+)(?: \(now (\d+)\)| to (\w+))", text)

    stages = load_config("tiny").stages
    by_kind = {stage.kind: [key for key, *_ in keys(stage)] for stage in stages.values()}
    rows = ["micro_batch_rows", "row_length", "workers", "gradient_checkpointing", "pass_activations"]
    assert by_kind["pretrain"] == by_kind["extend"] == by_kind["sft"] == rows
    assert by_kind["rl"] == [
        "micro_batch_rows", "prompts_per_step", "max_new_tokens", "workers", "gradient_checkpointing", "latents"
    ]  # fmt: skip
    assert by_kind["eval"] == ["batch_size", "max_new_tokens", "workers"]
    # What is lowered already is not named, nor passes of which there is one.
    thrifty = training(gradient_checkpointing=True, micro_batch_rows=1)
    assert keys(make_config(stages__base=thrifty).stages["base"], 1) == [("row_length", "64", "")]
    assert keys(make_config(stages__base=training(batch_rows=10)).stages["base"], 4)[0] == ("micro_batch_rows", "3", "")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
            True,
        ),
        ("MemoryError: ", True),
        ("ValueError: loss is not finite", False),
    ],
)
def test_errors_about_memory_are_known(message, expected):
    assert ran_out(f"rank 0: {message}") is expected
