"""One `snakemake` command: its checked configuration, and the inputs and parameters of rules.

Snakemake imports this module at parse time, so it imports neither torch nor pandas. Only the scales
that a command names are expanded.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from experiments import data
from experiments.digest import file_digest
from experiments.errors import did_you_mean
from experiments.evaluation.suite import evaluation_code_hash
from experiments.specs import code, cost, trials
from experiments.specs.code import ROOT
from experiments.specs.expand import all_runs, computation_costs
from experiments.specs.lookup import RUNS_OF, find_runs, planned_study
from experiments.specs.read import check_study, load_study, study_names
from experiments.specs.run import Run
from experiments.specs.schema import NAME, SCALES, SpecError, Study, check_choice, module_names
from experiments.store import paths, reference, verification
from experiments.store.io import read_json, write_json
from experiments.store.parquet import TABLES
from experiments.strict import read_yaml

CHECKED = Path(".snakemake/checked")
RERUNS = Path("state/reruns.json")
#: What each key of the configuration is without one, and what it may be.
DEFAULTS: dict[str, Any] = read_yaml((ROOT / "config" / "config.yaml").read_text("utf-8"))
SCHEMA = json.loads((ROOT / "workflow" / "schemas" / "config.schema.json").read_text("utf-8"))[
    "properties"
]


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, if every key and value of ``--config`` is allowed."""
    # Snakemake reads numbers, True and False of the command line, but not false or null.
    words = {"true": True, "false": False, "null": None}
    config = DEFAULTS | {k: words.get(v, v) if type(v) is str else v for k, v in config.items()}
    for key, value in config.items():
        if key not in SCHEMA:
            raise SpecError(
                f"unknown config key {key!r} with the value {value!r}: known are "
                f"{', '.join(SCHEMA)}{did_you_mean(str(key), SCHEMA)}"
            )
        rule = SCHEMA[key]
        if "enum" in rule and value not in rule["enum"]:
            check_choice(key, value, filter(None, rule["enum"]))
        if not Draft202012Validator(rule).is_valid(value):
            raise SpecError(f"{key} is {value!r}, but must be {rule['errorMessage']}")
    check_study(config["study"], "all")
    if config["mirror"] is not None:
        data.mirror_root(config["mirror"])
    return config


