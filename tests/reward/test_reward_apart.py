"""A reward of one's own that does not return: it is ended, its rows are counted and not judged, the work goes on."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from fbt_rl.config import RewardConfig
from reward import RewardError
from reward.apart import RewardTimeout
from reward.commands import score_file
from reward.load import load_limited
from rl.rewards import StageRewards

MINE = """
import asyncio, logging, os, re, signal, subprocess, sys, threading, time
from reward import Verdict

def sleeping():
    time.sleep(600)

def swallowing():
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

def reading():
    subprocess.run(["sleep", "600"])

def backtracking():
    re.fullmatch("(a|aa)+b", "a" * 100)

def foreign():
    import ctypes
    ctypes.PyDLL(None).sleep(600)  # and the interpreter's lock is not given back

async def awaiting(prompts, completions, completion_ids, **columns):
    await asyncio.sleep(600)

def hang(prompts, completions, completion_ids, how="sleeping", **columns):
    return globals()[how]() if "hang" in completions else [1.0] * len(completions)

def beside(prompts, completions, completion_ids, **columns):
    return hang(prompts, completions, completion_ids)
beside.concurrent = True

calls = []
def state(prompts, completions, completion_ids, **columns):
    if "die" in completions:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "exit" in completions:
        os._exit(3)
    calls.append(len(completions))
    return [float(sum(calls))] * len(completions)

def alarmed(prompts, completions, completion_ids, **columns):
    def ring(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, ring)  # in a main thread only
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(600)
    except TimeoutError:
        return [0.5] * len(completions)

def full(prompts, completions, completion_ids, *, answer, group, unit: float = 1, **columns):
    print("on stdout")
    if answer == ["?"]:
        raise KeyError("why")
    verdict = Verdict(True, 0.5, "x", "odd", {"part": 0.25}, {"path": sys.executable, "of": re.compile("a")})
    return [verdict if gold == "7" else None if gold == "8" else float("nan") for gold in answer]
