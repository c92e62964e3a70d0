import io

from rich.console import Console

from experiments.cli import terminal
from experiments.store.record import Record
from tests.experiments.analysis import kept


def printed(table) -> str:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_runs_stand_side_by_side():
    made = kept.make(seeds=1)
    named = [(record["run"], Record.model_validate(record)) for record in made[:2]]
    text = printed(terminal.compare(named))
    for record in made[:2]:
        assert record["run"] in text
    assert "validation perplexity" in text and "sparsity" in text
