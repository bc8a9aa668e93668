"""The model ``fbt`` of lm-eval: scores and answers by hand, one row at a time, and a local task through the harness."""

import json
from functools import cache

import pytest
import torch
from model_helpers import small_model
from transformers import LlamaConfig, LlamaForCausalLM

from fbt_rl.analysis.table import before_stop
from fbt_rl.config import TokenizerConfig
from fbt_rl.data.tokenization import build_tokenizer
from fbt_rl.decoding import SamplingParams, decode
from fbt_rl.model import load_model

pytest.importorskip("lm_eval", reason="lm-eval is not installed (extra lm-eval)")
torch.set_num_threads(1)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.evaluator import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from fbt_rl.evaluation.lm_eval import FBTHarness  # noqa: E402

CONTEXT = 64
WAYS = [("standard", None, 1), ("soft", None, 1), ("soft", 3, 3), ("fused", None, 2)]  # mode, prefill_passes, passes
CONTEXTS = ["3+4=", "1", "9-2+5+1-8=", "", "12+" * 30, "7+7= "]  # ragged, empty, too long, a space at the end


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TokenizerConfig(), [])


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fbt")
    model = small_model(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def harness(folder):
    """``harness(mode, prefill_passes)``, each loaded once."""
    settings = {"batch_size": 4, "seed": 5, "max_gen_toks": 12}
    return cache(lambda mode="standard", given=None: FBTHarness(str(folder), mode, given, **settings))


def requests(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


@torch.no_grad()
def by_hand(model, ids, count, passes):
    """Log-likelihood of the last ``count`` of ``ids`` in one row, and whether each of them is the likeliest."""
    log_probs = model(input_ids=torch.tensor([ids[:-1]]), num_passes=passes).logits[0, -count:].log_softmax(-1)
    wanted = torch.tensor(ids[-count:])
    return log_probs.gather(-1, wanted[:, None]).sum().item(), log_probs.argmax(-1).tolist() == wanted.tolist()


@pytest.mark.parametrize(("mode", "given", "passes"), WAYS)
def test_loglikelihoods_are_those_of_the_passes(harness, model, tokenizer, mode, given, passes):
    pairs, expected = [], []
    for context in CONTEXTS:
        ids = tokenizer.encode(context) or [tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[-CONTEXT:]]), num_passes=passes).logits
        likeliest = [tokenizer.decode(logits[0, -1].argmax())] if context else []  # an end alone would be the context
        for continuation in [*likeliest, "5", "12+4"]:
            whole = ids + tokenizer.encode(continuation)
            count = len(whole) - len(ids) + (len(context) - len(context.rstrip()))  # such a space is scored as well
            pairs.append((context, continuation))
            expected.append(by_hand(model, whole[-CONTEXT - 1 :], count, passes))
    scored = harness(mode, given).loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)
    assert [score for score, _ in scored] == pytest.approx([score for score, _ in expected], abs=2e-4)
    assert [greedy for _, greedy in scored] == [greedy for _, greedy in expected]
    assert {greedy for _, greedy in scored} == {True, False}


def test_more_passes_are_seen_and_a_single_one_is_plain(harness):
    request = requests("loglikelihood", [("9-2+5+1-8=", "5, 12")])
    scores = {way[:2]: harness(*way[:2]).loglikelihood(request, disable_tqdm=True)[0][0] for way in WAYS}
    assert scores["standard", None] == scores["soft", None]
    assert len({round(score, 2) for score in scores.values()}) == 3


@pytest.mark.parametrize(("mode", "given", "passes"), WAYS[::2])
def test_rolling_scores_each_token_once_in_full_windows(harness, model, tokenizer, mode, given, passes):
    texts = ["31+2-" * 30, "1+1", ""]
    ids = [tokenizer.eos_token_id, *tokenizer.encode(texts[0])]  # of 151 tokens the first is given
    parts = [(ids[:65], 64), (ids[64:129], 64), (ids[86:151], 22)]
    short = [tokenizer.eos_token_id, *tokenizer.encode(texts[1])]
    expected = [sum(by_hand(model, *part, passes)[0] for part in parts), by_hand(model, short, 3, passes)[0], 0]
    asked = requests("loglikelihood_rolling", [(text,) for text in texts])
    assert harness(mode, given).loglikelihood_rolling(asked, disable_tqdm=True) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("mode", "given", "passes"), WAYS)
def test_generation_is_that_of_the_decoder(harness, model, tokenizer, mode, given, passes):
    prompts = [tokenizer.encode(context)[-CONTEXT + 12 :] or [tokenizer.eos_token_id] for context in CONTEXTS]
    ways = {
        "greedy": ({"until": []}, {"temperature": 0.0}),
        "sampled": ({"do_sample": True, "temperature": 1.5, "top_k": 9}, {"temperature": 1.5, "top_k": 9}),
        "stopped": ({"until": ["1", "7", "}", "<|user|>"], "temperature": 1.5}, {"temperature": 1.5}),
    }
    asked, expected = [], []
    for name, (settings, sampling) in ways.items():
        ends = (tokenizer.eos_token_id,) + ((tokenizer.convert_tokens_to_ids("<|user|>"),) if name == "stopped" else ())
        params = SamplingParams(max_new_tokens=12, mode=mode, prefill_passes=passes, eos_token_ids=ends, **sampling)
        keys = range(len(asked), len(asked) + len(prompts))
        done = decode(model, prompts, params, seed=5, row_keys=keys)
        written = tokenizer.batch_decode([one.token_ids for one in done], skip_special_tokens=True)
        texts = [before_stop(text, settings.get("until", [])) for text in written]
        assert (texts != written) == (name == "stopped")
        asked += [(context, settings) for context in CONTEXTS]
        expected += texts
    assert harness(mode, given).generate_until(requests("generate_until", asked), disable_tqdm=True) == expected
    assert len(set(expected)) > len(CONTEXTS)


