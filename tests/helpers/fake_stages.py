"""Stages that count instead of training, to drive the pipeline: what they add up tells a repeated or lost step.

Switches for one start lie in the file that ``FAKE_STAGES`` names, as JSON: ``step_s`` (pause in a
step), ``fail_at`` ([stage, step, message]), ``die_at`` ([stage, step]: kill the own process, once).
"""

import json
import os
import shutil
import signal
import time
from pathlib import Path


def switches():
    path = os.environ.get("FAKE_STAGES")
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


def train(stage, context):
    """A chained sum over the steps; a lost, repeated or reordered step changes it."""
    folder, rank = context.folder, int(os.environ.get("RANK", "0"))
    checkpoint = folder.latest_checkpoint()
    start, total = json.loads((checkpoint / "state.json").read_text()) if checkpoint else (0, 0)
    if rank == 0:
        with (folder.path / "starts.txt").open("a") as file:
            file.write(f"{start}\n")
        folder.truncate_metrics(start)
        (folder.path / "source.txt").write_text(str(context.source))
    print(f"{context.name} from step {start}")
    for step in range(start + 1, stage.steps + 1):
        options = switches()
        time.sleep(options.get("step_s", 0))
        total = (total * 31 + step) % 1_000_003
        if options.get("fail_at", [None])[:2] == [context.name, step]:
            raise ValueError(options["fail_at"][2])
        if options.get("die_at") == [context.name, step] and rank == _world_size() - 1:
            once = folder.path / "died"
            if not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        _meet()
        if rank == 0:
            folder.append_metrics({"step": step, "loss": float(total)})
            if step % stage.checkpoint_every == 0:
                _save(folder, step, total)
    if rank == 0:
        folder.model_dir.mkdir(exist_ok=True)
        (folder.model_dir / "config.json").write_text("{}")
    return {"loss": float(total)}


def evaluate(stage, context):
    assert context.source is not None
    assert (context.source / "config.json").is_file()
    return {"modes": {mode: {"accuracy": 0.5} for mode in stage.modes}}


def _save(folder, step, total):
    temporary = folder.checkpoints_dir / ".tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    (temporary / "state.json").write_text(json.dumps([step, total]))
    temporary.rename(folder.checkpoint_dir(step))


def _world_size():
    return int(os.environ.get("WORLD_SIZE", "1"))


def _meet():
    if _world_size() > 1:
        import torch.distributed

        torch.distributed.barrier()


FUNCTIONS = {
    "pretrain": "fake_stages:train",
    "extend": "fake_stages:train",
    "sft": "fake_stages:train",
    "rl": "fake_stages:train",
    "eval": "fake_stages:evaluate",
}
