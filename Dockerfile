# The pinned environment of the studies, for clusters that run containers:
#   docker build --build-arg TORCH_INDEX=<address of the wheels for your CUDA> -t REGISTRY/sparse-lib .
# All but torch is checked by hash.
ARG BASE=python:3.11-slim
FROM ${BASE}

ARG TORCH_INDEX=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sparse-lib
COPY requirements.lock constraints.txt ./
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)" \
    && pip install --no-cache-dir --require-hashes --no-deps -r requirements.lock

# The image has the kernels compiled; the sources that a job runs are those of its workflow.
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python -m experiments check --scale smoke

ENV OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
