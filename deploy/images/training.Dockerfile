# An example of an image for training jobs: any image with Python 3.11 or newer and PyTorch, and our training side in it. `make
# images` builds it from the last commit (docs/images.md). By hand, from the root of the repository:
#
#     docker build -f deploy/images/training.Dockerfile --build-arg BASE=my-pytorch:1.0 -t my-training:1.0 .
#
# On Ascend with MindIO nothing of ours is needed in the image.
ARG PYTHON=docker.io/library/python:3.11-slim
ARG BASE=docker.io/pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime

FROM ${PYTHON} AS build
WORKDIR /build
COPY requirements.lock ./
RUN awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes --requirement uv.lock
COPY training training
RUN uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels training
COPY deploy/images/training.lock wheels/

FROM ${BASE}
# Some bases end as another user, who may not install.
USER 0:0
ARG SOURCE_DATE_EPOCH=0
# Its own versions of grpcio and protobuf stay, if the image has any that fit; torch is never touched. With the time of the commit in
# the environment pip compiles bytecode that contains none.
RUN --mount=type=bind,from=build,source=/build/wheels,target=/tmp/wheels \
    export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 \
    && python -m pip install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl \
    && { python -m pip check \
        || python -m pip install --no-cache-dir --no-deps --require-hashes --requirement /tmp/wheels/training.lock; } \
    && python -m pip check \
    && rekindle-train --help > /dev/null
# torch asks for the user's name and home, which a user without an entry in /etc/passwd has not.
ENV HOME=/tmp \
    LOGNAME=rekindle
USER 65532:65532
ARG SOURCE=""
ARG REVISION=""
ARG VERSION=""
LABEL org.opencontainers.image.title="rekindle-training" \
      org.opencontainers.image.description="PyTorch with the training side of Rekindle" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.version="${VERSION}"
