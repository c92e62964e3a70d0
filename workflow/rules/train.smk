rule train:
    """Train one run; an interrupted one goes on from state/."""
    input:
        train_inputs,
    output:
        summary="results/{scale}/runs/{run}/train.json",
        metrics="results/{scale}/runs/{run}/metrics.jsonl",
        model=directory("results/{scale}/runs/{run}/model"),
    log:
        "logs/train/{scale}/{run}.log",
    retries: 1
    threads: 1
    resources:
        gpu=1 if config["device"] == "cuda" else 0,
    params:
        python=PYTHON,
        spec=lambda wildcards: ALL_RUNS[wildcards.run].spec_hash,
        code=lambda wildcards: plan.training_code_hash(ALL_RUNS[wildcards.run].spec),
        reruns=lambda wildcards: RERUNS.get(wildcards.run, 0),
        device=config["device"],
        execution=config["execution"],
    shell:
        "{params.python} -m experiments train --run {wildcards.run} --log {log}"
        " --threads {threads} --device {params.device} --execution {params.execution} 2>> {log}"
