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
    "fbt_rl.config.sections": 0,
    "fbt_rl.config.rl": 0,
    "fbt_rl.config.file": 0,
    "fbt_rl.artifacts": 0,
    "fbt_rl.data.problems": 0,
    "fbt_rl.data.tables": 0,
    "fbt_rl.report": 0,
    "fbt_rl.report.answers": 0,
    "fbt_rl.report.charts": 0,
    "fbt_rl.report.examples": 0,
    "fbt_rl.report.paint": 0,
    "fbt_rl.report.groups": 0,
    "fbt_rl.report.reference": 0,
    "fbt_rl.report.text": 0,
    "fbt_rl.analysis.statistics": 0,
    "fbt_rl.analysis.compare": 0,
    "fbt_rl.analysis.arms": 0,
    "fbt_rl.analysis.others.field_map": 0,
    "fbt_rl.analysis.findings": 0,
    "fbt_rl.analysis.others.generations": 0,
    "fbt_rl.analysis.sides": 0,
    "fbt_rl.analysis.summary": 0,
    "fbt_rl.analysis.table": 0,
    "fbt_rl.analysis.temperature": 0,
    "fbt_rl.analysis.others.written_answers": 0,
    "fbt_rl.config.presets": 0,
    "fbt_rl.config.task_presets": 0,
    "reward": 0,
    "fbt_rl.model": 1,
    "fbt_rl.data.tokenization": 1,
    "fbt_rl.data.tasks": 1,
    "fbt_rl.decoding.cache": 1,
    "fbt_rl.decoding": 2,
    "fbt_rl.grading": 2,
    "fbt_rl.training": 2,
    "fbt_rl.evaluation": 2,
    "pretrain": 3,
    "sft": 3,
    "rl": 3,
    "fbt_rl.driver.inputs": 0,
    "fbt_rl.driver.resources": 0,
    "fbt_rl.driver.lock": 0,
    "fbt_rl.driver.reaper": 0,
    "fbt_rl.driver.plan": 4,
    "fbt_rl.driver.preflight": 4,
    "fbt_rl.driver.progress": 4,
    "fbt_rl.driver.provenance": 4,
    "fbt_rl.driver.worker": 4,
    "fbt_rl.driver.pipeline": 4,
    "fbt_rl.driver.cluster": 4,
    "fbt_rl.driver.jobs": 4,
    "fbt_rl.cli": 4,
    "fbt_rl.driver.evaluate": 4,
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
    if floor(module) == 4 and module != "fbt_rl.driver.cluster":
        assert not top & HEAVY
    if module != "fbt_rl.driver.cluster":
        assert "ray" not in top


def test_files_are_short():
    long = {module: n for module, path in MODULES.items() if (n := path.read_text().count("\n")) > 400}
    assert not long
