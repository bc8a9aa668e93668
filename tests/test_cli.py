"""The commands: help, dry run, messages and exit codes, and the model commands on a tiny model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pipeline_helpers as helpers
import pytest
import torch
from report_page import Page
from synthetic_run import make_run
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import fbt_rl.model
from fbt_rl import cli
from fbt_rl.artifacts import read_json
from fbt_rl.config import TokenizerConfig
from fbt_rl.config.file import dump_config, load_config
from fbt_rl.data.tokenization import build_tokenizer
from fbt_rl.decoding import default_new_tokens
from fbt_rl.driver import pipeline
from fbt_rl.model import FBTForCausalLM, from_model_config


def call(*arguments, cwd=None):
    """A command as a process: exit code, what it printed, what it said on stderr."""
    command = [sys.executable, "-m", "fbt_rl.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def invoke(monkeypatch, capsys):
    """A command in this process; what ``call`` gives, without its start."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fbt-rl", *map(str, arguments)])
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


def save_model(folder, **changes):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(TokenizerConfig(), ["0123456789+-= abcdefghijklmnopqrstuvwxyz.,:{}\\?\nCW"])
    shape = helpers.make_config().model.model_copy(update=changes)
    config = from_model_config(
        shape, len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    FBTForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A model whose context is shorter than the answers that are usual."""
    return save_model(tmp_path_factory.mktemp("short") / "model", max_position_embeddings=24)


def test_help_names_every_command_and_imports_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "fbt_rl.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in (
        "run",
        "eval",
        "compare",
        "generate",
        "report",
        "convert",
        "submit",
        "status",
        "logs",
        "stop",
        "reward",
    ):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "ray", "transformers", "deepspeed", "pydantic", "rich", "yaml"}


@pytest.mark.parametrize("command", ["run", "submit"])
def test_help_lists_the_shipped_configs(invoke, command):
    code, out, _ = invoke(command, "--help")
    shipped = sorted(path.stem for path in (Path(cli.__file__).parent / "configs").glob("*.yaml"))
    assert code == 0
    assert f"shipped config ({', '.join(shipped)})" in " ".join(out.split())


def test_dry_run_prints_config_stages_and_resources_without_torch_or_ray(tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "fbt_rl.cli", "run", "smoke", "--dry-run", "seed=5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "ray", "transformers", "deepspeed"}
    text, _, rest = done.stdout.partition("run folder: ")
    (tmp_path / "printed.yaml").write_text(text)
    assert load_config(tmp_path / "printed.yaml") == load_config("smoke", ["seed=5"])
    assert rest.startswith(f"{tmp_path}/runs/smoke\n")
    assert re.findall(r"^  (\w+) +(\w+) +run$", rest, re.MULTILINE) == [
        (name, stage.kind) for name, stage in load_config("smoke").stages.items()
    ]
    assert re.search(r"^this machine: \d+ CPU cores, \d+ GPUs\nworkers: \d x \(1 CPU", rest, re.MULTILINE)
    assert list(tmp_path.iterdir()) == [tmp_path / "printed.yaml"]


def test_dry_run_says_what_would_be_skipped_or_refused(tmp_path, invoke, monkeypatch):
    monkeypatch.setattr("fbt_rl.driver.cluster.Cluster", helpers.InProcess)
    monkeypatch.setattr("fbt_rl.report.write_report", helpers.write_report)
    config = helpers.make_config()
    functions = {"pretrain": "fake_stages:train", "sft": "fake_stages:train", "eval": "fake_stages:evaluate"}
    pipeline.run(config, tmp_path / "run", functions=functions)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    common = ("run", path, "--run-dir", tmp_path / "run", "--dry-run")
    code, out, _ = invoke(*common)
    assert code == 0
    assert len(re.findall("finished, skip", out)) == 3
    code, out, err = invoke(*common, "stages.tuned.steps=9")
    assert code == 2
    assert re.search(r"tuned +sft +REFUSE: changed", out)
    assert "stages.tuned.steps: 4 -> 9" in err
    code, out, _ = invoke(*common, "stages.tuned.steps=9", "--fresh")
    assert code == 0
    assert "(renamed first)" in out
    assert "skip" not in out.partition("run folder")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.yaml"], "error: no config file nowhere.yaml; shipped configs: "),
        (["run", "smoke", "stages.sft.stepz=3"], "error: stages.sft.stepz: unknown key; did you mean 'steps'?"),
        (["run", "smoke", "stages.sft.steps=0"], "error: stages.sft.steps: "),
        (["run", "smoke", "steps"], "error: steps: not of the form dotted.key=value"),
        (["run", "smoke", "resources.workers=99"], "error: resources: 99 workers x 1 CPU = 99 CPUs, this machine has"),
        (["eval", "nowhere"], "error: model.path: nowhere is not a model folder"),
        (["eval", "nowhere", "--tasks", "gsm9k"], "error: no task 'gsm9k'; give arithmetic, one of gsm8k, "),
        (["eval", "nowhere", "--tasks", "none.yaml"], "error: none.yaml: cannot be read"),
        (["eval", "nowhere", "--temperature", "0,x"], "error: --temperature 0,x: expected a number"),
        (["eval", "nowhere", "--workers", "2"], "--workers and --address need --out, a folder that all workers see"),
        (["eval"], "name a model, or --generations FILE with --map, and not both"),
        (["eval", "--generations", "none.jsonl"], "error: --map: name the completion"),
        (["eval", "--generations", "none.jsonl", "--map", "completion=a,answer=b"], "error: no data file none.jsonl"),
        (["compare", "a", "b"], "error: no evaluation a: give a folder"),
        (["generate", "nowhere", "hello"], "error: nowhere is not a model folder"),
        (["report", "nowhere"], "error: nowhere is not a run folder"),
        (["run", "smoke", "--nonsense"], "No such option"),
        (["submit", "smoke", "stages.sft.stepz=3"], "error: stages.sft.stepz: unknown key"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(invoke, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = invoke(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_the_module_ends_with_the_exit_code_and_no_traceback(tmp_path):
    code, out, err = call("run", "smoke", "resources.workers=99", cwd=tmp_path)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("no_painting")
def test_report_lays_published_numbers_beside_those_of_the_run_on_demand(invoke, tmp_path):
    plain = make_run(tmp_path / "plain", problems=5)
    configured = make_run(tmp_path / "configured", load_config("tiny", ["reference=paper"]), problems=5)
    published = ["plain transformer, 1T tokens", "published", "Pass@1", "70.1%", "–", "–"]
    for given, there in (((plain,), False), ((plain, "--reference", "paper"), True), ((configured,), True)):
        code, out, _ = invoke("report", *given)
        assert (code, out) == (0, f"{given[0]}/report/index.html\n")
        page = Page((given[0] / "report" / "index.html").read_text())
        assert (published in page.tables.get("Right answers, published and of this run", [])) == there
        assert ("Wang et al. 2026" in page.text) == there
        assert ("reference" in read_json(given[0] / "report" / "report.json")) == there


@pytest.mark.usefixtures("no_painting")
def test_report_refuses_a_reference_that_it_does_not_know(invoke, tmp_path):
    run = make_run(tmp_path / "run", problems=5)
    code, out, err = invoke("report", run, "--reference", "papers")
    assert (code, out) == (2, "")
    assert "--reference" in err
    assert "'papers'" in err
    assert "Traceback" not in err
    assert not (run / "report").exists()


def test_convert_prints_our_line_and_nothing_else(tmp_path):
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=16, **size)).save_pretrained(tmp_path / "plain")
    assert call("convert", tmp_path / "plain", tmp_path / "out") == (0, f"wrote {tmp_path / 'out'}\n", "")


def test_no_jobs_server_is_one_message(invoke):
    code, _, err = invoke("status", "job", "--address", "http://127.0.0.1:9")
    assert code == 1
    assert err.startswith("error: Ray Jobs at http://127.0.0.1:9: ")


def test_generate_prints_one_completion_a_prompt(invoke, model):
    common = ("generate", model, "1+1", "2+3", "--max-new-tokens", 5)
    texts = {mode: invoke(*common, "--mode", mode) for mode in ("standard", "soft", "fused")}
    assert all(code == 0 for code, _, _ in texts.values())
    assert all(out for _, out, _ in texts.values())
    assert invoke(*common, "--mode", "soft") == texts["soft"]
    sampled = [invoke(*common, "--temperature", 1.0, "--seed", seed)[1] for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert invoke(*common, "--raw")[1] != texts["standard"][1]


def test_the_default_length_of_answers_goes_by_the_context(invoke, short, tmp_path):
    note = "max_new_tokens is {} instead of 256: the model's context has 24 tokens and the longest prompt {}\n"
    told = []
    assert default_new_tokens(LlamaConfig(max_position_embeddings=300), 44, told.append) == 256
    assert default_new_tokens(LlamaConfig(max_position_embeddings=300), 45, told.append) == 255
    assert len(told) == 1
    code, out, err = invoke("generate", short, "1+1", "2+2+2", "--raw")
    assert (code, err) == (0, note.format(19, 5))
    assert len(out.splitlines()) == 2
    assert invoke("generate", short, "1+1", "2+2+2", "--raw", "--max-new-tokens", 19)[1:] == (out, "")
    for prompt, limit, message in (
        ("2+2+2", 20, "prompt 0 has 5 tokens and max_new_tokens is 20: together more than the model's context of 24"),
        ("1+" * 12, None, "prompt 0 has 24 tokens, which leaves no room for an answer in the model's context of 24"),
        ("1+" * 12, 1, "prompt 0 has 24 tokens, which leaves no room for an answer in the model's context of 24"),
    ):
        code, out, err = invoke("generate", short, prompt, "--raw", *(("--max-new-tokens", limit) if limit else ()))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {message}")

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt, "answer": "2"}) + "\n" for prompt in ("1+1", "1+1+1-1")))
    given = ("eval", short, "--tasks", rows, "--plain", "--modes", "standard,fused", "--out")
    code, out, err = invoke(*given, tmp_path / "default")
    assert (code, err) == (0, "rows: " + note.format(17, 7))
    assert invoke(*given, tmp_path / "default") == (0, out, err)  # the settings are those of before
    assert invoke(*given, tmp_path / "same", "--max-new-tokens", 17) == (0, out, "")
    code, _, err = invoke(*given, tmp_path / "more", "--max-new-tokens", 18)
    assert (code, "with max_new_tokens 18 that is more than the model's context of 24" in err) == (2, True)
    rows.write_text(json.dumps({"prompt": "1+" * 12, "answer": "2"}))
    code, _, err = invoke(*given, tmp_path / "none")
    assert (code, "'rows-1' has a prompt of 24 tokens, which leaves no room" in err) == (2, True)


def test_eval_grades_every_mode_and_keeps_the_answers(invoke, model, tmp_path):
    code, out, _ = invoke("eval", model, "--limit", 6, "--max-new-tokens", 4, "--out", tmp_path / "eval")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["standard", "soft", "fused"]
    assert all("of 6, median length" in line for line in out.splitlines())
    assert list(read_json(tmp_path / "eval" / "result.json")["modes"]) == ["standard", "soft", "fused"]
    before = (tmp_path / "eval" / "generations.parquet").read_bytes()
    again = ("eval", model, "--limit", 6, "--max-new-tokens", 4, "--out", tmp_path / "eval", "--batch-size", 2)
    assert invoke(*again)[:2] == (0, out)  # nothing is decoded again, whatever the batch size
    code, _, err = invoke(*again, "--samples", 2, "--temperature", 0.5)
    assert code == 2
    assert "holds an evaluation with other settings (samples, temperatures): name another folder" in err
    (tmp_path / "theirs.jsonl").write_text('{"c": "\\\\boxed{1}", "a": "1"}\n')
    file = ("eval", "--generations", tmp_path / "theirs.jsonl", "--map", "completion=c,answer=a", "--out")
    assert invoke(*file, tmp_path / "eval")[0] == 2
    assert (tmp_path / "eval" / "generations.parquet").read_bytes() == before
    assert [invoke(*file, tmp_path / "theirs")[0] for _ in range(2)] == [0, 0]


def test_several_tasks_their_prompts_and_the_comparison_of_their_results(invoke, model, tmp_path):
    rows = [{"question": f"{n}+1", "gold": n + 1, "kind": "plus"} for n in range(4)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    mapped = {"paths": [str(tmp_path / "mine.jsonl")], "prompt": "question", "answer": "gold", "subject": "kind"}
    given = {**mapped, "template": "{prompt}=", "reward": {"use": "math", "args": {"numeric": True}}}
    (tmp_path / "mine.yaml").write_text(json.dumps(given))
    common = ("eval", model, "--tasks", f"arithmetic,{tmp_path / 'mine.yaml'}", "--limit", 3, "--max-new-tokens", 2)
    code, out, _ = invoke(*common, "--show-prompt")
    assert code == 0
    assert re.fullmatch(r"arithmetic:\n<\|user\|>\S+<\|assistant\|>\n\nmine:\n<\|user\|>0\+1=<\|assistant\|>\n\n", out)
    assert invoke(*common, "--show-prompt", "--plain")[1].endswith("mine:\n0+1=\n\n")
    code, out, _ = invoke(*common, "--modes", "standard,soft", "--out", tmp_path / "out")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "arithmetic:",
        "standard",
        "soft",
        "mine:",
        "standard",
        "soft",
    ]
    result = read_json(tmp_path / "out" / "mine" / "result.json")
    assert (result["task"], len(result["data_sha256"])) == ("mine", 64)
    assert list(result["modes"]["soft"]["subject"]) == ["plus"]
    assert "below it are" in invoke("compare", tmp_path / "out")[2]
    code, out, _ = invoke("compare", tmp_path / "out" / "mine", "--out", tmp_path / "compared.json")
    assert code == 0
    assert out.splitlines()[2].startswith("| standard → soft | mine | 3 | ")
    assert "- Too few problems to compare lengths: 0 problems that both sides solve." in out
    assert read_json(tmp_path / "compared.json")["comparisons"][0]["n"] == 3


def test_eval_at_several_temperatures(invoke, model, tmp_path):
    common = ("eval", model, "--limit", 12, "--max-new-tokens", 2, "--modes", "soft", "--out", tmp_path)
    code, out, _ = invoke(*common, "--temperature", "0.5,1")
    assert code == 0
    assert re.search(
        r"^soft  temperature 0\.5, chosen on the other half .*: 0\.0% at 0\.5, 0\.0% at 1\.0$", out, re.MULTILINE
    )
    assert read_json(tmp_path / "result.json")["modes"]["soft"]["n"] < 12
    code, _, err = invoke("eval", model, "--limit", 1, "--temperature", "0.5,1")
    assert (code, "too few problems to choose a temperature" in err) == (2, True)
    assert sorted(path.name for path in tmp_path.glob("*/generations.parquet")) == ["generations.parquet"] * 2


def test_eval_of_a_file_and_of_a_foreign_model(invoke, model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"q": "1+1", "a": "2"}) + "\n")
    common = ("--tasks", rows, "--prompt", "q", "--max-new-tokens", 3)
    code, out, _ = invoke("eval", model, *common, "--answer", "a", "--modes", "soft,standard")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["soft", "standard"]
    code, _, err = invoke("eval", model, *common, "--answer", "gold")
    assert code == 2
    assert "row 1: no column 'gold'" in err

    foreign = tmp_path / "foreign"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokens = len(fbt_rl.data.tokenization.load_tokenizer(model))
    LlamaForCausalLM(LlamaConfig(vocab_size=tokens, **size)).save_pretrained(foreign)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (model / file).exists():
            (foreign / file).write_text((model / file).read_text())
    code, out, err = invoke("eval", foreign, *common, "--answer", "a")
    assert (code, out.split()[0]) == (0, "standard")
    assert err == f"modes is standard: the model in {foreign} has no latent feedback\n"
    code, _, err = invoke("eval", foreign, *common, "--answer", "a", "--modes", "standard,soft")
    assert code == 2
    assert "has no latent feedback (model_type 'llama')" in err
    code, out, _ = invoke("eval", foreign, *common, "--answer", "a", "--modes", "standard")
    assert code == 0
    code, _, err = invoke("generate", foreign, "1+1", "--mode", "soft", "--max-new-tokens", 2)
    assert code == 2
    assert "Traceback" not in err

    code, out, _ = invoke("convert", foreign, tmp_path / "out")
    assert code == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "fbt"
