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
    threads: 1
    resources:
        gpu=REQUEST.gpus,
        mem_mb=REQUEST.memory_mb,
        runtime=REQUEST.minutes,
    params:
        spec=lambda wildcards: REQUEST.run(wildcards).spec.hash,
        code=lambda wildcards: code.training_code_hash(REQUEST.run(wildcards).spec),
        reruns=lambda wildcards: REQUEST.reruns.get(wildcards.run, 0),
        device=REQUEST.config["device"],
        execution=REQUEST.config["execution"],
        computing=REQUEST.computing(),
    shell:
        "python -m experiments train --run {wildcards.run:q} --log {log:q}"
        " --threads 1 --device {params.device:q} {params.computing:q}"
        " --execution {params.execution:q} --score 2>> {log:q}"
