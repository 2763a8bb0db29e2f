"""The README is true: its examples run as they stand, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import attrs
import pytest

import tokenstore
from tokenstore import StoreConfig, TokenCaptureStore
from tokenstore.cli import main
from tokenstore.testing import shaped_rollout
from tokenstore.trajectories import Fate, build

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text(encoding="utf-8")


def examples_of(section: str) -> list[str]:
    """Give the examples of a section, by its title."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


EXAMPLES = examples_of("Using it")
ENGINES = examples_of("From an engine's answer")
TRAINING = examples_of("Into training")


def run_example(text: str, folder: Path, *, warnings: str = "error") -> str:
    """Run an example as a script of its own and give what it printed."""
    script = folder / "example.py"
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", warnings, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}  # the checkout's package, also if it is not installed
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_are_four_short_examples() -> None:
    """A server and a trainer, under asyncio and under trio, about fifteen lines each."""
    assert ["asyncio" in example for example in EXAMPLES] == [True, True, False, False]
    assert ["trio" in example for example in EXAMPLES] == [False, False, True, True]
    assert max(len(example.strip().splitlines()) for example in EXAMPLES) <= 16


@pytest.mark.parametrize(
    ("server", "rollout", "printed"), [(0, "rollout-1", "call-1 [151644"), (2, "rollout-2", "1 call")]
)
def test_examples_run_as_they_stand(tmp_path: Path, server: int, rollout: str, printed: str) -> None:
    """The server's example stores a call, the trainer's reads it in another process and drops it."""
    assert run_example(EXAMPLES[server], tmp_path) == ""
    assert len(TokenCaptureStore(tmp_path / "captures").read_entries(rollout)) == 1

    assert run_example(EXAMPLES[server + 1], tmp_path).startswith(printed)
    assert TokenCaptureStore(tmp_path / "captures").read_entries(rollout) == []


@pytest.mark.parametrize(
    ("number", "rollout", "printed"),
    [
        (0, "rollout-3", ""),
        (1, None, "[271, 40] {'finish_reason': 'stop'}"),
        (2, None, "TokenEntry(rollout_id='rollout-5', model_call_id='call-1', prompt=2 ids, generation=1 ids)"),
        (3, "rollout-6", "[{'rollout_id': 'rollout-6', 'model_call_id': 'call-1', 'prompt_token_ids': [9906, 11]"),
    ],
)
def test_answers_become_entries_as_they_stand(tmp_path: Path, number: int, rollout: str | None, printed: str) -> None:
    """The example of each way in runs as it stands, and stores what it says."""
    assert run_example(ENGINES[number], tmp_path).startswith(printed)
    stored = [] if rollout is None else TokenCaptureStore(tmp_path / "captures").read_entries(rollout)

    assert [entry.generation_token_ids for entry in stored] == ([] if rollout is None else [[271]])


def test_there_is_a_short_example_of_each_way_in() -> None:
    """Each engine, and NeMo Gym, has an example of about fifteen lines."""
    names = ("vllm", "sglang", "llama_cpp", "nemo_gym")

    assert [name in example for name, example in zip(names, ENGINES, strict=True)] == [True] * 4
    assert max(len(example.strip().splitlines()) for example in ENGINES) <= 20


def test_the_trainer_loop_runs_as_it_stands(tmp_path: Path) -> None:
    """The loop of 25 lines trains and drops what is trainable, and leaves what is masked."""
    store = TokenCaptureStore(tmp_path / "captures")
    for call in shaped_rollout("branches", "good"):
        store.append(call)
    store.append(shaped_rollout("retries", "twice")[0])
    store.append(shaped_rollout("retries", "twice")[1])
    (loop,) = TRAINING
    built = build(store.freeze_now("good"))

    printed = run_example(loop, tmp_path).splitlines()

    assert len(loop.strip().splitlines()) <= 25
    trained = [f"{len(sample)} tokens, {sample.trained_tokens} trained, reward {sample.reward}" for sample in built]
    assert printed == [*trained, "good dropped", "twice masked: unresolved nothing_trained"]
    assert store.read_entries("good") == []
    assert len(store.read_entries("twice")) == 2


def test_fates_in_the_text_are_all_there_are() -> None:
    """The table of fates has a row for each."""
    section = README.split("## Into training")[1].split("\n## ")[0]

    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(get_args(Fate))


def test_both_commands_are_one_line_each() -> None:
    """The commands to try and to test are one line to copy, from a fresh environment on."""
    commands = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

    assert [command.count("\n") for command in commands] == [1, 1]
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]


def test_the_configuration_table_is_complete() -> None:
    """Each field of the configuration has a row in the table, and there is no other."""
    section = README.split("## Configuration")[1].split("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in attrs.fields(StoreConfig)]


def test_the_command_table_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """Each sub-command has a row in the table, and there is no other."""
    section = README.split("## Command line")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `tokenstore (\w+)", section, re.MULTILINE)

    main(["--help"])

    offered = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert rows == offered


def test_names_in_the_text_exist() -> None:
    """Every error that the README names is one of the package's."""
    names = set(re.findall(r"`(\w+Error)`", README))

    assert names
    assert [name for name in names if not hasattr(tokenstore, name)] == []


def test_source_files_in_the_text_exist() -> None:
    """Every file and folder in the reading order is there."""
    section = README.split("## Reading the source")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_]+(?:\.py|/))`", section)

    assert files
    assert [file for file in files if not (TOP / "tokenstore" / file).exists()] == []
