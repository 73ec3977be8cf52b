# syntax=docker/dockerfile:1
# Two stages: the first compiles llama-cpp-python and installs everything into /opt/venv, the second runs it.
# CUDA: docker build --build-arg BUILD_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#                    --build-arg RUN_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 --build-arg CMAKE_ARGS=-DGGML_CUDA=on .
ARG BUILD_IMAGE=python:3.12-slim-bookworm
ARG RUN_IMAGE=python:3.12-slim-bookworm

FROM ${BUILD_IMAGE} AS build
# One image for many processors: GGML_NATIVE would compile for the build machine's alone.
ARG CMAKE_ARGS="-DGGML_NATIVE=off -DGGML_AVX2=on -DGGML_FMA=on -DGGML_F16C=on"
ENV CMAKE_ARGS=${CMAKE_ARGS} PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ cmake make git python3 python3-venv python3-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /opt/venv
# The versions that are tested, each by its hash; what stands here changes seldom, so that the layer is kept.
COPY deploy/locks ./deploy/locks
RUN --mount=type=cache,target=/root/.cache/pip /opt/venv/bin/pip install --require-hashes --requirement deploy/locks/server.txt
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY llamapool ./llamapool
COPY server ./server
COPY config ./config
COPY models/*.gguf ./models/
RUN /opt/venv/bin/pip install --no-deps . && /opt/venv/bin/pip check
# What is in the image: /opt/venv/share/llamapool/sbom.cdx.json and LICENSES.txt, beside the default configuration and
# its models. Those of Debian's packages are in /usr/share/doc.
COPY deploy/inventory.sh ./deploy/
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --require-hashes --requirement deploy/locks/image.txt \
 && deploy/inventory.sh /opt/venv /opt/tools

FROM ${RUN_IMAGE}
LABEL org.opencontainers.image.title="Llamapool" org.opencontainers.image.licenses="MIT"
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 python3 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home llamapool
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
# All addresses of the container, and therefore only with a key: docker run -e LLAMA_API_KEY=... (docs/security.md)
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 LLAMA_ARG_HOST=0.0.0.0 LLAMAPOOL_SERVER__CLOSED=true
USER llamapool
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ.get(\"LLAMA_ARG_PORT\", \"8080\")}/health', timeout=2)"]
ENTRYPOINT ["llamapool"]
