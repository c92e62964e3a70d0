rule evaluate:
    """Score a trained model, and merge what the run wrote into its small record.

    `train` scores as well, so this finds the scores, unless the suite or its code changed since.
    """
    input:
        rules.train.output,
    output:
        scores="results/{scale}/runs/{run}/eval.json",
        record="results/{scale}/runs/{run}/record.json",
    log:
        "logs/evaluate/{scale}/{run}.log",
    resources:
        gpu=REQUEST.gpus,
        mem_mb=REQUEST.memory_mb,
        runtime=REQUEST.minutes,
    params:
        suite=lambda wildcards: REQUEST.run(wildcards).spec.suite,
        code=lambda wildcards: [
            REQUEST.evaluation_hash(wildcards),
            code.collecting_code_hash(),
        ],
    shell:
        "python -m experiments evaluate --run {wildcards.run:q} > {log:q} 2>&1"
