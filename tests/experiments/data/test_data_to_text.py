"""Data-to-text datasets, shared tokenizers, and BLEU."""

import json

import pytest
import sacrebleu

from experiments import data
from experiments.data import base, webnlg_2017
from experiments.data.data_to_text import documents
from experiments.evaluation.lm.harness import Tasks
from experiments.evaluation.suite import load_suite
from experiments.store.io import read_jsonl
from experiments.tasks import lm as tasks_lm
from tests.experiments.data.mirrors import write_mirror

SENTENCES = ["Jacob leads Aarhus in Denmark .", "Aarhus in Denmark is led by Jacob ."]
SPLITS = ("train", "validation", "test")


def test_all_texts_of_equal_data_are_references_of_one_prompt_of_one_line():
    pairs = [("a[Aarhus],  b[river]", "It is by\nthe river ."), ("a[Pub]", "It is a pub ."),
             ("a[Aarhus],  b[river]", "By the river .")]  # fmt: skip
    references = {"a[Aarhus], b[river]\n": ["It is by the river .", "By the river ."],
                  "a[Pub]\n": ["It is a pub ."]}  # fmt: skip
    texts = documents(dict.fromkeys(SPLITS, pairs))
    for name in ("references.jsonl", "validation-references.jsonl"):
        assert {row["prompt"]: row["references"] for row in texts.extras[name]} == references
    expected = sorted(prompt + text for prompt, known in references.items() for text in known)
    assert all(sorted(found) == expected for found in texts.splits.values())
    facts = [["Aarhus_Airport", "cityServed", '"Aarhus, Denmark"'], ["Aarhus", "leader", "Jacob"]]
    said = "Aarhus Airport | cityServed | Aarhus, Denmark && Aarhus | leader | Jacob"
    assert webnlg_2017.line(facts) == said


@pytest.mark.parametrize(
    ("name", "sizes"), [("e2e-nlg", (42061, 4672, 4693)), ("webnlg-2017", (18049, 2262, 2491))]
)
def test_embedded_pairs_are_as_many_as_were_published(name, sizes):
    found = data.get(name).read(base.Source()).splits
    assert tuple(len(found[split]) for split in SPLITS) == sizes


def test_a_dataset_shares_the_tokenizer_of_another(tmp_path):
    mirror, rows = tmp_path / "mirror", dict.fromkeys(SPLITS, SENTENCES)
    write_mirror(mirror, "Salesforce/wikitext", rows, ["wikitext-2-v1"])
    write_mirror(mirror, "local/enwiki-2014-slice", rows)
    names = ("wikitext-2-v270", "enwiki-slice-v270", "a/enwiki-slice-v270")
    first, second, alone = (tmp_path / name for name in names)
    data.prepare("wikitext-2", out=first, vocab_size=270, mirror=mirror)
    options = {"vocab_size": 270, "tokenizer": "wikitext-2", "mirror": mirror}
    for out in (second, alone):  # beside the first one as prepared, and by itself
        data.prepare("enwiki-slice", out=out, **options)
    files = [folder / "tokenizer/tokenizer.json" for folder in (first, second, alone)]
    assert len({file.read_bytes() for file in files}) == 1
    assert data.available("enwiki-slice", mirror, tokenizer="wikitext-2") is None
    assert "Salesforce/wikitext" in data.available("wikipedia-start", tokenizer="wikitext-2")
    section = tasks_lm.Data(name="webnlg-2017", vocab_size=270, context=8, tokenizer="e2e-nlg")
    assert section.label == "webnlg-2017-v270-e2e-nlg"


class Writer:
    """In place of a model: writes what it is told for each prompt."""

    rank, world_size, max_length = 0, 1, 512
    truncated = frozenset()

    def __init__(self, texts):
        self.texts = texts

    def generate_until(self, requests):
        return [self.texts[request.args[0]] for request in requests]


def scored(task, rows, texts, file, folder):
    """The score of a task whose rows are in a file, where a model wrote these texts."""
    (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = load_suite(task)
    (score,) = Tasks(suite.tasks, folder, None).score(Writer(texts), suite, folder / "lm_eval")
    (sample,) = read_jsonl(folder / "lm_eval" / f"samples_{task}.jsonl")[:1]
    assert sample["doc"]["references"] and (folder / "lm_eval" / "results.json").is_file()
    return score


def test_bleu_takes_the_best_of_all_references_of_its_split(tmp_path):
    row, file = {"prompt": "a\n", "references": SENTENCES[:1]}, "validation-references.jsonl"
    score = scored("data_to_text_validation", [row], {"a\n": SENTENCES[0]}, file, tmp_path)
    assert score["split"] == "validation" and score["value"] == pytest.approx(100)
    references = {"a\n": SENTENCES, "b\n": ["Berlin is a city in Germany ."], "c\n": SENTENCES[:1]}
    texts = {"a\n": SENTENCES[1], "b\n": "Berlin is in Germany .", "c\n": "Jacob leads it ."}
    rows = [{"prompt": key, "references": value} for key, value in references.items()]
    score = scored("data_to_text", rows, texts, "references.jsonl", tmp_path)
    # sacrebleu itself allows for fewer references of a text, as None.
    streams = [[value[i] if i < len(value) else None for value in references.values()]
               for i in range(2)]  # fmt: skip
    expected = sacrebleu.corpus_bleu(list(texts.values()), streams).score
    assert (score["metric"], score["split"], score["num_items"]) == ("bleu", "test", 3)
    kept = {output["input"] + "\n": output for output in score["outputs"]}
    assert {key: output["output"] for key, output in kept.items()} == texts
    assert {key: output["references"] for key, output in kept.items()} == references
    assert kept["a\n"]["num_references"] == 2
    assert score["value"] == pytest.approx(expected) and 0 < expected < 100
