"""What README and docs/ show is so: commands run as they are printed, Python is executed, YAML validates.

All of it takes place in a folder that is laid out as the pages say, with a demo run of tiny random models in it. Small
words in capitals stand for what the reader puts there (``STANDS_FOR``); what cannot run in a test is in ``NOT_RUN``.
"""

import argparse
import ast
import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pipeline_helpers
import pytest
import rl_cases
import torch
import yaml
from synthetic_run import make_run

from fbt_rl import cli
from fbt_rl.config.file import dump_config, load_config, parse_config

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PROGRAMS = ("fbt-rl", "make", "python", "pip", "ray")

STANDS_FOR = {
    "MODEL": "runs/demo/stages/rl/model",
    "BEFORE": "runs/demo/stages/sft/model",
    "AFTER": "runs/demo/stages/rl/model",
    "CONFIG": "config.yaml",
    "RUN": "runs/demo",
    "TEXT": "text.txt",
    "JOB": "raysubmit_1",
    "HOST": "127.0.0.1",
    "/shared/": "shared/",
    "--address ...": "--address http://127.0.0.1:8265",
    "[--reference paper]": "--reference paper",
}
# How a command is looked at instead, by its beginning. Those of make are looked up in the Makefile.
NOT_RUN = {
    "fbt-rl run smoke": "dry run",  # a minute; test_end_to_end.py runs it
    "fbt-rl run gsm8k": "dry run",  # half an hour
    "fbt-rl run arms": "dry run",  # hours
    "python benchmarks/": "options",  # minutes
    "python tests/mutants/": "options",
    "python -m fbt_rl.evaluation.lm_eval": "lm-eval",  # needs lm-eval and a data set of the hub
    "pip install": "extra",
}
# Indented blocks that are no commands, by how they begin.
OTHER_BLOCKS = (
    "config.yaml   ",
    "fbt_rl/   ",
    "def run(",
    "pretrain ─>",
    "loss = L_1",
    "1 - w · s",
    '{"question": …',
)
# Where a piece of YAML belongs in a config, by its first key.
BELONGS = {
    "stages": "",
    "rewards": "stages.rl",
    "scorer": "stages.rl",
    "degenerate_groups": "stages.rl",
    "guard": "stages.rl",
    "limits": "stages.rl",
    "lora": "stages.rl",
    "objective": "stages.pretrain",
    "optimizer": "stages.pretrain",
    "paths": "stages.eval_before.data",
}


class Block(NamedTuple):
    language: str  # "" where it is indented
    line: int
    text: str