class Request:
    """A checked configuration.

    Raises:
        SpecError: If a key or value is wrong, or a study that it needs; one sentence.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = checked(config)
        run = str(self.config["run"])
        #: The runs that ``--config run=`` names, to train them again.
        self.chosen = [] if run == "none" else find_runs(run)
        self.scale: str = self.chosen[0].scale if self.chosen else self.config["scale"]
        #: Errors of studies that nothing was asked of, by their names.
        self.broken: dict[str, SpecError] = {}
        self.runs(self.scale)
        asked = [self.config["study"], *(study for run in self.chosen for study in run.studies)]
        for name in self.broken:
            if name in asked or (self.config["study"] == "all" and not self.chosen):
                raise self.broken[name]
        self.studies = {name: load_study(name) for name in study_names() if name not in self.broken}
        self.reruns, unfinished = read_reruns()
        if unfinished != sorted(run.id for run in self.chosen):  # else the same command goes on
            for each in self.chosen:
                self.reruns[each.id] = self.reruns.get(each.id, 0) + 1

    @functools.cache  # noqa: B019 (one request lives as long as its process)
    def runs(self, scale: str) -> dict[str, Run]:
        """All runs of a scale by id."""
        return all_runs(scale, broken=self.broken)

    def run(self, wildcards: Any) -> Run:
        """The run that a rule's wildcards ``scale`` and ``run`` name."""
        runs = self.runs(wildcards.scale)
        if wildcards.run not in runs:
            check_choice("run", wildcards.run, runs, RUNS_OF.format(wildcards.scale))
        return runs[wildcards.run]

    @property
    def environment(self) -> dict[str, str]:
        """Where data come from, for the jobs' environment.

        As a parameter, naming a mirror would rebuild every dataset and retrain every run.
        """
        found = {}
        if self.config["mirror"] is not None:
            found["SPARSE_MIRROR"] = str(self.config["mirror"])
        if not self.config["offline"]:
            found["HF_HUB_OFFLINE"] = "0"
        return found

    def warnings(self) -> list[str]:
        """Sentences on missing data, broken studies, and one that has nothing at the scale."""
        found = [f"{name} is left out: {error}" for name, error in self.broken.items()]
        study, shown = self.config["study"], self.shown(self.scale)
        if self.chosen or self.config["reuse"] != "only":
            names, runs = {*shown}, self.runs(self.scale).values()
            wanted = self.chosen or [run for run in runs if names & {*run.studies}]
            problems = map(self._missing, {run.spec.data.label: run for run in wanted}.values())
            found += [f"Missing data: {problem}" for problem in problems if problem]
        if not shown:
            found.append(
                f"Nothing to do: study {study!r} has nothing at scale {self.scale!r}; its scales "
                f"are {', '.join(self.studies[study].scales)}."
            )
        return found

    def _missing(self, run: Run) -> str | None:
        """One sentence on a run's missing data, if they neither lie here nor can be made here."""
        if not self.config["offline"] or (paths.data(run.spec.data.label) / "meta.json").is_file():
            return None
        tokenizer, mirror = getattr(run.spec.data, "tokenizer", None), self.config["mirror"]
        return data.available(run.spec.data.name, mirror, tokenizer=tokenizer)

    def check_place(self) -> None:
        """Raise `SpecError` where this folder cannot be written, or no committed record be read."""
        for folder in (Path(), paths.RESULTS):
            if folder.exists() and not os.access(folder, os.W_OK):
                raise SpecError(f"{folder.resolve()} cannot be written; work in a copy")
        if self.chosen or self.config["reuse"] != "none":
            reference.entries()

    def check_library(self) -> None:
        """Let the library check sparsity configurations and the device, once per change."""
        device = self.config["device"]
        if not self.chosen and self.config["reuse"] == "only":
            return  # nothing is trained
        specs: list[tuple[Any, ...]] = []
        study = self.config["study"]
        one = [] if study == "all" or self.chosen else ["--study", study]
        for run in self.runs(self.scale).values():
            if one and study not in run.studies:
                continue
            spec = run.spec
            specs.append((spec.mask_config(), spec.final_sparsity, spec.recipe.steps, spec.suite))
            if spec.transform is not None:
                specs.append((spec.transform.to_json(), spec.model.model_dump(), spec.data.label))
        library = ROOT / "sparse_lib"
        files = [library / "configure.py", library / "ift/transformation.py"]
        files += sorted(library.glob("algorithms/*.py"))
        suites = sorted((ROOT / "experiments/evaluation/suites").glob("*.yaml"))
        hashes = [code.code_hash(*files), *map(file_digest, suites)]
        mark = CHECKED / code.digest([specs, hashes])
        if device in ("cpu", "auto") and mark.exists():
            return
        done = subprocess.run(
            [sys.executable, "-m", "experiments", "check"]
            + ["--scale", self.scale, "--device", device, *one],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise SpecError(said.removeprefix("Error: "))
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def committed_files(self, wildcards: Any) -> list[str]:
        """The files of the committed records that stand for runs of a study."""
        known, (_, ids) = reference.entries(), self.records(wildcards.scale, wildcards.study)
        folders = {known[run].folder for run in ids}
        files = sorted(folder / f"{name}.parquet" for folder in folders for name in TABLES)
        return [os.path.relpath(file, ROOT) for file in files]

    @functools.cache  # noqa: B019 (one request lives as long as its process)
    def records(self, scale: str, study: str) -> tuple[list[str], list[str]]:
        """Files of the records that a study's runs have or get here, and ids of the other runs.

        For those their committed records stand, where asked for and fit. While single runs are
        redone, no other run is trained: the records at hand stand for them.
        """
        chosen = {run.id for run in self.chosen}
        files: list[str] = []
        ids: list[str] = []
        for run in self.runs(scale).values():
            if study not in run.studies:
                continue
            own = paths.run(run.scale, run.id) / "record.json"
            makes = not self.chosen or run.id in chosen or own.exists()
            borrows = run.id not in chosen and (self.config["reuse"] != "none" or not makes)
            if borrows and reference.reusable(run):
                ids.append(run.id)
            elif makes and (self.config["reuse"] != "only" or run.id in chosen):
                files.append(own.as_posix())
        return files, ids

    def rerun_pages(self) -> list[str]:
        """Pages of the studies whose runs are redone."""
        if not self.chosen:
            raise SpecError("run is none: rerun needs --config run=<run id>")
        studies = sorted({study for run in self.chosen for study in run.studies})
        return [f"{paths.page(self.scale, study).as_posix()}/index.html" for study in studies]

    def shown(self, scale: str) -> dict[str, Study]:
        """The studies that are asked for and have something at a scale."""
        asked = self.config["study"]
        return {
            name: study
            for name, study in self.studies.items()
            if asked in ("all", name) and study.shows(scale)
        }

    def pages(self, scale: str) -> list[str]:
        """Pages of the chosen studies."""
        return [f"reports/{scale}/{name}/index.html" for name in self.shown(scale)]

    def evidence(self, scale: str) -> list[str]:
        """Tables of the studies at hand: a result may rest on the runs and trials of several.

        While single runs are redone, these are the studies that have the runs.
        """
        named = {study for run in self.chosen for study in run.studies}
        return [
            f"results/{scale}/{name}/records.csv"
            for name in self.shown(scale)
            if not self.chosen or name in named
        ]

    def figures(self, scale: str) -> list[str]:
        """Figures of the chosen studies in the formats of papers, and their data."""
        return [
            f"reports/{scale}/{name}/figures/{figure}.{suffix}"
            for name, study in self.shown(scale).items()
            for figure in study.figures
            for suffix in ("svg", "pdf", "csv")
        ]

    def targets(self, scale: str) -> list[str]:
        """Everything that a report shows, and the records under it: what is deleted comes back."""
        found = [f"reports/{scale}/index.html", *self.pages(scale)] if self.shown(scale) else []
        for name, study in self.shown(scale).items():
            found += [f"reports/{scale}/{name}/figures/{figure}.png" for figure in study.figures]
            found += [f"reports/{scale}/{name}/tables/{table}.csv" for table in study.tables]
            found += self.computations(name, scale)
            found += self.records(scale, name)[0]
        return list(dict.fromkeys(found))

    def train_inputs(self, wildcards: Any) -> list[str]:
        """Prepared data, and for a second phase what the first one wrote."""
        return self._inputs(self.run(wildcards), paths.run, "train.json", "model")

    def verify_inputs(self, wildcards: Any) -> list[str]:
        """Prepared data, and for a second phase the first one, trained again too."""
        return self._inputs(self.run(wildcards), paths.verified, "record.json")

    def _inputs(self, run: Run, folder: Callable[[str, str], Path], *names: str) -> list[str]:
        files = [paths.data(run.spec.data.label) / "meta.json"]
        if run.first is not None:
            files += [folder(run.scale, run.first) / name for name in names]
        return [file.as_posix() for file in files]

    def verified(self) -> list[str]:
        """New records of the committed runs that are asked for."""
        shown = {*self.shown(self.scale)}
        runs = self.chosen or [r for r in self.runs(self.scale).values() if {*r.studies} & shown]
        found = reference.recorded(runs, " ".join(self.verify_options()))
        return [(paths.verified(self.scale, run.id) / "record.json").as_posix() for run in found]

    def verify_options(self) -> list[str]:
        """Options of the command ``verify`` for what is asked for."""
        if self.chosen:
            return ["--run", ",".join(run.id for run in self.chosen)]
        study = self.config["study"]
        return ["--scale", self.scale, *(["--study", study] if study != "all" else [])]

    def preparation_hash(self, wildcards: Any) -> str:
        """Hash of the code that prepares the data of one folder."""
        for scale in (self.scale, *SCALES):
            for run in self.runs(scale).values():
                if run.spec.data.label == wildcards.data:
                    tokenizer = getattr(run.spec.data, "tokenizer", None)
                    names = filter(None, (run.spec.data.name, tokenizer))
                    file, *more = map(data.file_of, names)
                    return code.preparation_code_hash(file, run.spec.task, *more)
        raise SpecError(f"data is {wildcards.data!r}, which no study uses")

    def evaluation_hash(self, wildcards: Any) -> str:
        """Hash of the code and the suite that score a run."""
        spec = self.run(wildcards).spec
        return evaluation_code_hash(spec.task, str(spec.suite))

    def study_hash(self, study: str, scale: str) -> str:
        """Changes with the study's file, its runs, and what else its results depend on."""
        facts = planned_study(study, scale)
        # Pages of trials name what evidence trains with.
        more = trials.taken_by(facts) if facts.trials else None
        return code.digest([facts.to_json(), more])

    def page_hash(self, study: str, scale: str) -> str:
        """Changes with the study and with the code of what its page shows."""
        shown = self.studies[study]
        kinds = {"tables": shown.tables, "figures": shown.figures}
        hashes = [code.analysis_code_hash(kind, name) for kind in kinds for name in kinds[kind]]
        return code.digest([self.study_hash(study, scale), self.index_hash(), hashes])

    def index_hash(self) -> str:
        """Changes with the code of pages and with what `verify` found of committed runs."""
        return code.digest([code.page_code_hash(), verification.kept()])

    def computations(self, study: str, scale: str) -> list[str]:
        """Folders of tables that the study's results need beside its runs."""
        names = [computation.name for computation in self.studies[study].computations]
        return [paths.computation(scale, name).as_posix() for name in names]

    def cost(self, wildcards: Any) -> float:
        """Expected core-seconds of the run or computation that wildcards name; 0 without one."""
        scale, run, made = (getattr(wildcards, key, "") for key in ("scale", "run", "computation"))
        if made:
            return computation_costs(scale)[made]
        return self.runs(scale)[run].core_seconds if run else 0.0

    def gpus(self, wildcards: Any) -> int:
        """GPUs of a run's training or evaluation. ``auto`` takes what this machine has."""
        device = self.config["device"]
        return int(shutil.which("nvidia-smi") is not None if device == "auto" else "cuda" in device)

    def memory_mb(self, wildcards: Any, attempt: int = 1) -> int:
        """Memory of a run's job; more where that was too little."""
        return attempt * cost.memory_mb(self.run(wildcards).spec)

    def computing(self) -> list[str]:
        """Options of ``train`` for what the command says in place of the recipe."""
        precision = self.config["precision"]
        words = [] if precision is None else [f"--precision={precision}"]
        if self.config["compile"] is not None:
            words.append("--compile" if self.config["compile"] else "--no-compile")
        return words

    def minutes(self, wildcards: Any, attempt: int = 1) -> int:
        """Limit of a job: ten times what its study expects, at least a quarter of an hour."""
        return attempt * max(15, round(10 * self.cost(wildcards) / 60))

    def note_reruns(self, *, done: bool = False) -> None:
        """Note how often runs were asked for again, and whether all of them are done."""
        if self.chosen:
            unfinished = [] if done else sorted(run.id for run in self.chosen)
            RERUNS.parent.mkdir(exist_ok=True)
            write_json(RERUNS, {"times": self.reruns, "unfinished": unfinished})


def read_reruns() -> tuple[dict[str, int], list[str]]:
    """How often each run was asked for again, and those of the last command if it did not end.

    The number is a parameter of a run's training, so one more makes Snakemake train that run, and a
    later command without ``run`` finds nothing to do. A command that was interrupted goes on when
    it is repeated: what it trained already is not trained once more.
    """
    noted = read_json(RERUNS) if RERUNS.is_file() else {"times": {}, "unfinished": []}
    return noted["times"], noted["unfinished"]


def this_python_and_code_first() -> dict[str, str]:
    """The variables by which jobs that call ``python`` get this interpreter, and this code.

    Also where the working folder has a package ``experiments``, which Python would prefer.
    The interpreter's path as a parameter of the rules would make another spelling of it, or a moved
    folder, train everything again.
    """
    first = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(ROOT)}
    rest = {"PATH": os.defpath, "PYTHONPATH": "", **os.environ}
    paths = {key: os.pathsep.join(filter(None, [first[key], rest[key]])) for key in first}
    return {**paths, "PYTHONSAFEPATH": "1"}


def wildcards() -> dict[str, str]:
    """Regular expressions of the rules' wildcards."""
    folder = ROOT / "experiments"
    known = {
        "scale": SCALES,
        "study": study_names(),
        "computation": module_names(folder / "computations"),
        "figure": module_names(folder / "analysis" / "figures"),
    }
    found = {key: "|".join(map(re.escape, names)) for key, names in known.items()}
    return {**found, "run": NAME, "data": NAME}
