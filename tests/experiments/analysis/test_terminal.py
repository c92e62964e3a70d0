import io

from rich.console import Console

from experiments.analysis import claims, records, terminal
from tests.experiments.analysis import synthetic


def printed(table) -> str:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_runs_stand_side_by_side():
    made = synthetic.make(records.make_record, seeds=1)
    text = printed(terminal.compare(made[:2]))
    for record in made[:2]:
        assert record["run"] in text
    assert "validation perplexity" in text and "sparsity" in text


def test_the_ledger_prints_its_verdicts():
    made = synthetic.make(records.make_record, seeds=3)
    study = synthetic.study(made)
    rows = claims.evaluate(records.records_table(made, study), study)
    text = printed(terminal.ledger(rows))
    assert "C001" in text and "not tested" in text
    few = printed(terminal.ledger(rows, verdicts=["holds"]))
    assert "not tested" not in few