def read_page(page: str) -> tuple[list[Block], list[str]]:
    """Fenced and indented blocks, and the code in running text."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, before = None, ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        if line.startswith("```"):
            if fence is None:
                blocks.append(Block(line[3:].strip() or "text", number + 1, ""))
            fence = line if fence is None else None
        elif fence is not None or (line.startswith("    ") and (not before.strip() or before.startswith("    "))):
            if fence is None and not before.startswith("    "):
                blocks.append(Block("", number, ""))
            blocks[-1] = blocks[-1]._replace(text=blocks[-1].text + (line if fence else line[4:]) + "\n")
        else:
            prose.append(line)
        before = line
    return blocks, [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", "\n".join(prose))]


def command_words(line: str) -> list[str]:
    """The words of a command line, without what is said of the environment; none if it is no command."""
    line = re.sub(r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?", "", line)
    return shlex.split(line, comments=True) if line.split(" ")[0] in PROGRAMS else []


def commands_of(page: str) -> list[str]:
    blocks, spans = read_page(page)
    found = []
    for block in blocks:
        lines = block.text.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        if block.language in ("bash", "sh", "console") or (not block.language and command_words(lines[0])):
            assert all(map(command_words, lines)), f"{page}:{block.line}: a command of an unknown program"
            found += lines
        elif not block.language:
            assert block.text.startswith(OTHER_BLOCKS), f"{page}:{block.line}: commands, or something else?"
    return found + [span for span in spans if command_words(span)]


# --- the folder ----------------------------------------------------------------------------------

GSM8K = [
    {"question": f"{n} and {n + 1}?", "answer": f"{n}+{n + 1}=<<{n}+{n + 1}={2 * n + 1}>>\n#### {2 * n + 1}"}
    for n in range(3)
]
MATH500 = [
    {
        "unique_id": f"test/{n}",
        "problem": f"${n}+1$?",
        "solution": f"\\boxed{{{n + 1}}}",
        "answer": f"{n + 1}",
        "subject": "Algebra",
        "level": 1,
    }
    for n in range(3)
]
OUTPUTS = [
    {
        "question": row["question"],
        "gold": row["answer"].split("#### ")[1],
        "text": "\\boxed{1}",
        "samples": [{"text": f"\\boxed{{{n}}}"} for n in range(2)],
    }
    for row in GSM8K
]
PROBLEMS = [{"prompt": "1+1", "answer": "2"}, {"prompt": "2-5", "answer": "-3"}]
GENERATIONS = [{**row, "completion": "\\boxed{2}"} for row in PROBLEMS]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder where a reader is: with ``make demo`` done, and with the files that pages name."""
    place = tmp_path_factory.mktemp("docs") / "repository"
    make_run(place / "runs" / "demo", problems=30)
    for stage in ("sft", "rl"):  # with the demo's context, and soon at an end
        rl_cases.save_source(place / f"runs/demo/stages/{stage}/model", end=6, max_position_embeddings=256)
    tables = {
        "openai/gsm8k/main/test": GSM8K,  # where the hub's data set is looked for first
        "math500/test": MATH500,
        "outputs": OUTPUTS,
        "problems": PROBLEMS,
        "generations": GENERATIONS,
    }
    for name, rows in tables.items():
        path = place / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "openai/gsm8k/README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: test, path: main/test.jsonl}\n---\n"
    )
    (place / "text.txt").write_text("Once upon a time.\n")
    model = {"path": "runs/demo/stages/sft/model"}
    check = {"kind": "eval", "data": {"kind": "arithmetic", "split": "heldout", "size": 4}, "max_new_tokens": 8}
    resources = {"workers": 1}
    for name, stages in {"config": {"check": check}, "rl": {"rl": rl_cases.RL | {"steps": 1}}}.items():
        config = parse_config({"name": name, "model": model, "resources": resources, "stages": stages})
        (place / f"{name}.yaml").write_text(dump_config(config))
    if DATA.is_dir():
        (place.parent / "shared").mkdir()
        (place.parent / "shared" / "data").symlink_to(DATA)
    return place


class Head:
    """Stands for the Jobs server of a cluster."""

    def __init__(self, address):
        assert address == "http://127.0.0.1:8265"

    def submit_job(self, **_):
        return "raysubmit_1"

    def get_job_info(self, job):
        assert job == "raysubmit_1"
        ended = SimpleNamespace(value="SUCCEEDED")
        return SimpleNamespace(metadata={}, status=ended, driver_exit_code=0, message="")

    def get_job_logs(self, job):
        return "written\n"

    async def tail_job_logs(self, job):
        yield "written\n"

    def stop_job(self, job):
        return True


