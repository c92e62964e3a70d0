"""Unpack the pieces beside this file and train their runs; needs Python and no network.

    python go.py --to FOLDER [--minutes 9] [--device cuda] [--at-once 3] [--back FOLDER]

The same command goes on where the last one stopped, or was stopped. Pieces may come one command at
a time. Finished runs' records are in BACK/records.tar.gz, which `python -m experiments keep --from
BACK` takes where the pack was made.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Files of a finished run that come back; its weights stay.
BACK = ("record.json", "train.json", "eval.json", "metrics.jsonl")
#: Seconds in which a training that is told to stop saves its state.
GRACE_S = 45


def gather(pieces: dict[str, str], folder: Path) -> None:
    """Copy the pieces that lie here, and unpack once all of them came."""
    kept = folder / "pieces"
    kept.mkdir(parents=True, exist_ok=True)
    for name, digest in pieces.items():
        here, there = HERE / name, kept / name
        if here.is_file() and not there.is_file():
            data = here.read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                sys.exit(f"Error: {here} is damaged; copy it again")
            part = there.with_suffix(".part")
            part.write_bytes(data)
            part.rename(there)
    missing = [name for name in pieces if not (kept / name).is_file()]
    if missing:
        sys.exit(f"still to come: {', '.join(missing)}; lay them beside go.py and repeat")
    whole = kept / "whole"
    with whole.open("wb") as stream:
        for name in pieces:
            stream.write((kept / name).read_bytes())
    with tarfile.open(whole) as archive:
        # Python 3.11.3 and older have no filters.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder)
    whole.unlink()
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        # dill, in `datasets`, takes modules elsewhere for a person's own and pickles them whole.
        zipfile.ZipFile(wheel).extractall(folder / "site-packages")
    (folder / "unpacked").touch()


def main() -> None:
    """Train until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--to", type=Path, required=True, help="folder that outlives a command")
    parser.add_argument("--minutes", type=float, default=9.0, help="time of this command")
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1 or cpu")
    parser.add_argument(
        "--at-once",
        type=int,
        choices=range(1, 9),
        metavar="N",
        default=1,
        help="runs that share the device, 1 to 8; none may need another",
    )
    parser.add_argument("--back", type=Path, help="folder for the records; default: TO/back")
    chosen = parser.parse_args()
    end = time.monotonic() + 60 * chosen.minutes
    facts = json.loads((HERE / "pack.json").read_text("utf-8"))
    folder = chosen.to.resolve()
    if not (folder / "unpacked").exists():
        gather(facts["pieces"], folder)
    places = [str(folder), str(folder / "site-packages"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)),
                   "HF_HUB_OFFLINE": "1"}  # fmt: skip

    def finish(run: dict) -> bool:
        """Train and score a run in the time that is left; returns whether its record is there."""
        record = folder / "results" / run["scale"] / "runs" / run["run"] / "record.json"
        score = ["evaluate", "--run", run["run"]]
        train = ["train", "--run", run["run"], "--device", chosen.device, "--score"]
        for command in (score,) if record.with_name("train.json").is_file() else (train, score):
            left = end - GRACE_S - time.monotonic()
            if record.is_file() or left <= 0:
                break
            if code := call(command, folder, environment, left):
                failed.extend([run["run"]] * (code > 0))
                break
        return record.is_file()

    runs, failed = facts["runs"], list[str]()
    with ThreadPoolExecutor(chosen.at_once) as pool:
        done = sum(pool.map(finish, runs))
    back = (chosen.back or folder / "back").resolve()
    back.mkdir(parents=True, exist_ok=True)
    with tarfile.open(back / "records.tar.gz", "w:gz") as archive:
        for file in sorted(folder.glob("results/*/runs/*/*")):
            if file.name in BACK and file.with_name("record.json").is_file():
                archive.add(file, file.relative_to(folder).as_posix())
    print(f"{done} of {len(runs)} runs are done; their records are in {back}/records.tar.gz")
    if failed:
        sys.exit(f"Error: {', '.join(failed)} failed, as said above")
    if done < len(runs):
        print("the same command goes on")


def call(command: list, folder: Path, environment: dict, seconds: float) -> int:
    """Exit status of a command of the studies; past its time it saves its state and ends: -1."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments", *command], cwd=folder, env=environment
    )
    try:
        return abs(process.wait(seconds))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return -1


if __name__ == "__main__":
    main()
