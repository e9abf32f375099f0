# make demo: set up and show the main job.   make test: set up, then lint, types and tests.
# make docs: the docs as a site, in build/site.
PYTHON ?= python3
BIN := .venv/bin
# Tests start many processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick test-long browser test-distributed stress fuzz kills conformance published test-cuda-build test-torch test-python test-portable test-ecosystem test-compile test-triton test-ray wheels lint lint-native lint-native-quick clang types docs clean

demo: .venv/installed
	$(BIN)/anydevice demo build/demo

# The checks run at the same time: each uses one core for most of its time.
test: .venv/installed browser
	$(MAKE) --no-print-directory -j3 lint-native-quick types lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not long"

# For each change: without mypy and without the tests that tests/slow.txt names.
test-quick: lint
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not long and not slow"

# What make test leaves out: each has a quicker test of its kind there.
test-long: .venv/installed
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m long

# Pages are tested in a real browser; where none can be installed, those tests are skipped and say so.
browser:
	@if ! { command -v chromium && command -v chromedriver; } >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
				--no-install-recommends chromium chromium-driver >/dev/null; } || \
			echo "chromium could not be installed: the tests of pages are skipped."; \
		else echo "No chromium and chromedriver: the tests of pages are skipped."; fi; fi

# The programs of several processes with four of them: meshes of two dimensions, four stages.
test-distributed: .venv/installed
	ANYDEVICE_TEST_RANKS=4 $(BIN)/python -m pytest -q tests/virtual/test_distributed.py \
		tests/train/test_ranks.py

# GPUs that come and go beside threads and forks, 200 rounds: about ten minutes on two cores.
stress: .venv/installed
	$(BIN)/python -m tests.virtual.stress --rounds 200 --seed 0

# Checkpoints and records with anything in them, 2,000 of each: about ten minutes on two cores.
fuzz: .venv/installed
	$(BIN)/python -m tests.train.fuzz --count 2000
	$(BIN)/python -m tests.sweep.fuzz --count 2000

# Trainings of seven kinds killed 1,000 times, at random instants and at every write: about fifteen
# minutes on two cores.
kills: .venv/installed
	$(BIN)/python -m tests.kills --kills 1000

# The virtual GPU against PyTorch's own databases, whole, and 20,000 random programs: about twenty
# minutes on two cores.
conformance: .venv/installed
	@failed=0; $(BIN)/python -m tests.conformance || failed=1; \
	$(BIN)/python -m tests.conformance.recording || failed=1; \
	$(BIN)/python -m tests.conformance.card || failed=1; \
	$(BIN)/python benchmarks/virtual_overhead.py || failed=1; exit $$failed

# Every published measurement that the project has against its prediction: writes docs/accuracy.md.
published: .venv/installed
	$(BIN)/python -m tests.published

# The same suite on a CUDA build of torch, on a machine without a GPU: about 5 GB of downloads.
test-cuda-build: build/cuda/installed
	build/cuda/bin/python -m tests.conformance

build/cuda/installed: pyproject.toml
	$(PYTHON) -m venv build/cuda
	build/cuda/bin/python -m pip install --quiet torch==2.11.0 --editable '.[dev]'
	@touch $@

# A wheel that carries a ready-made library for each torch: the first use needs no compiler.
TORCHES ?= 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
READY := src/anydevice/virtual/ready
PLATFORM := manylinux_2_28_$(shell uname -m)
wheels: $(TORCHES:%=build/torch-%/installed)
	rm -rf $(READY) dist/*-none-*.whl
	for torch in $(TORCHES); do \
		env -u CXX build/torch-$$torch/bin/python -m anydevice.virtual.build --ready || exit 1; done
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf $(READY)
	$(BIN)/python -m pip install --quiet wheel auditwheel
	$(BIN)/python -m wheel tags --remove --platform-tag $(PLATFORM) dist/*-none-any.whl
	$(BIN)/auditwheel show dist/*-$(PLATFORM).whl
	@ls -l dist/*.whl

# What works on another torch, in a separate environment, as a row of docs/versions.md:
# make test-torch VERSION=2.15.0 (about 5 GB of downloads) · PARTS="--only build" for one part
test-torch:
	@test -n "$(VERSION)" || { echo "Name a torch: make test-torch VERSION=2.15.0"; exit 2; }
	$(MAKE) --no-print-directory build/torch-$(VERSION)/installed
	build/torch-$(VERSION)/bin/python -m tests.torch_version $(PARTS)

# With === pip takes 2.13.0 itself where it also knows of 2.13.0+cpu.
build/torch-%/installed: pyproject.toml
	test -x build/torch-$*/bin/python || $(PYTHON) -m venv build/torch-$*
	build/torch-$*/bin/python -m pip install --quiet torch===$* --editable '.[dev]'
	@touch $@

