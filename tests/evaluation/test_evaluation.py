"""Evaluating a tiny random model: equal results however the work is cut, resume, modes, bad input."""

import hashlib
import json
import multiprocessing
import re
import socket
import threading
import time
from collections import Counter
from itertools import chain, count

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from fbt_rl.analysis.compare import compare
from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import SCHEMA, of_mode
from fbt_rl.artifacts import RunFolder, StageContext
from fbt_rl.config import ArithmeticData, FileData, ModelConfig, TokenizerConfig
from fbt_rl.config.file import ConfigError, load_config
from fbt_rl.data.tasks import content_hash, encode_prompt, load_problems, prompt_text
from fbt_rl.data.tokenization import build_tokenizer, load_tokenizer
from fbt_rl.decoding import Completion, SamplingParams, decode
from fbt_rl.evaluation import answering, evaluate
from fbt_rl.evaluation.evaluate import evaluate_model, run
from fbt_rl.model import FBTForCausalLM, load_model
from fbt_rl.model.configuration import from_model_config
from reward.base import Reward, Verdict

MODES = ("standard", "soft", "fused")
SETTINGS = {"max_new_tokens": 12, "temperature": 1.0, "samples": 2, "seed": 3}


@pytest.fixture(scope="module")
def problems():
    return load_problems(ArithmeticData(size=20, split="heldout"), seed=0)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TokenizerConfig(), ["1+2"])


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_folder(tokenizer, tmp_path_factory):
    torch.manual_seed(0)
    shape = ModelConfig.model_validate({"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2})
    config = from_model_config(
        shape, len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    return save(FBTForCausalLM(config), tokenizer, tmp_path_factory.mktemp("fbt"))


@pytest.fixture(scope="module")
def foreign_folder(tokenizer, tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        eos_token_id=tokenizer.eos_token_id,
    )
    return save(AutoModelForCausalLM.from_config(config), tokenizer, tmp_path_factory.mktemp("llama"))


def answers(*given, **options):
    """What an evaluation gives, but for the time it took."""
    return evaluate_model(*given, **options).drop_columns("seconds")


@pytest.fixture(scope="module")
def table(model_folder, problems):
    return answers(model_folder, problems, MODES, **SETTINGS)


def test_rows_are_what_decoding_gives(model_folder, problems, table):
    assert table.schema.equals(SCHEMA.remove(SCHEMA.get_field_index("seconds")))
    expected = [(problem, mode, sample) for mode in MODES for problem in problems["problem_id"] for sample in range(2)]
    given = [table[name].to_pylist() for name in ("problem_id", "mode", "sample")]
    assert list(zip(*given, strict=True)) == expected
    assert set(table["seed"].to_pylist()) == {3}
    model, tokenizer = load_model(model_folder), load_tokenizer(model_folder)
    for mode in MODES:
        row = table.filter(pc.field("mode") == mode).to_pylist()[2 * 7 + 1]  # problem 7, sample 1
        params = SamplingParams(max_new_tokens=12, mode=mode, eos_token_ids=(tokenizer.eos_token_id,))
        prompt = encode_prompt(tokenizer, problems[7]["prompt"])
        [alone] = decode(model, [prompt], params, seed=3, row_keys=[7 * 65_536 + 1])
        assert row["completion"] == tokenizer.decode(alone.token_ids, skip_special_tokens=True)
        assert (row["num_tokens"], row["finish_reason"]) == (len(alone.token_ids), alone.finish_reason)
        assert (row["prompt"], row["answer"]) == (problems[7]["prompt"], problems[7]["answer"])
        exact = prompt_text(tokenizer, problems[7]["prompt"])
        assert row["prompt_hash"] == hashlib.sha256(exact.encode()).hexdigest()[:16]
        assert row["level"] == str(len(re.findall("[0-9]", problems[7]["prompt"])))


def test_modes_and_samples_differ(table):
    texts = Counter(table["completion"].to_pylist())
    assert len(texts) > 60  # of 120 answers of a random model


@pytest.mark.parametrize("batch_size", [3, 40])
def test_batch_size_changes_nothing(model_folder, problems, table, batch_size):
    assert answers(model_folder, problems, MODES, batch_size=batch_size, **SETTINGS).equals(table)


def test_more_samples_keep_the_first_ones(model_folder, problems, table):
    more = answers(model_folder, problems, ["soft"], **{**SETTINGS, "samples": 3})
    first = more.filter(pc.field("sample") < 2)
    assert first.equals(table.filter(pc.field("mode") == "soft"))


def _evaluate_on_rank(rank, port, model_folder, problems, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        table = evaluate_model(model_folder, problems, MODES, **SETTINGS, folder=folder)
    finally:
        torch.distributed.destroy_process_group()
    pq.write_table(table, folder / f"rank-{rank}.parquet")


def test_two_ranks_share_the_problems(model_folder, problems, table, tmp_path, free_port):
    # Both in processes of their own: this one may hold the process group of a test that trained in it.
    spawn = multiprocessing.get_context("spawn")
    arguments = (free_port, model_folder, problems, tmp_path)
    ranks = [spawn.Process(target=_evaluate_on_rank, args=(rank, *arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(400)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    for rank in range(2):
        assert pq.read_table(tmp_path / f"rank-{rank}.parquet").drop_columns("seconds").equals(table)
    assert not list(tmp_path.glob("shards-*"))


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class KilledError(Exception):
    pass


@pytest.fixture
def decoded(monkeypatch):
    """Counts how often each (mode, prompt) is decoded; ``limit`` calls are let through."""
    counts = Counter()
    state = {"calls": 0, "limit": None}

    def counting(model, prompts, params, **options):
        if state["calls"] == state["limit"]:
            raise KilledError
        state["calls"] += 1
        counts.update((params.mode, tuple(prompt)) for prompt in prompts)
        return decode(model, prompts, params, **options)

    monkeypatch.setattr(answering, "decode", counting)
    return counts, state


def test_resume_repeats_no_answer(model_folder, problems, table, tmp_path, decoded):
    counts, state = decoded
    state["limit"] = 6  # 5 batches of 4 problems are a mode: killed after one batch of soft
    with pytest.raises(KilledError):
        evaluate_model(model_folder, problems, MODES, batch_size=8, folder=tmp_path, **SETTINGS)
    assert Counter(mode for mode, _ in counts) == {"standard": 20, "soft": 4}
    assert not (tmp_path / "generations.parquet").exists()
    state["limit"] = None
    resumed = answers(model_folder, problems, MODES, batch_size=12, folder=tmp_path, **SETTINGS)
    assert resumed.equals(table)
    assert pq.read_table(tmp_path / "generations.parquet").drop_columns("seconds").equals(table)
    assert len(counts) == 60
    assert set(counts.values()) == {1}
    # Complete, but killed before its result was written: nothing is decoded again.
    assert answers(model_folder, problems, MODES, folder=tmp_path, **SETTINGS).equals(table)
    assert set(counts.values()) == {1}


def test_answers_of_other_settings_are_not_taken_over(model_folder, problems, tmp_path, decoded):
    counts, state = decoded
    state["limit"] = 1
    with pytest.raises(KilledError):
        evaluate_model(model_folder, problems, ["soft"], batch_size=8, folder=tmp_path, **SETTINGS)
    state["limit"] = None
    other = {**SETTINGS, "seed": 4}
    table = answers(model_folder, problems, ["soft"], folder=tmp_path, **other)
    assert table.equals(answers(model_folder, problems, ["soft"], **other))
    assert len(counts) == 20


def test_verdicts_reach_the_rows_and_truncated_is_wrong(model_folder, problems):
    golds = dict(zip(problems["problem_id"], problems["answer"], strict=True))

    def judge(prompts, completions, completion_ids, **columns):
        assert columns["answer"] == [golds[name] for name in columns["problem_id"]]
        return [Verdict(True, 1.0, "x", "odd"), Verdict(None, None, error="broken")] * (len(completions) // 2)

    rows = evaluate_model(model_folder, problems, ["standard"], reward=Reward("judge", judge), **SETTINGS).to_pylist()
    finished = [row for row in rows if row["finish_reason"] == "stop"]
    cut = [row for row in rows if row["finish_reason"] == "length"]
    assert finished
    assert cut
    assert {row["correct"] for row in cut} == {False}
    assert {row["num_tokens"] for row in cut} == {12}
    assert {row["correct"] for row in finished} == {True, None}
    assert {row["error"] for row in rows} == {"odd", "broken"}


@pytest.fixture
def writes(monkeypatch):
    """Lets the model write given texts, one a problem, in two seconds; each ended, but for those that end in "..."."""

    def let(texts):
        tokenizer = build_tokenizer(TokenizerConfig(), ["".join(texts)])

        def written(model, prompts, params, **options):
            ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
            reasons = ["length" if text.endswith("...") else "stop" for text in texts]
            ended = [[*row, *[tokenizer.eos_token_id] * (why == "stop")] for row, why in zip(ids, reasons, strict=True)]
            rows = enumerate(zip(ended, reasons, strict=True))
            return [Completion(place, 0, row, torch.zeros(0), None, why) for place, (row, why) in rows]

        monkeypatch.setattr(answering, "decode", written)
        monkeypatch.setattr(evaluate, "load_tokenizer", lambda folder: tokenizer)
        monkeypatch.setattr(answering.time, "perf_counter", chain([1.0, 3.0], count(4.0)).__next__)

    return let


def test_tokens_of_reasoning_and_answer_and_the_time_taken(model_folder, problems, writes):
    texts = ["1+1=2</think>so 2", "12 \\boxed{2}", "no answer", ""]
    writes(texts)
    rows = evaluate_model(model_folder, problems.select(range(4)), ["standard"], max_new_tokens=20).to_pylist()
    by_text = {row["completion"]: row for row in rows}
    assert by_text.keys() == set(texts)
    splits = [tuple(by_text[text][f"{part}_tokens"] for part in ("num", "reasoning", "answer")) for text in texts]
    # With the end token, which belongs to the answer where there is one.
    assert splits == [(18, 13, 5), (13, 3, 10), (10, 10, 0), (1, 1, 0)]
    assert by_text[""]["error"] == "no_answer"
    assert {row["seconds"] for row in rows} == {0.5}


def test_an_answer_ends_before_a_stop_text(model_folder, problems, writes):
    texts = ["\\boxed{2}#7\\boxed{3}", "\\boxed{2}", "\\boxed{2}#...", "\\boxed{2}..."]
    writes(texts)
    four = problems.select(range(4)).map(lambda row: {**row, "answer": "2"})
    rows = evaluate_model(model_folder, four, ["standard"], max_new_tokens=20, stop=["7", "#", "##"]).to_pylist()
    found = [(row["completion"], row["num_tokens"], row["finish_reason"], row["correct"]) for row in rows]
    box = "\\boxed{2}"
    assert sorted(found) == [
        (box, 9, "stop", True),
        (box, 9, "stop", True),
        (box, 10, "stop", True),  # with its end token
        (box + "...", 12, "length", False),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_decoding_ends_soon_after_a_stop_text(model_folder, problems, monkeypatch, mode):
    def asked(whole):
        with monkeypatch.context() as patch:
            written = []

            def kept(*args, **options):
                written.extend(decode(*args, **(options | ({"stopped": None} if whole else {}))))
                return written[-len(args[1]) * args[2].num_samples :]

            patch.setattr(answering, "decode", kept)
            settings = {**SETTINGS, "max_new_tokens": 60, "stop": ["7", "23", "+"]}
            return answers(model_folder, problems, [mode], **settings), sum(len(row.token_ids) for row in written)

    (ended, few), (cut, many) = asked(whole=False), asked(whole=True)
    assert ended.equals(cut)
    assert "stop" in ended["finish_reason"].to_pylist()
    assert few < 0.7 * many


def test_a_batch_is_graded_while_the_next_one_is_decoded(model_folder, problems):
    threads, decoding = [], threading.get_ident()

    def judge(prompts, completions, completion_ids, **columns):
        threads.append((threading.get_ident(), len(completions)))
        return [1.0] * len(completions)

    for concurrent in (True, False):
        threads.clear()
        reward = Reward("judge", judge, concurrent=concurrent)
        rows = evaluate_model(model_folder, problems, ["soft"], reward=reward, batch_size=8, **SETTINGS)
        assert [count for _, count in threads] == [8] * 5
        assert {thread == decoding for thread, _ in threads} == {not concurrent}
        assert len(rows) == 40


def test_what_is_decoded_is_graded_and_kept_when_the_next_batch_fails(model_folder, problems, tmp_path, monkeypatch):
    calls = []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return decode(*args, **options)

    def slow(prompts, completions, completion_ids, **columns):
        time.sleep(0.2)
        return [1.0] * len(completions)

    monkeypatch.setattr(answering, "decode", failing)
    settings = {**SETTINGS, "reward": Reward("slow", slow, concurrent=True), "batch_size": 8, "folder": tmp_path}
    with pytest.raises(RuntimeError, match="out of memory"):
        evaluate_model(model_folder, problems, ["soft"], **settings)
    evaluate_model(model_folder, problems, ["soft"], **settings)
    assert [len(args[1]) for args in calls] == [4] * 6  # two batches, one in vain, and the three that were left


@pytest.mark.parametrize("chat", [True, False])
def test_prompts_of_one_token_unicode_and_too_long_ones(model_folder, tmp_path, chat):
    rows = [{"q": "1", "a": "1"}, {"q": "é\u202e😀", "a": "2"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = FileData(paths=[str(tmp_path / "rows.jsonl")], prompt="q", answer="a")
    table = evaluate_model(model_folder, load_problems(data, 0), ["fused"], max_new_tokens=4, chat=chat)
    assert table["prompt"].to_pylist() == [row["q"] for row in rows]
    assert all(1 <= count <= 4 for count in table["num_tokens"].to_pylist())
    long = FileData(paths=data.paths, prompt="q", answer="a", template="{prompt} " + "7" * 130)
    with pytest.raises(ValueError, match=r"problem 'rows-2' has a prompt of 13\d tokens"):
        evaluate_model(model_folder, load_problems(long, 0), ["standard"], max_new_tokens=4, chat=chat)


def test_a_model_without_feedback_is_evaluated_in_standard_mode_and_compared(foreign_folder, problems, table):
    rows = evaluate_model(foreign_folder, problems, ["standard"], max_new_tokens=8)
    assert len(rows) == 20
    entry = compare(rows, of_mode(table, "soft"), before_name="llama", after_name="fbt", mode="standard → soft")
    assert (entry["n"], entry["left_out_problems"]) == (20, 0)
    with pytest.raises(ValueError, match=r"modes soft, fused need a model with latent feedback; the one in "):
        evaluate_model(foreign_folder, problems, MODES, max_new_tokens=8)


def test_bad_input(model_folder, problems, tmp_path):
    with pytest.raises(ValueError, match=r"has a prompt of \d+ tokens; with max_new_tokens 500 .* context of 128"):
        evaluate_model(model_folder, problems, ["soft"], max_new_tokens=500)
    with pytest.raises(ValueError, match="samples is 0"):
        evaluate_model(model_folder, problems, ["soft"], max_new_tokens=5, samples=0)
    with pytest.raises(ValueError, match="no problems"):
        evaluate_model(model_folder, problems.select([]), ["soft"], max_new_tokens=5)
    with pytest.raises(ValueError, match="not a model folder"):
        evaluate_model(tmp_path, problems, ["soft"], max_new_tokens=5)


def test_the_stage(model_folder, tmp_path):
    config = load_config("tiny", ["stages.eval_before.data.size=20", "stages.eval_before.max_new_tokens=12", "seed=9"])
    stage = config.stages["eval_before"]
    folder = RunFolder(tmp_path).stage("eval_before")
    result = run(stage, StageContext(config, "eval_before", folder, model_folder))
    assert json.loads(json.dumps(result["modes"])) == summarise(pq.read_table(folder.generations_path))
    assert result["data_sha256"] == content_hash(load_problems(stage.data, 9))
    assert list(result["modes"]) == list(MODES)
    assert {mode["n"] for mode in result["modes"].values()} == {20}
    # Another stage's evaluation of the same weights draws the same: the comparison is paired.
    again = RunFolder(tmp_path).stage("eval_after")
    assert run(stage, StageContext(config, "eval_after", again, model_folder)) == result
    tables = [pq.read_table(one.generations_path).drop_columns("seconds") for one in (folder, again)]
    assert tables[0].equals(tables[1])
    with pytest.raises(ConfigError, match=r"stages\.eval_before evaluates a model"):
        run(stage, StageContext(config, "eval_before", folder, None))
