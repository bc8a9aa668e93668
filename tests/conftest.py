"""One thread a process, here and in what tests start: two that spin on shared cores are many times slower."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest


@pytest.fixture
def level(request, monkeypatch):
    """The sandbox level in force, for tests that are parametrised by it."""
    from reward import sandbox

    monkeypatch.setattr(sandbox, "level_in_force", lambda: request.param)
    return request.param
