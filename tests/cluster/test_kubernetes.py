"""What of the Kubernetes profile and its image can be tested without a cluster."""

import re
import subprocess
import sys

import pytest
import yaml

from experiments.specs.code import ROOT


@pytest.mark.slow
def test_the_profile_plans_the_smoke_scale_without_its_plugins(tmp_path):
    profile = yaml.safe_load((ROOT / "profiles/kubernetes/profile.yaml").read_text())
    plugins = {"executor": "kubernetes", "default-storage-provider": "s3"}
    assert {key: profile.pop(key) for key in plugins} == plugins
    assert profile.pop("shared-fs-usage") == ["none"]  # needs the storage
    (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
    words = ["-n", "reproduce", "--workflow-profile", str(tmp_path), "--directory", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words, "--snakefile", str(ROOT / "Snakefile")]
        + ["--config", "scale=smoke", "study=spdf"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert re.search(r"^train +\d+$", text, re.MULTILINE)


def test_the_image_is_made_from_the_pins():
    text = (ROOT / "Dockerfile").read_text()
    copied = [
        name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()
    ]
    assert all((ROOT / name).exists() for name in copied)
    assert "--require-hashes --no-deps -r requirements.lock" in text
    assert "grep '^torch==' constraints.txt" in text
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ".git" in ignored and not {"requirements.lock", "constraints.txt"} & {*ignored}
