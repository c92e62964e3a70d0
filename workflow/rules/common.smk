import ast
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from filelock import FileLock, Timeout
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from experiments.specs import plan
from experiments.data import available

CONFIG_KEYS = (
    "scale",
    "study",
    "reuse",
    "mirror",
    "offline",
    "device",
    "execution",
    "run",
)
PYTHON = shlex.quote(sys.executable)
DATA = Path("resources/data")


def checked_plan():
    """All studies and runs; a wrong key anywhere is one sentence before any job."""
    for key, allowed in {
        **{key: CONFIG_KEYS for key in config if key not in CONFIG_KEYS},
    }.items():
        close = difflib.get_close_matches(key, allowed, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise plan.SpecError(
            f"unknown config key {key!r}: known are {', '.join(allowed)}{hint}"
        )
    for key in ("mirror", "offline", "run"):
        # Of the command line's values Snakemake reads numbers, True and False, but not false or null.
        if config[key] in ("true", "false", "null"):
            config[key] = json.loads(config[key])
    plan.check_choice("scale", config["scale"], plan.SCALES)
    plan.check_choice("study", config["study"], ["all", *plan.study_names()])
    plan.check_choice("reuse", config["reuse"], ["none", "reference", "only"])
    plan.check_choice("execution", config["execution"], plan.EXECUTIONS)
    if not isinstance(config["offline"], bool):
        raise plan.SpecError(
            f"offline is {config['offline']!r}, but must be true or false"
        )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(config["device"])):
        raise plan.SpecError(
            f"device is {config['device']!r}, but must be cpu, cuda or cuda:<number>"
        )
    if config["mirror"] is not None and not Path(str(config["mirror"])).is_dir():
        raise plan.SpecError(f"mirror is {config['mirror']!r}, which is no folder")
    runs = {scale: plan.all_runs(scale) for scale in plan.SCALES}
    again = [] if config["run"] is None else plan.find_runs(str(config["run"]))
    check_sparsity(runs)
    return {name: plan.load_study(name) for name in plan.study_names()}, runs, again


