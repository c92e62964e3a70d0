import io

from rich.console import Console
from typer.testing import CliRunner

from experiments.analysis.claims import ledger as claims
from experiments.cli import terminal
from experiments.cli.app import app
from experiments.store import paths
from experiments.store.collect import records_table
from experiments.store.record import Record, make_record
from tests.experiments.analysis import synthetic


def printed(table) -> str:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_runs_stand_side_by_side():
    made = synthetic.make(make_record, seeds=1)
    text = printed(terminal.compare([Record.model_validate(record) for record in made[:2]]))
    for record in made[:2]:
        assert record["run"] in text
    assert "validation perplexity" in text and "sparsity" in text


def test_scores_of_classes_are_one_row_per_split():
    common = {"metric": "class_accuracy", "chance": 0.01, "num_items": 100}
    scores = [{"task": "images", "metric": "accuracy", "split": "test", "value": 0.31}]
    for split, low in (("validation", 0.2), ("test", 0.1)):
        for at in range(3):
            own = {"task": f"class:{at}", "split": split, "value": low + 0.2 * at}
            scores.append({**common, **own})
    lines = printed(terminal.scores({"scores": scores}, "scores")).splitlines()
    shown = [line.split("│") for line in lines if "classes" in line]
    assert [[cell.strip() for cell in row[1:-1]] for row in shown] == [
        ["3 classes", "class_accuracy", "validation", "0.2 to 0.6", "", "0.01", "300"],
        ["3 classes", "class_accuracy", "test", "0.1 to 0.5", "", "0.01", "300"],
    ]
    assert any("images" in line and "0.31" in line for line in lines)


def test_the_ledger_prints_its_verdicts():
    made = synthetic.make(make_record, seeds=3)
    study = synthetic.study(made)
    rows = claims.evaluate(records_table(made, study), study)
    text = printed(terminal.ledger(rows))
    for row in rows.to_dict("records"):
        assert row["id"] in text and row["verdict"] in text
    tested = rows[rows["num_seeds"] > 0].iloc[0]
    assert f"{tested['effect']:.6g} {tested['interval']}, {tested['num_seeds']} seeds" in text


def test_without_results_the_published_ledger_is_printed(tmp_path, monkeypatch):
    made = synthetic.make(make_record, seeds=3)
    study = synthetic.study(made)
    rows = claims.evaluate(records_table(made, study), study)
    folder = tmp_path / "reference" / "spdf"
    folder.mkdir(parents=True)
    rows.to_csv(folder / "claims.csv", index=False)
    monkeypatch.setattr(paths, "REFERENCE", tmp_path / "reference")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["claims", "--scale", "quick"])
    assert result.exit_code == 0
    assert "Claims of spdf, as published; scale quick has no results" in result.output
    assert "C001" in result.output
