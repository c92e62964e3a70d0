import gc
import os
import sys

from filelock import FileLock, Timeout
from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

# The studies are no package: those beside the Snakefile run, wherever its jobs do.
sys.path.insert(0, os.path.realpath(f"{workflow.current_basedir}/../.."))

try:
    from experiments import preload, progress, request
except ModuleNotFoundError as error:
    raise WorkflowError(
        f"{error}: the rules run in a clone of their repository; name its Snakefile in "
        "`module`, or start with PYTHONPATH=<clone>"
    ) from None
from experiments.errors import UserError
from experiments.specs import code

# A thousand runs are millions of objects that live to the end; looking for garbage among them
# as often as Python does by default is a seventh of the start.
gc.set_threshold(100_000, 50, 100)

try:
    REQUEST = request.Request(config)
    REQUEST.check_place()
    REQUEST.check_library()
    for target, needs in (("rerun", REQUEST.rerun_pages), ("verify", REQUEST.verified)):
        if target in sys.argv:
            needs()
    for sentence in REQUEST.warnings():
        logger.warning(sentence)
except (UserError, OSError) as error:
    raise WorkflowError(str(error)) from None

os.environ.update(REQUEST.environment)
os.environ.update(request.this_python_and_code_first())
SCALE = REQUEST.scale
VERIFIES = "verify" in sys.argv  # which replaces no result
RESULTS_LOCK = FileLock("results/.lock")
PROGRESS = progress.Progress()
logger.addFilter(PROGRESS)


wildcard_constraints:
    **request.wildcards(),


onstart:
    try:
        RESULTS_LOCK.acquire(timeout=0)
    except Timeout:
        raise WorkflowError(
            "another snakemake is working on results/; wait for it or stop it"
        )
    if not VERIFIES:
        REQUEST.note_reruns()
    PROGRESS.plan(
        (
            (
                workflow.dag.jobid(job),
                *progress.name_and_cost(job, REQUEST.cost(job.wildcards)),
            )
            for job in workflow.dag.needrun_jobs()
        ),
        workflow.resource_settings.cores or 1,
    )
    if (
        REQUEST.config["preload"]
        and sys.platform == "linux"
        and workflow.local_exec
        and not workflow.deployment_settings.deployment_method
    ):
        preload.start(SCALE)


onsuccess:
    if not VERIFIES:
        REQUEST.note_reruns(done=True)
        logger.info(f"Pages and figures are in reports/{SCALE}/.")


onerror:
    if not VERIFIES:  # which may have ended, with a run that differs
        logger.error("The same command goes on where this one stopped.")
