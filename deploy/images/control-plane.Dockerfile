# The image of the control plane: control, gateway, watcher, operator and webhook are started from it. `make images` builds it from
# the last commit (docs/images.md). By hand, from the root of the repository:
#
#     docker build -f deploy/images/control-plane.Dockerfile -t rekindle-control-plane:0.1.0 .
#
# It runs as any user that is not root, on a read-only file system with a /tmp to write to.
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
# Sets of constants are compiled in the same order each time, and nothing but compileall writes bytecode.
ENV PYTHONHASHSEED=0 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /build
# uv comes from the lock, with its hash; everything else comes by it.
COPY requirements.lock ./
RUN awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes --requirement uv.lock
# What the processes ask for and nothing else (no torch, no tools), at the versions and hashes of the lock.
COPY deploy/images/control-plane.lock ./
RUN uv venv --python "$(command -v python)" /opt/rekindle \
    && uv pip install --no-cache --python /opt/rekindle/bin/python --no-deps --require-hashes --requirement control-plane.lock
COPY . .
# Our wheels are installed by pip: uv would write the time of these files into the environment.
RUN uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels . \
    && uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels training \
    && pip --python /opt/rekindle/bin/python install --no-cache-dir --no-deps --no-index --no-compile wheels/*.whl \
    && uv pip check --python /opt/rekindle/bin/python
# Where an installed rekindle keeps its server packages, under a path that does not change with Python's version.
RUN ln -s "$(/opt/rekindle/bin/python -P -c 'from rekindle.cli.stack import server_root; print(server_root())')" \
        /opt/rekindle/server
# Bytecode that contains no time, and files as old as the commit: two builds of a commit are equal.
ARG SOURCE_DATE_EPOCH=0
RUN /opt/rekindle/bin/python -P -m compileall -q --invalidation-mode unchecked-hash /opt/rekindle/lib \
    && find /opt/rekindle -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

# Nothing runs from here on, so that the image has the base and /opt/rekindle, and no tool that built it.
FROM ${PYTHON}
COPY --from=build /opt/rekindle /opt/rekindle
ENV PATH=/opt/rekindle/bin:$PATH \
    PYTHONPATH=/opt/rekindle/server \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
WORKDIR /tmp
USER 65532:65532
# A pod says which process it is: python -P -m workers.control, gateway, watcher, operator or webhook.
CMD ["rekindle", "--help"]
ARG SOURCE=""
ARG REVISION=""
ARG VERSION=""
LABEL org.opencontainers.image.title="rekindle-control-plane" \
      org.opencontainers.image.description="Brings large training jobs back after a fault" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
