"""Damage to a run folder: every file, flipped, cut or removed, under every command. None passes in silence."""

import contextlib
import io
import json
import random
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pipeline_helpers as helpers
import pytest
import synthetic_run
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import fbt_rl.driver.cluster
import fbt_rl.model
from fbt_rl import cli
from fbt_rl.analysis.table import read_table, write_table
from fbt_rl.artifacts import RunFolder, StageFolder
from fbt_rl.config import TokenizerConfig
from fbt_rl.config.file import dump_config
from fbt_rl.data.tokenization import build_tokenizer, load_tokenizer
from fbt_rl.driver import pipeline
from fbt_rl.integrity import LIST, Damaged, fault_in, read_sealed_json, seal, write_last, write_sealed_json
from fbt_rl.model import FBTForCausalLM, from_model_config
from fbt_rl.report import paint, write_report
from fbt_rl.training.trainer import save_model
from rl.saved import load_batch

EVALUATION = {
    "kind": "eval",
    "data": {"kind": "arithmetic", "split": "heldout", "size": 30},
    "modes": ["standard", "soft"],
    "max_new_tokens": 40,
}
STAGES = {
    "base": helpers.training(steps=4),
    "before": EVALUATION,
    "tuned": {
        "kind": "rl",
        "data": {"kind": "arithmetic", "size": 50},
        "rewards": [{"use": "math"}],
        "steps": 4,
        "prompts_per_step": 2,
        "group_size": 2,
        "max_new_tokens": 8,
        "optimizer": {"learning_rate": 1e-3},
        "save_rollouts_every": 2,
    },
    "after": EVALUATION,
}


# --- stages that write what real ones do, made up ---------------------------------------------------


def train(stage, context):
    folder, rng = context.folder, np.random.default_rng(0)
    for step in range(1, stage.steps + 1):
        row = synthetic_run.training_row(step, 1.0, 1, rng)
        folder.append_metrics(synthetic_run.rl_row(step, stage.steps, rng) if stage.kind == "rl" else row)
    if stage.kind == "rl":
        synthetic_run.write_rollouts(folder, stage, rng)
    checkpoint = folder.checkpoint_dir(stage.steps)
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").write_bytes(rng.bytes(100))
    seal(checkpoint)
    torch.manual_seed(0)
    tokenizer = build_tokenizer(TokenizerConfig(), ["0123456789+-=,\\boxed{} "])
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")}
    model = FBTForCausalLM(from_model_config(context.config.model, len(tokenizer), **ids))
    save_model(folder.model_dir, model, tokenizer)
    return {"loss": 1.0}


def evaluate(stage, context):
    synthetic_run.write_generations(context.folder, stage, stage.data.size, short="tuned" in str(context.source))
    return {"modes": {mode: {"accuracy": 0.5} for mode in stage.modes}}


FUNCTIONS = {kind: f"{__name__}:{'evaluate' if kind == 'eval' else 'train'}" for kind in pipeline.STAGE_FUNCTIONS}


# --- commands ---------------------------------------------------------------------------------------