# A part of the tests with each Python that is here (PATH, pyenv), in separate environments of about
# 5 GB; or with some of them: make test-python PYTHONS="python3.12 /opt/python3.14/bin/python3"
test-python:
	$(PYTHON) -m tests.pythons $(PYTHONS)

# What other systems than Linux do, on Linux: see src/anydevice/system.py.
test-portable: .venv/installed
	ANYDEVICE_PORTABLE=1 $(BIN)/python -m pytest -q -n auto --dist worksteal -m "not long" \
		tests/test_system.py tests/virtual tests/plan tests/sweep tests/train

# Other people's packages, unmodified, on virtual GPUs: an environment of its own, about 2 GB.
test-ecosystem: build/ecosystem/installed
	build/ecosystem/bin/python -m pytest -q -rs tests/ecosystem

build/ecosystem/installed: pyproject.toml constraints.txt tests/ecosystem/requirements.txt
	$(PYTHON) -m venv build/ecosystem
	build/ecosystem/bin/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[dev]' --requirement tests/ecosystem/requirements.txt
	mkdir -p build/ecosystem/sources
	build/ecosystem/bin/python -m pip download --quiet --no-deps --no-build-isolation \
		--no-binary :all: --dest build/ecosystem/sources --constraint tests/ecosystem/requirements.txt \
		accelerate pytorch-ignite
	for source in build/ecosystem/sources/*.tar.gz; do \
		tar -xzf $$source -C build/ecosystem/sources || exit 1; done
	@touch $@

# torch.compile on virtual and on hollow GPUs, whole: about ten minutes on two cores.
test-compile: .venv/installed
	$(BIN)/python -m pytest -q tests/virtual/compiled tests/plan/compiled

# Other people's Triton kernels against their reference implementations, in a separate environment.
test-triton: build/triton/installed
	build/triton/bin/python -m pytest -q -rs tests/triton_kernels

build/triton/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/triton
	build/triton/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	build/triton/bin/python -m pip install --quiet transformers==5.23.0
	build/triton/bin/python -m pip install --quiet --no-deps liger-kernel==0.8.5 \
		flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2
	@touch $@

# A sweep on a Ray cluster on this machine, in an environment of its own, since Ray is large.
test-ray: build/ray/installed
	build/ray/bin/python -m pytest -q -rs tests/sweep/test_ray.py

build/ray/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/ray
	build/ray/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray]'
	@touch $@

# A site of plain files: open build/site/index.html, or python -m http.server -d build/site
docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# The C++ sources: each file compiles alone with g++ and clang++, without a warning, in one format.
# What was found clean is not compiled again; see tests/native_lint.py, also for what make test does.
lint-native: .venv/installed clang
	$(BIN)/python -m tests.native_lint

lint-native-quick: .venv/installed
	$(BIN)/python -m tests.native_lint --quick

clang:
	@if ! command -v clang++ >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
				--no-install-recommends clang >/dev/null; } || \
			echo "clang could not be installed: g++ alone compiles the C++ sources."; fi; fi

types: .venv/installed
	$(BIN)/mypy

# torch comes in through the constraints alone: anything else could pull a second, multi-gigabyte build.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build/demo .mypy_cache .pytest_cache .ruff_cache
