# syntax=docker/dockerfile:1
# Two stages: the first compiles llama-cpp-python and installs everything into /opt/venv, the second runs it.
# Each base is a Debian or an Ubuntu; Python is the distribution's, the only one in the image.
#
# CUDA: docker build --build-arg BUILD_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#                    --build-arg RUN_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 \
#                    --build-arg CMAKE_ARGS="-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=75-virtual;80-virtual;86-real;89-real;90-virtual;120a-real" .
ARG BUILD_IMAGE=debian:bookworm-slim
ARG RUN_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
# One image for all CPUs: a library for each of llama.cpp's CPU variants, of which the server loads the best that its
# machine can execute (server/llama/library.py). CMAKE_ARGS adds to these flags; where both name an option, it wins.
ARG CMAKE_ARGS=""
ENV CMAKE_ARGS="-DGGML_NATIVE=off -DGGML_BACKEND_DL=on -DGGML_CPU_ALL_VARIANTS=on -DCMAKE_INSTALL_BINDIR=llama_cpp/lib -DCMAKE_PLATFORM_NO_VERSIONED_SONAME=on ${CMAKE_ARGS}" \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ cmake make git python3 python3-venv python3-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /opt/venv
# The versions that are tested, each by its hash. This layer changes seldom, so that the builder keeps it.
COPY deploy/locks ./deploy/locks
RUN --mount=type=cache,target=/root/.cache/pip /opt/venv/bin/pip install --require-hashes --requirement deploy/locks/server.txt
COPY pyproject.toml MANIFEST.in README.md LICENSE ./
COPY llamapool ./llamapool
COPY server ./server
COPY config ./config
COPY models/*.gguf ./models/
RUN /opt/venv/bin/pip install --no-deps . && /opt/venv/bin/pip check
# The inventory: /opt/venv/share/llamapool/sbom.cdx.json and LICENSES.txt, next to the default configuration and its
# models. The licences of Debian's packages are in /usr/share/doc.
COPY deploy/inventory.sh ./deploy/
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install --require-hashes --requirement deploy/locks/image.txt \
 && deploy/inventory.sh /opt/venv /opt/tools

FROM ${RUN_IMAGE}
LABEL org.opencontainers.image.title="Llamapool" org.opencontainers.image.licenses="MIT"
# tini is process 1: it forwards signals to the server and reaps the children that its workers leave.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home llamapool
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
# The server listens on all addresses of the container, and therefore needs a key: docker run -e LLAMA_API_KEY=...
# (docs/security.md). /dev/shm is writable also where the root file system is not.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 LLAMA_ARG_HOST=0.0.0.0 LLAMAPOOL_SERVER__CLOSED=true \
    LLAMAPOOL_SERVER__ADDRESS_FILE=/dev/shm/llamapool.addresses
USER llamapool
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["llamapool", "health"]
ENTRYPOINT ["tini", "-s", "--", "llamapool"]
