from pathlib import Path

import numpy as np
import pytest

from experiments.data.files import seal


@pytest.fixture
def call(monkeypatch, capsys):
    """`python -m experiments ...` in this process: exit code and what it said."""
    from experiments.cli.app import main

    def calling(*arguments: object) -> tuple[int | str | None, str]:
        monkeypatch.setattr("sys.argv", ["experiments", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        message = ended.value.code if isinstance(ended.value.code, str) else ""
        return ended.value.code, f"{said.out}{said.err}{message}"

    return calling


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """3,000 tokens of 50 kinds in the layout of `experiments.data`."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        rng.integers(0, 50, 3000).astype(np.uint16).tofile(folder / f"{split}.bin")
    (folder / "tokenizer").mkdir()
    meta = {"name": "wikipedia-start", "hash": "random", "vocab_size": 50, "eos_id": 0}
    seal(folder, meta, folder.glob("*.bin"))
    return folder
