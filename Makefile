# Everything runs in a virtual environment of its own, .venv; a machine needs Python 3.11 or newer, a C compiler and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check torch clients lint linked docs wheel conformance fuzz proof bench clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

# The whole suite.
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS)

# Its fast core.
check: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

# The tests of the interface for PyTorch and of models exported by it, with torch in an environment of its own, and types.
torch: $(VENV)-torch/.installed linked
	$(VENV)-torch/bin/python -m pytest -n $(JOBS) tests/torch tests/generation/test_transformers_models.py tests/test_docs.py \
		-k "torch or transformers_models"
	sed '/^ignore = .*torch/d' pyproject.toml > build/typecheck/pyproject.toml
	$(VENV)-torch/bin/basedpyright --pythonpath $(VENV)-torch/bin/python --project build/typecheck/pyproject.toml \
		build/typecheck/relayc/torch

# The tests of the server with clients that others wrote, and of batches on Dask and Ray, in an environment of their own.
clients: $(VENV)-clients/.installed
	$(VENV)-clients/bin/python -m pytest tests/server/test_clients.py tests/batches

# The type checker follows no package mapping and no linked folders: it reads the linked package.
lint: $(VENV)/.installed linked
	$(BIN)/ruff check .
	$(BIN)/basedpyright

# The package as it will be installed, from links to the files.
linked:
	rm -rf build/typecheck && mkdir -p build/typecheck/relayc
	cp -rs $(CURDIR)/relayc/. build/typecheck/relayc
	cp -rs $(addprefix $(CURDIR)/,te backend topi relay frontends) build/typecheck/relayc

# The documentation as a site, in build/site.
docs: $(VENV)/.docs linked
	$(BIN)/mkdocs build --strict --quiet

# The wheel, tried in environments of its own: beside packages named like the folders, and with the runtime alone.
wheel: $(VENV)/.installed
	rm -rf dist build/lib build/bdist*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python -m pytest -s tests/packaging --wheel dist/relayc-*.whl

# All of the ONNX project's own backend tests.
conformance: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) tests/conformance tests/frontends/test_node_suite.py --suite all

# Many random graphs, in one process whose memory may not grow, and for processors that this one is not; networks, also
# quantised; single operators for many processors; many damaged models, and extreme ones, each in a process of its own;
# many random schedules.
fuzz: $(VENV)/.bench
	$(BIN)/python -m tests.fuzz.long_run --graphs 2000
	$(BIN)/python -m tests.fuzz.blocks.check --networks 400
	$(BIN)/python -m tests.fuzz.blocks.check --networks 200 --start 400 --precisions ",float16,bfloat16" \
		--targets "llvm -mcpu=x86-64-v2,llvm -mcpu=znver3,llvm -mcpu=alderlake,llvm -mcpu=sapphirerapids"
	$(BIN)/python -m tests.fuzz.blocks.check --networks 200 --start 600 --quantise static,dynamic,nbits
	$(BIN)/python -m tests.fuzz.kernels --cases 1000
	$(BIN)/python -m tests.processor_emulation.random_graphs --graphs 600
	$(BIN)/python -m pytest -n $(JOBS) tests/fuzz/test_mutated_models.py --damaged-models 2000
	$(BIN)/python -m tests.fuzz.isolated --models 2000
	$(BIN)/python -m pytest -n $(JOBS) tests/te/test_random_schedules.py --random-schedules 2000

# What is proven of programs for GPUs without one; on a machine with one, run on it.
proof: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(JOBS) tests/cuda_proof tests/cuda_emulation tests/te/tir/test_simt_checker.py

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.models --models light_squeezenet,light_resnet50

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The version of torch that the tests are run with; the extra takes newer ones too. Its build without CUDA has no torchvision
# that fits: the tests of torchvision's models need both built alike, and say so where they are skipped.
TORCH ?= torch==2.13.0

$(VENV)-torch/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,torch]' transformers \
		onnxruntime-genai
	touch $@

$(VENV)-clients/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)-clients
	$(VENV)-clients/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[serve,dask]' pytest hypothesis \
		'tritonclient[http]' kserve 'ray[data]'
	touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-torch $(VENV)-clients build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
