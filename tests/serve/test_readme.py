"""The examples of the README run as they stand, but for the port and what the engine is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.proxies import TOKEN, running
from tests.test_readme import examples_of, run_example

pytest.importorskip("openai", reason="the openai client is not installed")


@pytest.mark.kernel
def test_an_agent_and_a_trainer_need_little(engine: str, tmp_path: Path) -> None:
    """The agent's example is captured by its base URL alone, and the trainer's drops it from another process."""
    agent, trainer = examples_of("A proxy that captures")
    (tmp_path / "token.txt").write_text(TOKEN)

    with running("asyncio", engine, tmp_path / "captures") as proxy:
        agent = agent.replace("http://127.0.0.1:8100", proxy.url).replace('"policy"', '"form/vllm chat/0"')
        said = run_example(agent, tmp_path)
        trained = run_example(trainer.replace("http://127.0.0.1:8100", proxy.url), tmp_path)

    assert said == "<5><6><7><8>\n"
    assert trained == "1 calls to train on\n"
