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