def call(*arguments):
    """A command in this process: exit code, what it printed, what it said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["fbt-rl", *map(str, arguments)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.main()
    return SimpleNamespace(code=ended.value.code or 0, out=out.getvalue(), err=err.getvalue())


def auto_classes(model):
    """As README loads a model, in the shape of :func:`call`."""
    try:
        weights = AutoModelForCausalLM.from_pretrained(model).state_dict()
        tokenizer = AutoTokenizer.from_pretrained(model)
    except Exception as error:
        return SimpleNamespace(code=1, out="", err=f"error: {error}\n")
    sums = {name: float(value.double().sum()) for name, value in weights.items()}
    return SimpleNamespace(code=0, out=f"{sums} {tokenizer.encode('1+2')}", err="")


def commands(run, config):
    model, evaluations = run / "stages" / "tuned" / "model", [run / "stages" / name for name in ("before", "after")]
    short = ["--max-new-tokens", "4"]
    answer = ["--tasks", "arithmetic", "--limit", "2", "--modes", "soft", *short]
    return {
        "run": lambda: call("run", config, "--run-dir", run),
        "report": lambda: call("report", run),
        "eval": lambda: call("eval", model, *answer),
        "generate": lambda: call("generate", model, "3+4", "--mode", "soft", *short),
        "compare": lambda: call("compare", *evaluations),
        "auto": lambda: auto_classes(model),
    }


def reads(command, name):
    """Whether a command reads a file of the run folder, named by its path in there."""
    parts = name.split("/")
    kept = {"stage.json", "data.json", "metrics.jsonl", "rollouts.parquet", "generations.parquet", "result.json", LIST}
    of_stage = len(parts) == 3 and parts[2] in kept
    if command in ("run", "report"):
        return name in (("run.json", "config.yaml") if command == "report" else ("run.json",)) or of_stage
    if command == "compare":
        return of_stage and parts[1] in ("before", "after") and parts[2] in ("generations.parquet", LIST)
    return name.startswith("stages/tuned/model/")


def mends(command, name):
    """Whether a command writes the file anew, from what it reads."""
    return (name.startswith("report/") and command in ("run", "report")) or (command, name) == ("run", "config.yaml")


# --- damage -----------------------------------------------------------------------------------------


def damaged(content, kind, number=0):
    """``content`` after a kind of damage; None: there is no file any more."""
    if kind == "delete" or not content:
        return None
    if kind == "truncate":
        return content[: (len(content) // 2, len(content) - 1, 0)[number]]
    rng = random.Random(number)
    places = [0, len(content) - 1, rng.randrange(len(content)), rng.randrange(len(content))]
    place = places[number]
    return content[:place] + bytes([content[place] ^ rng.randrange(1, 256)]) + content[place + 1 :]


def cases(content):
    numbers = {"flip": 4 if len(content) > 1 else 1, "truncate": 3, "delete": 1} if content else {"delete": 1}
    return [damaged(content, kind, number) for kind, count in numbers.items() for number in range(count)]


def put(path, content):
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextlib.contextmanager
def instead(run, files):
    """With these files for those of the run; then everything is as it was."""
    before = contents(run)
    for name, content in files.items():
        put(run / name, content)
    try:
        yield
    finally:
        after = contents(run)
        for name in before.keys() | after.keys():
            if before.get(name) != after.get(name):
                put(run / name, before.get(name))


def contents(run):
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of every kind of file, its commands, and what each prints while nothing is damaged."""
    folder = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fbt_rl.driver.cluster, "Cluster", helpers.InProcess)
        patch.setitem(pipeline.run.__kwdefaults__, "functions", FUNCTIONS)
        patch.setattr(cli.signal, "signal", lambda *_: None)
        patch.setattr(sys, "argv", [])
        patch.setattr(pipeline, "provenance", dict)  # asks git
        patch.setattr(paint, "draw", lambda name, caption, alt, *_: paint.Chart(name, caption, alt, b"png", ""))
        run, config = folder / "run", folder / "given.yaml"
        config.write_text(dump_config(helpers.make_config(stages=STAGES)))
        made = call("run", config, "--run-dir", run)
        assert made.code == 0, made.err
        every = commands(run, config)
        yield SimpleNamespace(run=run, commands=every, sound={name: every[name]() for name in every})


def is_a_clear_sentence(done, path):
    return (
        done.code in (1, 2) and done.err.startswith("error: ") and done.err.count("\n") == 1 and str(path) in done.err
    )


COMMANDS = ("run", "report", "eval", "generate", "compare", "auto")


def test_the_run_folder_has_every_kind_of_file(whole):
    assert {name: done.code for name, done in whole.sound.items()} == dict.fromkeys(COMMANDS, 0)
    assert not any(done.err for done in whole.sound.values())
    names = {name.rpartition("/")[2] for name in contents(whole.run)}
    assert names > {"run.json", "config.yaml", "stage.json", "metrics.jsonl", "result.json", "rollouts.parquet"}
    assert names > {"generations.parquet", "model.safetensors", "tokenizer.json", "optimizer.pt", "index.html", LIST}


@pytest.mark.parametrize("command", COMMANDS)
def test_damage_to_a_file_that_is_read_is_one_sentence(whole, command):
    sound = contents(whole.run)
    silent, unclear, tried = [], [], 0
    for name in filter(lambda name: reads(command, name), sound):
        for content in cases(sound[name]):
            put(whole.run / name, content)
            done = whole.commands[command]()
            put(whole.run / name, sound[name])
            tried += 1
            if done.code == 0:
                silent.append(name)
            # Auto classes read config.json before any code of ours, and speak for themselves.
            elif not is_a_clear_sentence(done, whole.run / name) and (command, name[-11:]) != ("auto", "config.json"):
                unclear.append((name, done.err))
    print(f"{command}: {tried} cases, {len(silent)} silent")
    assert tried >= 16
    assert (silent, unclear) == ([], [])


