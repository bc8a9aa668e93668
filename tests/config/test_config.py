"""The configuration: shipped files load, and mistakes get a message that names what was typed."""

import copy
from pathlib import Path

import pytest
import yaml

from fbt_rl.config.file import ConfigError, dump_config, load_config, parse_config

SHIPPED = sorted((Path(__file__).parents[2] / "fbt_rl" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_round_trips(path):
    config = load_config(path)
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_shipped_config_by_name_and_unknown_name():
    assert load_config("tiny").name == "tiny"
    with pytest.raises(ConfigError, match=r"no config file tiniest; shipped configs: .*tiny"):
        load_config("tiniest")


@pytest.fixture
def values():
    return yaml.safe_load((SHIPPED[0].parent / "tiny.yaml").read_text())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("modle", {}, "modle: unknown key; did you mean 'model'?"),
        ("model.hiden_size", 8, "model.hiden_size: unknown key; did you mean 'hidden_size'?"),
        ("stages.pretrain.stepz", 1, "stages.pretrain.stepz: unknown key; did you mean 'steps'?"),
        ("stages.pretrain.data.0.sise", 1, "stages.pretrain.data.0.sise: unknown key; did you mean 'size'?"),
        ("stages.rl.length.wieght", 1, "stages.rl.length.wieght: unknown key; did you mean 'weight'?"),
        ("stages.sft.objective.passes.0.weigths", [1], "unknown key; did you mean 'weights'?"),
        ("stages.pretrain.steps", 0, "stages.pretrain.steps: Input should be greater than or equal to 1 (given: 0)"),
        (
            "stages.rl.scorer",
            {"use": "jacobi", "pases": 2},
            "stages.rl.scorer.pases: unknown key; did you mean 'passes'?",
        ),
        (
            "stages.rl.scorer",
            {"use": "replay", "passes": 9},
            "stages.rl.scorer.passes: Input should be less than or equal",
        ),
        ("stages.rl.scorer", {"use": "jacobi", "passes": 1}, "never reads the feedback: it scores mode 'standard'"),
        ("stages.rl.scorer", {"use": "guess"}, "'guess' found using 'use' does not match any of the expected tags"),
        ("stages.rl.importance_cap", 0.5, "stages.rl.importance_cap: Input should be greater than or equal to 1"),
        ("stages.rl.importance_level", "sequence", "loss_type 'dapo' sums over tokens"),
        ("stages.rl.mode", "hard", "stages.rl.mode: Input should be 'standard', 'soft' or 'fused' (given: 'hard')"),
        ("stages.rl.length.weight", 0.9, "stages.rl.length.weight: Input should be less than or equal to 0.5"),
        ("stages.sft.init_from", "nowhere", "the training stages above it are ['pretrain', 'extend']"),
        ("stages.rl.kind", "grpo", "'grpo' found using 'kind' does not match any of the expected tags"),
        ("model.num_attention_heads", 5, "hidden_size 96 is not a multiple of num_attention_heads 5"),
        ("model.fusion", "none", "model.fusion 'none' has only mode 'standard'"),
        ("deepspeed.zero_stage", 4, "deepspeed.zero_stage: Input should be 0, 1, 2 or 3 (given: 4)"),
    ],
)
def test_a_mistake_is_named(values, path, value, message):
    node = values
    *parents, last = path.split(".")
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    node[int(last) if isinstance(node, list) else last] = value
    with pytest.raises(ConfigError) as error:
        parse_config(values)
    assert message in str(error.value)


def test_recomputed_latents_are_for_replay(values):
    values["stages"]["rl"] |= {"latents": "recompute", "scorer": {"use": "sequential"}}
    with pytest.raises(ConfigError, match="'recompute' is for scorer replay; sequential reads no recorded states"):
        parse_config(values)


def test_one_ratio_a_rollout_goes_with_a_loss_that_counts_rollouts(values):
    for loss_type in ("dr_grpo", "bnpo", "cispo"):
        values["stages"]["rl"] |= {"importance_level": "sequence", "loss_type": loss_type}
        with pytest.raises(ConfigError, match=f"loss_type '{loss_type}' sums over tokens.*set loss_type to 'grpo'"):
            parse_config(values)
    values["stages"]["rl"]["loss_type"] = "grpo"
    assert parse_config(values).stages["rl"].importance_level == "sequence"


def test_all_mistakes_are_told_at_once(values):
    values["stages"]["rl"]["stepz"] = 1
    values["stages"]["sft"]["steps"] = -1
    with pytest.raises(ConfigError) as error:
        parse_config(values)
    assert len(str(error.value).splitlines()) == 2


def test_overrides_reach_into_mappings_and_lists():
    config = load_config("tiny", ["stages.pretrain.data.0.size=7", "seed=5", "stages.rl.mode=fused"])
    assert (config.stages["pretrain"].data[0].size, config.seed, config.stages["rl"].mode) == (7, 5, "fused")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not of the form dotted.key=value"),
        ("seed.x=1", "override seed.x: seed is a single value"),
        ("stages.pretrain.data.9.size=1", "is a list of 1"),
        ("stages.rl.sped=1", "stages.rl.sped: unknown key"),
    ],
)
def test_bad_overrides(override, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        load_config("tiny", [override])


def test_unreadable_files(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(broken)
    broken.write_text("- 1")
    with pytest.raises(ConfigError, match="must hold a mapping"):
        load_config(broken)


def test_source_of_follows_the_training_stages(values):
    before = parse_config(copy.deepcopy(values))
    assert [before.source_of(name) for name in before.stages] == [None, "pretrain", "extend", "sft", "sft", "rl"]
    values["stages"]["rl"]["init_from"] = "pretrain"
    assert parse_config(values).source_of("rl") == "pretrain"
