"""Who may import whom (docs/architecture.md): a folder is a room, and imports point downwards."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the bottom up. What stands side by side on a floor does not see each other.
FLOORS = """
    reward
    fbt_rl.configs
    fbt_rl.integrity  fbt_rl.config
    fbt_rl.artifacts
    fbt_rl.data  fbt_rl.model
    fbt_rl.analysis  fbt_rl.decoding  fbt_rl.grading  fbt_rl.training
    fbt_rl.report  fbt_rl.evaluation
    pretrain  sft  rl
    fbt_rl.driver
    fbt_rl.cli
"""
PLACE = {room: (floor, room) for floor, rooms in enumerate(FLOORS.split("\n")) for room in rooms.split()}
HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "ray", "datasets"}
LIGHT = (
    "reward",
    "fbt_rl.integrity",
    "fbt_rl.config",
    "fbt_rl.artifacts",
    "fbt_rl.analysis",
    "fbt_rl.report",
    "fbt_rl.data.tables",
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def place(module: str) -> tuple[int, str]:
    """The floor and the room of a module; the package itself holds a version and nothing else."""
    parts = module.split(".")
    return (-1, module) if module == "fbt_rl" else PLACE[".".join(parts[: 2 if parts[0] == "fbt_rl" else 1])]


def imports(nodes) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


PATHS = [path for top in ("fbt_rl", "pretrain", "sft", "rl", "reward") for path in sorted((ROOT / top).rglob("*.py"))]
TREES = {name_of(path): ast.parse(path.read_text()) for path in PATHS}
ANYWHERE = {module: imports(ast.walk(tree)) for module, tree in TREES.items()}
AT_THE_TOP = {module: {name.split(".")[0] for name in imports(tree.body)} for module, tree in TREES.items()}


def test_imports_point_downwards():
    arrows = [(module, name) for module, names in ANYWHERE.items() for name in names & TREES.keys()]
    assert len(arrows) > 300
    assert [(a, b) for a, b in arrows if place(b) != place(a) and place(b)[0] >= place(a)[0]] == []


def test_heavy_imports_stay_where_they_belong():
    light = [module for module in TREES if module.startswith(LIGHT)]
    assert [m for m in light if {name.split(".")[0] for name in ANYWHERE[m]} & HEAVY] == []
    assert [m for m, names in AT_THE_TOP.items() if "ray" in names] == ["fbt_rl.driver.cluster"]
    above = [m for m in TREES if m.startswith(("fbt_rl.driver", "fbt_rl.cli")) and m != "fbt_rl.driver.cluster"]
    assert [m for m in above if AT_THE_TOP[m] & HEAVY] == []