@pytest.mark.parametrize("kind", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("command", COMMANDS)
def test_damage_to_all_that_is_not_read_changes_nothing(whole, command, kind):
    sound = contents(whole.run)
    unread = [name for name in sound if not reads(command, name) and not mends(command, name)]
    print(f"{command}: {len(unread)} files not read, {kind}")
    with instead(whole.run, {name: damaged(sound[name], kind) for name in unread}):
        assert vars(whole.commands[command]()) == vars(whole.sound[command])
        if command == "report":
            assert all((whole.run / name).read_bytes() == sound[name] for name in sound if name.startswith("report/"))


def test_run_and_report_write_anew_what_they_make_themselves(whole):
    sound = contents(whole.run)
    tried = 0
    for command in ("run", "report"):
        for name in filter(lambda name: mends(command, name), sound):
            for content in (damaged(sound[name], kind) for kind in ("flip", "truncate", "delete")):
                with instead(whole.run, {name: content}):
                    done = whole.commands[command]()
                    assert (done.code, done.err) == (0, "")
                    # A report without checksums can be an older version's: run lets it be.
                    if (command, name, content) != ("run", f"report/{LIST}", None):
                        assert (whole.run / name).read_bytes() == sound[name], (command, name)
                tried += 1
    print(f"{tried} cases")


# --- one at a time ----------------------------------------------------------------------------------


def test_a_run_of_an_older_version_is_read_with_one_line_about_it(whole, caplog):
    old = {}
    for name, content in contents(whole.run).items():
        if name.endswith(LIST):
            old[name] = None
        elif name.endswith(("result.json", "stage.json", "run.json")):
            keys = ("checksums", "checksum", "sha256", "config_sha256")
            old[name] = json.dumps({key: value for key, value in json.loads(content).items() if key not in keys})
            old[name] = old[name].encode()
    with instead(whole.run, old):
        for name, command in whole.commands.items():
            caplog.clear()
            done = command()
            assert done.code == 0, (name, done.err)
            said = done.out + caplog.text
            assert said.count("no checksums in") == (2 if name == "compare" else 1), (name, said)


def test_a_model_folder_can_be_checked_where_it_was_copied_to(whole, tmp_path):
    copy = shutil.copytree(whole.run / "stages" / "tuned" / "model", tmp_path / "copy")
    weights = copy / "model.safetensors"
    AutoModelForCausalLM.from_pretrained(copy)
    put(weights, damaged(weights.read_bytes(), "flip", 3))
    with pytest.raises(Damaged, match=r"model.safetensors is damaged .*: put it back from a copy, or remove .*/copy"):
        FBTForCausalLM.from_pretrained(copy)
    load_tokenizer(copy)


def test_a_folder_without_a_tokenizer_is_said_to_have_none(whole, tmp_path):
    copy = shutil.copytree(whole.run / "stages" / "tuned" / "model", tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(Damaged, match=r"tokenizer.json is missing"):
        load_tokenizer(copy)
    (copy / LIST).unlink()
    with pytest.raises(ValueError, match=r"cannot load a tokenizer from .* none of tokenizer.json, .* is there"):
        load_tokenizer(copy)


def test_an_edited_config_is_not_taken_for_the_runs_own(whole):
    config = whole.run / "config.yaml"
    sound = contents(whole.run)
    with instead(whole.run, {"config.yaml": config.read_bytes().replace(b"name: count", b"name: renamed")}):
        done = whole.commands["report"]()
        assert f"to keep a change of your own: fbt-rl run {config} --run-dir {whole.run}" in done.err
        assert call("run", config, "--run-dir", whole.run).code == 0
        assert json.loads((whole.run / "report" / "report.json").read_text())["name"] == "renamed"
    assert contents(whole.run) == sound


def test_what_an_evaluation_wrote_is_checked_when_it_is_compared_or_made_again(whole, tmp_path):
    model, out = whole.run / "stages" / "tuned" / "model", tmp_path / "out"
    options = ["--tasks", "arithmetic", "--limit", "3", "--modes", "standard,soft", "--max-new-tokens", "4"]
    make, compare = (lambda: call("eval", model, *options, "--out", out)), (lambda: call("compare", out))
    assert (make().code, compare().code) == (0, 0)
    sound = contents(out)
    assert set(sound) == {"generations.parquet", "result.json", LIST}
    for name in sound:
        for content in cases(sound[name]):
            for command, is_read in ((make, content is not None or name != "result.json"), (compare, name[0] != "r")):
                with instead(out, {name: content}):
                    done = command()
                    assert is_a_clear_sentence(done, out / name) if is_read else done.code == 0, (name, done.err)
                    if command is make and not is_read:
                        assert contents(out) == sound


def test_shards_of_an_interrupted_evaluation_have_page_checksums(tmp_path):
    path, rng = tmp_path / "shard.parquet", random.Random(0)
    write_table(path, synthetic_run.pa.table({"completion": [rng.randbytes(100).hex() for _ in range(200)]}))
    sound = path.read_bytes()
    for _ in range(20):
        place = rng.randrange(len(sound) // 3, len(sound) // 2)  # in the one page's data
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        with pytest.raises(Damaged, match=r"shard.parquet is damaged"):
            read_table(path)
    path.unlink()
    with pytest.raises(Damaged, match=r"shard.parquet is missing"):
        read_table(path)


def test_a_saved_batch_is_checked(tmp_path):
    save_file({"latents": torch.randn(4, 8)}, tmp_path / "rank-0.safetensors")
    write_last(tmp_path / "batch.json", {"metrics": {"loss": 1.0}}, ["rank-0.safetensors"])
    assert load_batch(tmp_path, 0, torch.device("cpu"))[1] == {"loss": 1.0}
    sound = contents(tmp_path)
    for name in sound:
        for content in cases(sound[name]):
            with instead(tmp_path, {name: content}), pytest.raises(Damaged, match=name):
                load_batch(tmp_path, 0, torch.device("cpu"))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, monkeypatch, capsys):
    run, config, switches = tmp_path / "run", helpers.make_config(), tmp_path / "switches.json"
    monkeypatch.setattr(fbt_rl.driver.cluster, "Cluster", helpers.InProcess)
    monkeypatch.setattr("fbt_rl.report.write_report", helpers.write_report)
    monkeypatch.setenv("FAKE_STAGES", str(switches))
    switches.write_text(json.dumps({"fail_at": ["base", 6, "stop"]}))
    functions = helpers.fake_stages.FUNCTIONS
    with pytest.raises(pipeline.StageFailed):
        pipeline.run(config, run, functions=functions)
    folder = RunFolder(run).stage("base")
    assert [path.name for path in folder.checkpoints()] == ["step-000002", "step-000004"]
    put(folder.checkpoint_dir(4) / "state.json", b"[5, 1]")
    switches.write_text("{}")
    capsys.readouterr()
    pipeline.run(config, run, functions=functions)
    said = capsys.readouterr().out
    assert "step-000004/state.json is damaged" in said
    assert "that checkpoint was removed, stage 'base' goes on from step-000002" in said
    assert helpers.starts(run, "base") == [0, 2]
    assert folder.read_result() == {"loss": helpers.expected(6)}


def test_a_kill_between_checksums_and_result_leaves_a_stage_to_be_finished(whole):
    """Until run.json says that the stage is finished, a missing result is no damage."""
    state = RunFolder(whole.run).read_state()
    state["stages"]["after"]["status"] = "running"
    with instead(whole.run, {"stages/after/result.json": None}):
        RunFolder(whole.run).write_state(state)
        assert RunFolder(whole.run).verify_stages(STAGES) == []
        write_report(whole.run)
        done = whole.commands["run"]()
        assert (done.code, done.err) == (0, "")
        assert RunFolder(whole.run).stage("after").finished()


def test_every_byte_of_the_lists_and_of_sealed_json_counts(tmp_path):
    path = tmp_path / "state" / "run.json"
    write_sealed_json(path, {"name": "größer", "stages": {"a": 1}})
    assert read_sealed_json(path, "") == {"name": "größer", "stages": {"a": 1}}
    (tmp_path / "file").write_text("content")
    seal(tmp_path)
    listed, sealed, rng = (tmp_path / LIST).read_bytes(), path.read_bytes(), random.Random(0)
    for content, file in ((listed, tmp_path / LIST), (sealed, path)):
        flipped = (
            content[:i] + bytes([content[i] ^ rng.randrange(1, 256)]) + content[i + 1 :] for i in range(len(content))
        )
        for wrong in [*flipped, *(content[:i] for i in range(len(content)))]:
            file.write_bytes(wrong)
            if file == path:
                with pytest.raises(Damaged, match=r"run.json is damaged"):
                    read_sealed_json(path, "")
            else:
                assert f"{LIST} is damaged" in (fault_in(tmp_path) or "")
        file.write_bytes(content)


def test_metrics_damaged_before_the_end_are_noticed_while_a_stage_is_half_done(tmp_path):
    folder = StageFolder(tmp_path)
    folder.metrics_path.write_text('{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n')
    with pytest.raises(Damaged, match=r"metrics.jsonl is damaged \(line 2"):
        folder.read_metrics()