@pytest.fixture
def reader(place, monkeypatch, no_painting):
    """In the folder; with Ray, clusters and the painting of charts stood in for."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setattr("fbt_rl.driver.cluster.Cluster", pipeline_helpers.InProcess)
    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Head)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.syspath_prepend(ROOT / "tests")
    return place


# --- commands ------------------------------------------------------------------------------------


def fbt_rl(words, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, f"{shlex.join(words)}\n{capfd.readouterr().err}"


def options_are_known(words, monkeypatch):
    class Parsed(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def stop(*arguments):
        parse(*arguments)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def lm_eval_knows(words):
    tree = ast.parse((ROOT / "fbt_rl" / "evaluation" / "lm_eval.py").read_text())
    (init,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    given = words[words.index("--model_args") + 1].split(",") if "--model_args" in words else []
    assert {part.split("=")[0] for part in given} <= {argument.arg for argument in init.args.args}


def is_only_named(words):
    """``fbt-rl compare``: the name of a command in running text, not a command."""
    commands = {str(command.name or command.callback.__name__).rstrip("_") for command in cli.app.registered_commands}
    return len(words) == 2 and words[1] in commands


@pytest.mark.parametrize("page", PAGES)
def test_commands(page, reader, monkeypatch, capfd):
    blocks = read_page(page)[0]
    for block in blocks:
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (reader / named[1]).write_text(block.text)
    for printed in commands_of(page):
        line = printed
        for word, meaning in STANDS_FOR.items():
            line = line.replace(word, meaning)
        words = command_words(line)
        plain = shlex.join(words)
        how = next((how for beginning, how in NOT_RUN.items() if plain.startswith(beginning)), None)
        if words[0] == "ray":
            words = words[words.index("--") + 1 :]
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), printed
        elif how == "extra":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert re.fullmatch(r"fbt-rl\[(.*)\]", words[2])[1] in extras
        elif how == "options":
            with monkeypatch.context() as patch:
                options_are_known(words[1:], patch)
        elif how == "lm-eval":
            lm_eval_knows(words)
        elif words[:3] == ["python", "-m", "reward"]:
            monkeypatch.setattr(sys, "argv", [*words[2:], *(words[3:] or ["list"])])
            with pytest.raises(SystemExit, match="0"):
                runpy.run_module("reward", run_name="__main__")
        elif is_only_named(words):
            fbt_rl([*words, "--help"], monkeypatch, capfd)
        elif how == "dry run":
            if words[2] == "gsm8k" and not DATA.is_dir():
                continue  # what it reads is not there
            fbt_rl([*words, "--dry-run"], monkeypatch, capfd)
        else:
            assert words[0] == "fbt-rl", f"{page}: {printed} is neither run nor listed"
            fbt_rl(words, monkeypatch, capfd)


# --- Python and YAML -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "python" for b in read_page(page)[0])])
def test_python(page, reader):
    """The blocks of a page follow on each other."""
    torch.manual_seed(0)
    names = {"__name__": page}
    with rl_cases.clean_process():
        for block in read_page(page)[0]:
            if block.language == "python":
                code = compile("\n" * (block.line - 1) + block.text, ROOT / page, "exec")
                exec(code, names)


def put(values, place, part):
    """``part`` merged into ``values`` at the dotted ``place``; a data section takes the place of the one there."""
    if place.endswith(".data"):
        place, _, last = place.rpartition(".")
        part = {last: part}
        put(values, place, {last: None})
    node = values
    for name in filter(None, place.split(".")):
        node = node[name]
    for key, value in part.items():
        if isinstance(value, dict) and isinstance(node.get(key), dict) and "use" not in value:
            put(node[key], "", value)
        else:
            node[key] = value


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "yaml" for b in read_page(page)[0])])
def test_yaml(page):
    for block in read_page(page)[0]:
        if block.language != "yaml":
            continue
        keys = re.findall(r"^(\w+):", block.text, re.MULTILINE)
        # A key given twice: alternatives, a line each.
        for text in [block.text] if len(keys) == len({*keys}) else block.text.splitlines():
            part = yaml.safe_load(text)
            if "name" in part and "stages" in part:
                parse_config(part)
                continue
            assert keys[0] in BELONGS, f"{page}:{block.line}: where does {keys[0]} belong?"
            values = yaml.safe_load(dump_config(load_config("tiny")))
            put(values, BELONGS[keys[0]], part)
            parse_config(values)
            if BELONGS[keys[0]].endswith(".data"):  # it serves them all
                for other in ("sft", "rl"):
                    put(values, f"stages.{other}.data", part)
                parse_config(values)


def test_settings_in_running_text():
    sections = set(load_config("tiny").__class__.model_fields)
    tried = 0
    for page in PAGES:
        for span in read_page(page)[1]:
            if (setting := re.fullmatch(r"(\w+)((?:\.\w+)+): ([^…|]+)", span)) and setting[1] in sections:
                load_config("tiny", [f"{setting[1]}{setting[2]}={setting[3]}"])
                tried += 1
    assert tried >= 5


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / page).read_text()):
        assert "://" in target or (ROOT / page).parent.joinpath(target).exists(), target
