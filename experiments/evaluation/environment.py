"""Environment variables of an evaluation."""

import os


def quiet_and_offline() -> None:
    """Set what is not set yet; call it before tqdm, datasets and lm_eval are imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
