"""Who may import whom: a module sees only its own floor and those below (docs/architecture.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("fbt_rl", "pretrain", "sft", "rl", "reward")
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "ray", "datasets"}

# The longest matching prefix decides.
FLOORS = {
    "fbt_rl": 0,  # the package itself: a version and nothing else
    "fbt_rl.config": 0,
    "fbt_rl.config_base": 0,
    "fbt_rl.config_rl": 0,
    "fbt_rl.config_file": 0,
    "fbt_rl.artifacts": 0,
    "fbt_rl.integrity": 0,
    "fbt_rl.data_files": 0,
    "fbt_rl.table_files": 0,
    "fbt_rl.report": 0,
    "fbt_rl.report_answers": 0,
    "fbt_rl.report_charts": 0,
    "fbt_rl.report_examples": 0,
    "fbt_rl.report_figures": 0,
    "fbt_rl.report_groups": 0,
    "fbt_rl.report_reference": 0,
    "fbt_rl.report_text": 0,
    "fbt_rl.evaluation.statistics": 0,
    "fbt_rl.evaluation.compare": 0,
    "fbt_rl.evaluation.arms": 0,
    "fbt_rl.evaluation.field_map": 0,
    "fbt_rl.evaluation.findings": 0,
    "fbt_rl.evaluation.generations": 0,
    "fbt_rl.evaluation.sides": 0,
    "fbt_rl.evaluation.summary": 0,
    "fbt_rl.evaluation.table": 0,
    "fbt_rl.evaluation.temperature": 0,
    "fbt_rl.evaluation.written_answers": 0,
    "fbt_rl.presets": 0,
    "fbt_rl.task_presets": 0,
    "reward": 0,
    "fbt_rl.model": 1,
    "fbt_rl.tokenization": 1,
    "fbt_rl.tasks": 1,
    "fbt_rl.cache": 1,
    "fbt_rl.decoding": 2,
    "fbt_rl.grading": 2,
    "fbt_rl.training": 2,
    "fbt_rl.evaluation": 2,
    "pretrain": 3,
    "sft": 3,
    "rl": 3,
    "fbt_rl.inputs": 0,
    "fbt_rl.resources": 0,
    "fbt_rl.lock": 0,
    "fbt_rl.reaper": 0,
    "fbt_rl.plan": 4,
    "fbt_rl.preflight": 4,
    "fbt_rl.progress": 4,
    "fbt_rl.provenance": 4,
    "fbt_rl.worker": 4,
    "fbt_rl.pipeline": 4,
    "fbt_rl.cluster": 4,
    "fbt_rl.jobs": 4,
    "fbt_rl.cli": 4,
    "fbt_rl.eval_commands": 4,
}


def modules():
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def floor(module: str) -> int:
    names = [name for name in FLOORS if module == name or module.startswith(name + ".")]
    assert names, f"{module} has no floor: add it to FLOORS"
    best = max(names, key=len)
    assert best != "fbt_rl" or module == "fbt_rl", f"{module} has no floor: add it to FLOORS"
    return FLOORS[best]


def imports(path: Path, top_only: bool) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = dict(modules())


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module):
    mine = floor(module)
    ours = {name for name in imports(MODULES[module], top_only=False) if name in MODULES}
    assert not {name for name in ours if floor(name) > mine}
    if module.split(".")[0] in ("pretrain", "sft", "rl"):
        assert not {n for n in ours if n.split(".")[0] in {"pretrain", "sft", "rl"} - {module.split(".")[0]}}


@pytest.mark.parametrize("module", MODULES)
def test_heavy_imports_stay_where_they_belong(module):
    top = {name.split(".")[0] for name in imports(MODULES[module], top_only=True)}
    everywhere = {name.split(".")[0] for name in imports(MODULES[module], top_only=False)}
    if floor(module) == 0:
        assert not everywhere & HEAVY
    if floor(module) == 4 and module != "fbt_rl.cluster":
        assert not top & HEAVY
    if module != "fbt_rl.cluster":
        assert "ray" not in top


def test_files_are_short():
    long = {module: n for module, path in MODULES.items() if (n := path.read_text().count("\n")) > 400}
    assert not long