"""
HANGS = ["swallowing", "reading", "backtracking", "foreign"]
LIMIT_S = 0.3


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def errors(verdicts):
    return [verdict.error for verdict in verdicts]


def test_whatever_hangs_is_ended_and_the_next_call_is_served(file, caplog):
    for how in HANGS:
        reward = load_limited(f"{file}:hang", {"how": how}, LIMIT_S)
        hung = reward.verdicts(["p"] * 3, ["a", "hang", "b"])
        assert [(verdict.score, verdict.correct) for verdict in hung] == [(None, None)] * 3
        assert errors(hung) == ["timed_out"] * 3
        assert reward(["p"] * 2, ["a", "b"]) == [1.0, 1.0]
    assert caplog.text.count("has not returned within 0.3 s: 3 completions are not judged") == len(HANGS)
    assert errors(load_limited(f"{file}:awaiting", None, LIMIT_S).verdicts(["p"], ["c"])) == ["timed_out"]
    del reward
    gc.collect()
    mine = [child for child in psutil.Process().children() if "reward.apart" in " ".join(child.cmdline())]
    assert mine == []


def test_a_reward_that_never_returns_ends_the_work_with_one_sentence(file):
    reward = load_limited(f"{file}:hang", None, LIMIT_S)
    for _ in range(2):
        assert [reward(["p"], ["hang"]), reward(["p"], ["hang"]), reward(["p"], ["a"])] == [[None], [None], [1.0]]
    assert [reward(["p"], ["hang"]), reward(["p"], ["hang"])] == [[None], [None]]
    with pytest.raises(RewardTimeout, match=r"mine.py:hang' has not returned within 0.3 s, 3 times in a row: mend"):
        reward(["p"], ["hang"])
    with pytest.raises(RewardTimeout, match=r"has not returned within 0.3 s; it was tried on 4 rows") as told:
        reward.dry_call([{"prompt": "p", "completion": "hang"}])
    assert told.value.key == "time_limit_s"


def test_it_keeps_its_state_and_one_that_ends_its_process_is_replaced(file):
    reward = load_limited(f"{file}:state")
    assert [reward(["p"] * 2, ["a", "b"]), reward(["p"], ["c"])] == [[2.0, 2.0], [3.0]]
    assert errors(reward.verdicts(["p"], ["die"])) == errors(reward.verdicts(["p"], ["exit"])) == ["grader"]
    assert reward(["p"], ["c"]) == [1.0]
    for _ in range(2):
        reward(["p"], ["die"])
    with pytest.raises(RewardError, match=r"mine.py:state' ended its process \(signal 11\), 3 times in a row"):
        reward(["p"], ["die"])
    with pytest.raises(RewardError, match=r"ended its process \(exit code 3\); it was tried on 4 rows"):
        reward.dry_call([{"prompt": "p", "completion": "exit"}])


def test_the_contract_holds_there_too(file, caplog, capfd):
    assert load_limited(f"{file}:alarmed")(["p"], ["c"]) == [0.5]
    reward = load_limited(f"{file}:full", {"unit": 2})
    assert (reward.group_aware, sorted(reward.needs), reward.concurrent) == (True, ["answer"], False)
    first, second, third = reward.verdicts(["p"] * 3, ["c"] * 3, answer=["7", "8", "9"])
    assert (first.correct, first.score, first.extracted, first.error, first.terms) == (
        True,
        0.5,
        "x",
        "odd",
        {"part": 0.25},
    )
    assert first.metadata == {"path": sys.executable, "of": "re.compile('a')"}
    assert (second.error, third.error) == (None, "not_finite")
    assert errors(reward.verdicts(["p"], ["c"], answer=["?"])) == ["raised"]
    assert "mine.py:full' raised on 1 of 1 completions" in caplog.text
    assert "KeyError: 'why'" in caplog.text
    assert "on stdout" in capfd.readouterr().out
    with pytest.raises(RewardError, match="needs the column answer"):
        reward(["p"], ["c"])
    with pytest.raises(RewardError, match=r"args|unit") as told:
        load_limited(f"{file}:full", {"unit": "2"})
    assert told.value.key == "args.unit"


def test_the_limit_is_for_rewards_of_ones_own(file):
    assert load_limited(f"{file}:hang").time_limit_s == 60.0
    assert type(load_limited("math")).__name__ == "Reward"
    with pytest.raises(RewardError, match="'math' limits the work on each row by its args") as told:
        load_limited("math", None, 5.0)
    assert told.value.key == "time_limit_s"


def test_from_many_threads_each_gets_its_own_answer(file):
    reward, found = load_limited(f"{file}:full"), {}

    def call(number):
        found[number] = reward(["p"] * number, ["c"] * number, answer=["7"] * number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [0.5] * number for number in range(1, 9)}


@pytest.mark.parametrize("name", ["hang", "beside"])
def test_in_rl_such_a_rollout_has_no_reward_and_is_counted(file, name):
    config = [RewardConfig(), RewardConfig(use=f"{file}:{name}", time_limit_s=LIMIT_S)]
    rewards = StageRewards(config, None, group_size=2)
    given = {"prompts": ["p"] * 4, "completion_ids": [[1]] * 4, "answer": ["7"] * 4}
    texts = ["\\boxed{7}", "hang", "\\boxed{7}", "\\boxed{8}"]
    groups = [{key: values[at : at + 2] for key, values in (given | {"completions": texts}).items()} for at in (0, 2)]
    asked = [rewards.ask(**group) for group in groups]
    judged = rewards(**given, completions=texts, truncated=[False] * 4, asked=asked)
    hung = [True, True, name == "hang", name == "hang"]  # of one call: the batch, or the group
    assert ["timed_out" in judgement.errors for judgement in judged] == hung
    assert [judgement.reward != judgement.reward for judgement in judged] == hung
    assert [judgement.correct for judgement in judged] == [1.0, 0.0, 1.0, 0.0]


def test_scoring_a_file_goes_on(file, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"completion": "a"}\n{"completion": "hang"}\n{"completion": "b"}\n')
    reward = load_limited(f"{file}:hang", None, LIMIT_S)
    scored = score_file(reward, tmp_path / "rows.jsonl", tmp_path / "out.jsonl")
    assert (scored.rows, scored.errors["timed_out"]) == (3, 3)


def check(*arguments, module="fbt_rl.cli"):
    command = [sys.executable, "-m", module, *(["reward"] if module == "fbt_rl.cli" else []), "check", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_check_says_what_it_does_and_ends_at_the_limit(file):
    for module in ("fbt_rl.cli", "reward"):
        with check(f"{file}:awaiting", "--time-limit", "0.5", module=module) as process:
            out, err = process.communicate(timeout=120)
        trying, error = err.splitlines()
        assert (process.returncode, out) == (1, "")
        assert trying == f"trying '{file}:awaiting' on 4 rows, limit 0.5 s"
        assert error.startswith(
            f"error: reward '{file}:awaiting' has not returned within 0.5 s; it was tried on 4 rows"
        )


def test_a_check_that_is_stopped_says_so_and_leaves_nothing_behind(file):
    with check(f"{file}:awaiting") as process:
        assert process.stderr.readline() == f"trying '{file}:awaiting' on 4 rows, limit 60 s\n"
        there = []
        while not there:
            there = psutil.Process(process.pid).children()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "stopped; nothing was changed\n")
    assert psutil.wait_procs(there, timeout=30)[1] == []


def test_nothing_is_left_of_a_process_that_was_killed(file):
    program = f"from reward.load import load_limited\nr = load_limited({f'{file}:state'!r})\nr(['p'], ['c'])\ninput()"
    command = [sys.executable, "-c", f"{program}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        there = []
        while not there:
            there = psutil.Process(process.pid).children()
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert psutil.wait_procs(there, timeout=30)[1] == []
