rule train:
    """Train one run; an interrupted one goes on from state/."""
    input:
        REQUEST.train_inputs,
    output:
        summary="results/{scale}/runs/{run}/train.json",
        metrics="results/{scale}/runs/{run}/metrics.jsonl",
        model=directory("results/{scale}/runs/{run}/model"),
    log:
        "logs/train/{scale}/{run}.log",
    retries: 1
    threads: 1
    resources:
        gpu=0 if config["device"] == "cpu" else 1,
        mem_mb=memory_mb,
        runtime=REQUEST.minutes,
    params:
        python=PYTHON,
        spec=lambda wildcards: REQUEST.run(wildcards).spec_hash,
        code=REQUEST.training_hash,
        reruns=lambda wildcards: REQUEST.reruns.get(wildcards.run, 0),
        device=config["device"],
        execution=config["execution"],
    shell:
        "{params.python:q} -m experiments train --run {wildcards.run:q} --log {log:q}"
        " --threads {threads} --device {params.device:q}"
        " --execution {params.execution:q} --score 2>> {log:q}"
