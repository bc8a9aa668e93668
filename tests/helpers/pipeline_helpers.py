"""A run of counting stages, in this process or by a driver of its own."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import fake_stages
import psutil

from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import dump_config, parse_config
from fbt_rl.driver.resources import Available

MODEL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "full_attention_interval": 2}


def training(steps=6, every=2, **more):
    return {
        "kind": "pretrain",
        "data": [{"kind": "arithmetic", "size": 50}],
        "steps": steps,
        "batch_rows": 4,
        "row_length": 64,
        "optimizer": {"learning_rate": 1e-3},
        "objective": {"passes": [{"weights": [1]}]},
        "checkpoint_every": every,
        **more,
    }


def make_config(**changes):
    """Two training stages and an evaluation; ``changes`` are dotted keys with ``__`` for the dot."""
    values = {
        "name": "count",
        "model": MODEL,
        "resources": {"workers": 1},
        "stages": {
            "base": training(),
            "tuned": {**training(steps=4), "kind": "sft", "data": {"kind": "arithmetic", "size": 50}},
            "check": {
                "kind": "eval",
                "data": {"kind": "arithmetic", "split": "heldout", "size": 5},
                "max_new_tokens": 8,
            },
        },
    }
    for key, value in changes.items():
        node = values
        *parents, last = key.split("__")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return parse_config(values)


def expected(steps):
    """What a training stage adds up to when no step is lost or repeated."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 1_000_003
    return total


def assert_all_gone(processes, within_s):
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not alive


def starts(run_dir, name):
    """From which steps a stage was started."""
    return [int(line) for line in (RunFolder(run_dir).stage(name).path / "starts.txt").read_text().split()]


class InProcess:
    """Stands for the cluster: one rank, in a thread of this process."""

    started = 0

    def __init__(self, address=None):
        pass

    def __enter__(self):
        type(self).started += 1
        return self

    def __exit__(self, *_):
        pass

    def available(self):
        return Available(cpus=2, gpus=0, where="the test")

    def run(self, function, argument, size, *, max_failures, storage, watch):
        outcome = []

        def call():
            try:
                function(argument)
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while thread.is_alive():
            thread.join(0.02)
            watch()
        watch()
        assert not outcome, "an error that the driver does not see"


def write_report(run_dir):
    page = RunFolder(Path(run_dir)).report_dir / "index.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text("a report")
    return page


DRIVER = """
    import sys
    from pathlib import Path
    import fake_stages, fbt_rl.report, fbt_rl.driver.pipeline, pipeline_helpers
    from fbt_rl import cli
    fbt_rl.report.write_report = pipeline_helpers.write_report
    fbt_rl.driver.pipeline.run.__kwdefaults__["functions"] = fake_stages.FUNCTIONS
    sys.argv = ["fbt-rl", *sys.argv[1:]]
    cli.main()
"""


class Driver:
    """``fbt-rl run`` with counting stages, as a process of its own."""

    def __init__(self, folder, config):
        self.run_dir = folder / "run"
        self.config = folder / "config.yaml"
        self.config.write_text(dump_config(config))
        self.script = folder / "driver.py"
        self.script.write_text(textwrap.dedent(DRIVER))
        self.switches = folder / "switches.json"

    def start(self, *overrides, **switches):
        self.switches.write_text(json.dumps(switches))
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(fake_stages.__file__).parent),
            "FAKE_STAGES": str(self.switches),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, self.script, "run", self.config, "--run-dir", self.run_dir, *overrides]
        return subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