def check_sparsity(runs):
    """Let the library check the sparsity configurations, once per change of either."""
    specs = [
        (run.spec.sparsity, run.spec.transform and run.spec.transform.to_json())
        for table in runs.values()
        for run in table.values()
    ]
    code = plan.code_hash(
        plan.ROOT / "sparse_lib/configure.py",
        *sorted(plan.ROOT.glob("sparse_lib/algorithms/*.py")),
    )
    mark = Path(".snakemake/checked") / plan.digest([specs, code])
    if mark.exists():
        return
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "check"],
        capture_output=True,
        text=True,
        cwd=plan.ROOT,
    )
    if done.returncode:
        raise plan.SpecError(
            (done.stderr or done.stdout).strip().removeprefix("Error: ")
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def warn_missing_data(runs):
    """A sentence for each dataset that neither lies here nor can be made here."""
    for label, data in {r.data_label: r.spec.data for r in runs}.items():
        problem = None
        if config["offline"] and not (DATA / label / "meta.json").is_file():
            problem = available(
                data.name,
                mirror=MIRROR and Path(MIRROR),
                tokenizer=getattr(data, "tokenizer", None),
            )
        if problem:
            logger.warning(f"Missing data: {problem}")


try:
    STUDIES, RUNS, AGAIN = checked_plan()
except ValueError as error:
    raise WorkflowError(str(error)) from None

# Where data comes from goes to the jobs by the environment: as a parameter, naming a mirror would
# make every dataset anew, and with it every run.
if config["mirror"] is not None:
    os.environ.update(SPARSE_MIRROR=str(config["mirror"]))
if not config["offline"]:
    os.environ.update(HF_HUB_OFFLINE="0")
MIRROR = os.environ.get("SPARSE_MIRROR")

SCALE = AGAIN[0].scale if AGAIN else config["scale"]
ALL_RUNS = {run_id: run for table in RUNS.values() for run_id, run in table.items()}
RESULTS_LOCK = FileLock("results/.lock")

# How often each run was asked for again. The number is a parameter of its training, so one more
# makes Snakemake train that run, and a later command without `run` finds nothing to do.
RERUNS_FILE = Path("state/reruns.json")
RERUNS = json.loads(RERUNS_FILE.read_text()) if RERUNS_FILE.is_file() else {}
for run in AGAIN:
    RERUNS[run.id] = RERUNS.get(run.id, 0) + 1


def chosen(scale):
    """The studies that were asked for and have something at a scale."""
    return [
        name
        for name, study in STUDIES.items()
        if config["study"] in ("all", name) and study.shows(scale)
    ]


if AGAIN or config["reuse"] != "only":
    warn_missing_data(
        AGAIN
        or [run for run in RUNS[SCALE].values() if set(run.studies) & {*chosen(SCALE)}]
    )
if not chosen(SCALE):
    logger.warning(
        f"Nothing to do: study {config['study']!r} has nothing at scale {SCALE!r}; "
        f"its scales are {', '.join(STUDIES[config['study']].scales)}."
    )


def study_runs(wildcards):
    """Runs of one study at one scale."""
    return [
        run for run in RUNS[wildcards.scale].values() if wildcards.study in run.studies
    ]


def record_files(wildcards):
    """One record per run: its own, or the committed one where that is asked for and fits.

    While single runs are redone, no other run is trained: the records at hand stand for them.
    """
    again = {run.id for run in AGAIN}
    files = []
    for run in study_runs(wildcards):
        own = Path("results", run.scale, "runs", run.id, "record.json")
        makes = not AGAIN or run.id in again or own.exists()
        borrows = run.id not in again and (config["reuse"] != "none" or not makes)
        if borrows and plan.reusable(run, data_folder=DATA):
            files.append(run.reference.relative_to(plan.ROOT).as_posix())
        elif makes and (config["reuse"] != "only" or run.id in again):
            files.append(own.as_posix())
    return files


def redone_pages(wildcards):
    """Pages of the studies whose runs are redone, and the front page where there is one."""
    if not AGAIN:
        raise WorkflowError("run is None: rerun needs --config run=<run id>")
    studies = sorted({study for run in AGAIN for study in run.studies})
    front = f"reports/{SCALE}/index.html"
    pages = expand("reports/{scale}/{study}/index.html", scale=SCALE, study=studies)
    return [*pages, front] if Path(front).exists() else pages


def study_figures(wildcards):
    """The figures that a study's file names."""
    return expand(
        "reports/{scale}/{study}/figures/{figure}.svg",
        scale=wildcards.scale,
        study=wildcards.study,
        figure=STUDIES[wildcards.study].figures,
    )


def study_tables(wildcards):
    """The tables that a study's file names."""
    return expand(
        "reports/{scale}/{study}/tables/{table}.csv",
        scale=wildcards.scale,
        study=wildcards.study,
        table=STUDIES[wildcards.study].tables,
    )


def chosen_figures(scale):
    """All figures of the chosen studies."""
    return [
        f"reports/{scale}/{name}/figures/{figure}.svg"
        for name in chosen(scale)
        for figure in STUDIES[name].figures
    ]


def chosen_reports(scale):
    """Report pages of the chosen studies."""
    return expand(
        "reports/{scale}/{study}/index.html", scale=scale, study=chosen(scale)
    )


def study_computations(wildcards):
    """Folders of tables that the study's results need beside its runs."""
    return [
        f"results/{wildcards.scale}/computations/{computation.name}"
        for computation in STUDIES[wildcards.study].computations
    ]


def train_inputs(wildcards):
    """Prepared data, and for a second phase what the first one wrote."""
    run = ALL_RUNS[wildcards.run]
    files = [f"resources/data/{run.data_label}/meta.json"]
    if run.first is not None:
        folder = f"results/{run.scale}/runs/{run.first}"
        files += [f"{folder}/train.json", f"{folder}/model"]
    return files


def study_hash(wildcards):
    """Changes when the study's file or its runs change."""
    return plan.digest(plan.study_as_dict(STUDIES[wildcards.study], wildcards.scale))


def code(*paths):
    """Hash of what these files execute."""
    return plan.code_hash(*(plan.ROOT / path for path in paths))


def glob(pattern):
    """Files of the repository that match, in order."""
    return [path.relative_to(plan.ROOT) for path in sorted(plan.ROOT.glob(pattern))]


def files_hash(pattern):
    """Hash of the texts of all files that match."""
    return plan.digest([(plan.ROOT / path).read_text() for path in glob(pattern)])


def caption(path):
    """The module docstring of a figure."""
    return ast.get_docstring(ast.parse((plan.ROOT / path).read_text()))


wildcard_constraints:
    scale="|".join(plan.SCALES),
    study="|".join(STUDIES),
    run="[^/]+",
    data="[^/]+",
    computation="[a-z0-9_]+",
    figure="[a-z0-9_]+",
    table="[a-z0-9_]+",


onstart:
    try:
        RESULTS_LOCK.acquire(timeout=0)
    except Timeout:
        raise WorkflowError(
            "another snakemake is working on results/; wait for it or stop it"
        )
    if AGAIN:
        RERUNS_FILE.parent.mkdir(exist_ok=True)
        RERUNS_FILE.write_text(json.dumps(RERUNS, indent=1))