def test_a_special_stop_text_ends_an_answer(folder, model, tokenizer):
    """It is not in the decoded text, so it has to be seen among the tokens."""
    prompt = tokenizer.encode("3+4=")
    for seed in range(20):  # until one is sampled
        params = SamplingParams(max_new_tokens=30, temperature=2.0, eos_token_ids=(tokenizer.eos_token_id,))
        (free,) = decode(model, [prompt], params, seed=seed)
        special = [index for index in free.token_ids if index in tokenizer.all_special_ids][:1]
        if special and special[0] != tokenizer.eos_token_id:
            break
    else:
        pytest.fail("no special token in 20 answers")
    settings = {"until": [tokenizer.decode(special)], "temperature": 2.0, "max_gen_toks": 30}
    harness = FBTHarness(str(folder), seed=seed)
    (text,) = harness.generate_until(requests("generate_until", [("3+4=", settings)]), disable_tqdm=True)
    assert text == tokenizer.decode(free.token_ids[: free.token_ids.index(special[0])])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "standard", "prefill_passes": 3}, "takes exactly 1"),
        ({"mode": "fused", "prefill_passes": 1}, "at least 2"),
        ({"mode": "latent"}, "unknown decode mode"),
        ({"batch_size": "auto"}, "batch_size is 'auto'"),
    ],
)
def test_bad_arguments_are_refused(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        FBTHarness(str(folder), **arguments)


def test_a_model_without_feedback_runs_in_standard_mode_only(tokenizer, tmp_path):
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, **shape)).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="needs latent feedback"):
        FBTHarness(str(tmp_path), mode="soft")
    harness = FBTHarness(str(tmp_path), batch_size=2)
    asked = requests("loglikelihood", [("3+4=", "7"), ("1+", "12")])
    expected = []
    for context, continuation in (request.args for request in asked):
        ids = tokenizer.encode(context + continuation)
        log_probs = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        scores = log_probs.gather(-1, torch.tensor(ids[1:])[:, None])[-len(continuation) :]
        expected.append(scores.sum().item())
    assert [score for score, _ in harness.loglikelihood(asked, disable_tqdm=True)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_beams": 4}, "'num_beams' are not served"), ({"max_gen_toks": CONTEXT}, "leaves no room for a prompt")],
)
def test_bad_generation_settings_are_refused_before_work(harness, monkeypatch, settings, message):
    monkeypatch.setattr(harness(), "model", None)  # nothing is run
    with pytest.raises(ValueError, match=message):
        harness().generate_until(requests("generate_until", [("1+1", {"max_gen_toks": 4}), ("1+2", settings)]))


def test_continuations_that_cannot_be_scored_are_refused(harness):
    for continuation in ("", "1" * (CONTEXT + 1)):
        with pytest.raises(ValueError, match="expected 1 to 64"):
            harness().loglikelihood(requests("loglikelihood", [("1+1=", continuation)]), disable_tqdm=True)


# --- through the harness -------------------------------------------------------------------------

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
  cache_dir: {cache}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CHOICE = """
output_type: multiple_choice
doc_to_choice: ["1", "12", "5-3"]
doc_to_target: best
target_delimiter: ""
metric_list: [{metric: acc}]
"""
WRITTEN = """
output_type: generate_until
doc_to_target: written
generation_kwargs: {until: ["7"], max_gen_toks: 9}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def task_folder(harness, tmp_path_factory):
    """Two tasks whose right answers are those of soft mode after three passes over the prompt, but for one of four."""
    place = tmp_path_factory.mktemp("tasks")
    judge = harness("soft", 3)
    questions = ["3+4=", "9-2+5=", "1+1+1=", "8-5="]
    rows = []
    for question in questions:
        choices = requests("loglikelihood", [(question, choice) for choice in ("1", "12", "5-3")])
        scores = [score for score, _ in judge.loglikelihood(choices, disable_tqdm=True)]
        asked = requests("generate_until", [(question, {"until": ["7"], "max_gen_toks": 9})])
        (written,) = judge.generate_until(asked, disable_tqdm=True)
        rows.append({"question": question, "best": scores.index(max(scores)), "written": written})
    rows[2] |= {"best": (rows[2]["best"] + 1) % 3, "written": "another"}
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rest in {"local_choice": CHOICE, "local_written": WRITTEN}.items():
        head = TASK.format(name=name, data=place / "rows.jsonl", cache=place / "cache")
        (place / f"{name}.yaml").write_text(head + rest)
    return place


def test_simple_evaluate_on_local_tasks(folder, task_folder):
    result = simple_evaluate(
        model="fbt",
        model_args=f"path={folder},mode=soft,prefill_passes=3",
        tasks=["local_choice", "local_written"],
        task_manager=TaskManager(include_path=str(task_folder), include_defaults=False),
        batch_size=3,
        bootstrap_iters=0,
    )
    assert result["results"]["local_choice"]["acc,none"] == 0.75
    assert result["results"]["local_written"]["exact_match,none"] == 0.75
