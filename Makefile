# Every target works on a fresh machine with Python 3.11 and make; `make` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONPATH := $(CURDIR)

LOCK := requirements.lock
IMAGES := deploy/images
UV_COMPILE = uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--no-emit-package rekindle-recovery-training --custom-compile-command "make lock" --quiet

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install everything that is needed into .venv, both distributions as editable; nothing to do: nothing said
	@.ci/setup

.PHONY: demo
demo: setup ## a training job on this machine loses a node and is switched to a spare
	rekindle demo hot-switch

.PHONY: demo-kubernetes
demo-kubernetes: setup ## the same on a real Kubernetes control plane; the first time on a machine builds it, which takes minutes
	rekindle demo hot-switch --cluster kubernetes

.PHONY: chart-test
chart-test: setup ## install by the chart on such a control plane, change the release in the middle of recoveries, remove it: minutes
	REKINDLE_TEST_ALL=1 pytest tests/end_to_end/test_chart.py

.PHONY: test
test: setup ## every check, and of costly tests those that this commit samples; ends with the names of what failed
	@.ci/checks

.PHONY: temporal-cluster
temporal-cluster: setup ## a Temporal service over PostgreSQL on port 7233, until Ctrl-C; the first time on a machine builds it
	python -P -m simulators.temporal_cluster --state-dir /var/tmp/rekindle-temporal --port 7233

.PHONY: temporal-cluster-test
temporal-cluster-test: setup ## kill each process of such a service in the middle of recoveries
	REKINDLE_TEMPORAL_CLUSTER=1 python -m pytest tests/temporal_cluster

.PHONY: test-all
test-all: setup ## the same with every test, workflows in their sandbox, and what the tests cover
	@REKINDLE_TEST_ALL=1 .ci/checks

.PHONY: lint
lint: setup ## the checks without the tests
	@.ci/checks format lint types imports docstrings protos lock

.PHONY: fmt
fmt: setup ## format the code and repair what ruff can repair
	ruff format
	ruff check --fix

.PHONY: protos
protos: setup ## generate the wire code from protos/
	python protos/generate.py

.PHONY: rights
rights: setup ## generate the rules of access of the chart from the table of kinds of jobs, and the manifests from the chart
	python deploy/rights.py
	python deploy/manifests.py

.PHONY: manifests
manifests: setup ## generate the values of the chart from their rows, and deploy/base and the webhook from the chart
	python deploy/manifests.py

.PHONY: settings
settings: setup ## generate docs/settings.md from the settings, limits, labels and annotations
	python -m docs.settings

.PHONY: parameters
parameters: setup ## generate docs/parameters.md from the parameters of jobs
	python -m docs.parameters

.PHONY: versions
versions: setup ## generate docs/versions.md from the tables of versions and of kinds of jobs
	python -m docs.versions

.PHONY: api
api: setup ## generate docs/api.md from the signatures and docstrings of what programs call
	python -m docs.api

.PHONY: lock
lock: ## resolve requirements.lock and the locks of the images again; UPGRADE=1 takes newer versions too
	@command -v uv >/dev/null || .ci/setup
	@$(UV_COMPILE) pyproject.toml training/pyproject.toml --extra demo --extra kubernetes --group dev \
		$(if $(UPGRADE),--upgrade) --output-file $(LOCK)
	@$(UV_COMPILE) --no-annotate pyproject.toml training/pyproject.toml --extra kubernetes --constraints $(LOCK) \
		--output-file $(IMAGES)/control-plane.lock
	@$(UV_COMPILE) --no-annotate training/pyproject.toml --constraints $(LOCK) --output-file $(IMAGES)/training.lock

.PHONY: images
images: setup ## build the images of the last commit into build/images, with digests and SBOMs; REGISTRY=... PUSH=1 pushes them
	@# By the environment, in which make puts them: a blank, & or ; is a part of the value.
	python deploy/build_images.py $${REGISTRY:+--registry "$$REGISTRY"} $${PUSH:+--push} $${TOOL:+--tool "$$TOOL"} \
		$${PYTHON_IMAGE:+--python-image "$$PYTHON_IMAGE"} $${TRAINING_BASE:+--training-base "$$TRAINING_BASE"} \
		$${SOURCE:+--source "$$SOURCE"}

.PHONY: bench
bench: setup ## measure recoveries on this machine, side by side with their floors
	python -P -m benchmarks

.PHONY: faults
faults: setup ## lose ranks of standalone jobs in every way, 20 times or RUNS times each, and write the table: half an hour
	python -P -m benchmarks.faults --write --runs $(or $(RUNS),20)

.PHONY: account
account: setup ## compare the account of a job with sixty faults, or FAULTS, with its step logs, and write the page: ten minutes
	python -P -m benchmarks.account --write --faults $(or $(FAULTS),60)

.PHONY: accelerator
accelerator: setup ## lose ranks of jobs on CUDA with NCCL, and measure memory and steps there; without a GPU it says so
	python -P -m benchmarks.accelerator

.PHONY: kills
kills: setup ## kill each process at every event of recoveries and between them, of all modes or MODES=in-place, and write the table
	REKINDLE_KILLS=$(or $(MODES),all) pytest tests/kills

.PHONY: fuzz
fuzz: setup ## read 10,000 broken objects, bodies and messages of each sort; takes a quarter of an hour
	REKINDLE_FUZZ_EXAMPLES=10000 pytest --numprocesses=auto --timeout=3600 tests/fuzz

.PHONY: model
model: setup ## walk the model at random, 20,000 times or RUNS times of each kind, operations a quarter: minutes
	REKINDLE_MODEL_RUNS=$(or $(RUNS),20000) pytest --numprocesses=2 tests/model

.PHONY: month
month: setup ## simulate a month of a job with 0, 1 and 2 spare nodes, about 1,000 faults each: minutes
	REKINDLE_TEST_ALL=1 REKINDLE_MONTH_DAYS=30 pytest -s tests/model/test_month.py

.PHONY: real-controllers
real-controllers: setup ## run the manifests of examples/kubernetes under real controllers, or that of KIND=JobSet; builds them, which takes minutes
	pytest tests/real_controllers $(if $(KIND),-k "[$(KIND)]")

.PHONY: pictures
pictures: setup ## make the README's pictures of the Temporal UI from a real run; needs chromium
	python docs/pictures/make.py

.PHONY: clean
clean: ## remove .venv and everything that was built
	rm -rf .venv .setup.lock build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
