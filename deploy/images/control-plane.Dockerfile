# The image of the control plane: control, gateway, watcher and operator are started from it. From the root of the repository:
#
#     docker build -f deploy/images/control-plane.Dockerfile -t rekindle-control-plane:0.1.0 .
#
# It runs as any user that is not root, on a read-only file system with a /tmp to write to.
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
WORKDIR /build
# uv comes from the lock, with its hash; everything else comes by it.
COPY requirements.lock ./
RUN awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes --requirement uv.lock
COPY . .
# What builds the wheels, and then what they ask for and nothing else (no torch, no tools): at the versions and hashes of the lock.
RUN uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels . \
    && uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels training
RUN uv venv --python "$(command -v python)" /opt/rekindle \
    && uv pip install --no-cache --python /opt/rekindle/bin/python --compile-bytecode --constraints requirements.lock \
        "rekindle-recovery[kubernetes] @ file://$(ls "$PWD"/wheels/rekindle_recovery-[0-9]*.whl)" \
        "rekindle-recovery-training @ file://$(ls "$PWD"/wheels/rekindle_recovery_training-*.whl)" \
    && uv pip check --python /opt/rekindle/bin/python
# Where an installed rekindle keeps its server packages, under a path that does not change with Python's version.
RUN ln -s "$(/opt/rekindle/bin/python -P -c 'from rekindle.cli.stack import server_root; print(server_root())')" \
        /opt/rekindle/server

FROM ${PYTHON}
LABEL org.opencontainers.image.title="rekindle-control-plane" \
      org.opencontainers.image.description="Brings large training jobs back after a fault" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/rekindle /opt/rekindle
ENV PATH=/opt/rekindle/bin:$PATH \
    PYTHONPATH=/opt/rekindle/server \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /tmp
USER 65532:65532
# A pod says which process it is: python -P -m workers.control, gateway, watcher or operator.
CMD ["rekindle", "--help"]
