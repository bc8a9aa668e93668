"""The shipped smoke config through every real stage, on Ray, with a kill on the way."""

import json
import subprocess
import sys
import time

import pipeline_helpers as helpers
import psutil
import pyarrow.parquet as pq
import pytest
from pipeline_helpers import assert_all_gone
from transformers import AutoModelForCausalLM

import fbt_rl.driver.cluster
import fbt_rl.model
from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import load_config
from fbt_rl.driver import pipeline

WAIT_S = 400  # on a busy machine
OF_THE_CLOCK = {"seconds", "tokens_per_second"}


ODD = """
def odd(prompts, completions, completion_ids, **columns):
    return [float(len(ids) % 2) for ids in completion_ids]
"""


def metrics(run_dir, name):
    rows = RunFolder(run_dir).stage(name).read_metrics()
    return [{key: value for key, value in row.items() if key not in OF_THE_CLOCK} for row in rows]


@pytest.mark.timeout(900)
def test_a_run_killed_in_rl_ends_as_an_undisturbed_one_in_one_process(tmp_path, monkeypatch):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    reward = tmp_path / "odd.py"  # so small a model solves nothing: a reward that still tells completions apart
    reward.write_text(ODD)
    overrides = ["resources.workers=1", f"stages.rl.rewards=[{{use: {reward}:odd}}]"]
    command = [sys.executable, "-m", "fbt_rl.cli", "run", "smoke", "--run-dir", str(killed), *overrides]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    rl = RunFolder(killed).stage("rl")
    deadline = time.monotonic() + WAIT_S
    while rl.latest_checkpoint() is None:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    processes = psutil.Process(first.pid).children(recursive=True)
    assert any("ray::" in process.name() for process in processes)
    first.kill()
    first.communicate()
    assert_all_gone(processes, within_s=20)
    assert RunFolder(killed).read_state()["status"] == "running"
    before = {name: RunFolder(killed).stage(name).result_path.stat().st_mtime_ns for name in ("pretrain", "sft")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rl           rl        go on from its checkpoint" in done.stdout
    after = {name: RunFolder(killed).stage(name).result_path.stat().st_mtime_ns for name in before}
    assert after == before

    monkeypatch.setattr(fbt_rl.driver.cluster, "Cluster", helpers.InProcess)
    config = load_config("smoke", overrides)
    pipeline.run(config, whole)
    for name, stage in config.stages.items():
        folders = [RunFolder(run_dir).stage(name) for run_dir in (killed, whole)]
        results = [folder.read_result() for folder in folders]
        assert results[0] == results[1]
        assert metrics(killed, name) == metrics(whole, name)
        if stage.kind == "eval":
            tables = [pq.read_table(folder.generations_path).drop_columns("seconds") for folder in folders]
            assert tables[0].num_rows == 3 * stage.data.size
            assert tables[0].equals(tables[1])
        else:
            assert [row["step"] for row in metrics(killed, name)] == list(range(1, stage.steps + 1))
            AutoModelForCausalLM.from_pretrained(folders[0].model_dir)
    assert all(row["logprob_mismatch_max"] <= 1e-4 for row in metrics(killed, "rl"))
    assert any(row["grad_norm"] > 0 for row in metrics(killed, "rl"))

    report = json.loads((killed / "report" / "report.json").read_text())
    assert [(pair["before"], pair["after"]) for pair in report["comparisons"]] == [("eval_before", "eval_after")] * 3
    assert {pair["mode"] for pair in report["comparisons"]} == {"standard", "soft", "fused"}
    assert (killed / "report" / "index.html").is_file()
