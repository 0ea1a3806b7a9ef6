# An example of an image for training jobs: any image with Python 3.11 or newer and PyTorch, and our training side in it. From the
# root of the repository:
#
#     docker build -f deploy/images/training.Dockerfile --build-arg BASE=my-pytorch:1.0 -t my-training:1.0 .
#
# On Ascend with MindIO nothing of ours is needed in the image.
ARG PYTHON=python:3.11-slim
ARG BASE=pytorch/pytorch:latest

FROM ${PYTHON} AS build
WORKDIR /build
COPY requirements.lock ./
RUN awk '/^[a-z]/ { wanted = /^uv==/ } wanted' requirements.lock > uv.lock \
    && pip install --no-cache-dir --require-hashes --requirement uv.lock
COPY training training
RUN uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir wheels training

FROM ${BASE}
COPY --from=build /build/wheels /tmp/wheels
# Its own versions of grpcio and protobuf stay, if the image has any that fit; torch is never touched.
RUN python -m pip install --no-cache-dir /tmp/wheels/*.whl && python -m pip check && rekindle-train --help > /dev/null
