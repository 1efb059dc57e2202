# Needs Python 3.10 or newer and nothing else; with a C++ compiler and Python's headers, the native engine is built too.
# Run `make help` for the targets.

PYTHON ?= python3
ARGS ?=
VENV := .venv
# Isolated mode keeps the repository root off sys.path, where kernels/ would hide Hugging Face's package of that name.
RUN := $(VENV)/bin/python -I
PIP := $(RUN) -m pip --disable-pip-version-check

# Written last, so an install that was cut short is done again. The name holds this folder, because an editable install
# points at an absolute path: a copied or moved tree installs itself anew.
STAMP := $(VENV)/.installed-$(shell pwd | cksum | cut -d' ' -f1)

# Written after the native engine was built, or left out on a machine that cannot build it.
NATIVE := $(STAMP)-native
CSRC := $(wildcard csrc/*.* csrc/*/*.*)

.PHONY: help demo test lint bench bench-full bench-envs gpu-check sanitize clean

help:
	@echo 'make demo        search real passages with a real model, beside transformers'
	@echo 'make test        run the tests; ARGS="-k window" is passed to pytest'
	@echo 'make lint        ruff check and ruff format --check'
	@echo 'make bench       how fast is each engine here: a first look in some minutes; a table, and a page in bench-output/'
	@echo 'make bench-full  every model, workload, contender and dtype: hours on a small machine'
	@echo 'make bench-envs  environments for contenders that cannot share ours (vLLM), in .bench-envs/'
	@echo 'make gpu-check   on a machine with a GPU: build, tests, tuning and benchmarks in ten minutes; uses $$(PYTHON)'
	@echo 'make sanitize    random shapes through the native engine under AddressSanitizer, UBSan and ThreadSanitizer'
	@echo 'make clean       remove .venv and everything else written here'
	@echo 'The first run makes .venv with PYTHON=$(PYTHON) and installs what is needed.'

demo: $(NATIVE)
	$(RUN) -m encoder_fast.demo $(ARGS)

test: $(NATIVE)
	HF_HUB_OFFLINE=1 $(RUN) -m pytest $(ARGS)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

bench: $(NATIVE)
	$(RUN) benchmarks/run.py models ops finetune --quick --dtype auto int8 $(ARGS)

bench-full: $(NATIVE)
	$(RUN) benchmarks/run.py models ops finetune --dtype auto float32 int8 $(ARGS)

bench-envs: $(NATIVE)
	$(RUN) -m encoder_fast.benchmarks.envs $(ARGS)

# A GPU machine brings its own Python with torch and Triton, so this makes no .venv.
gpu-check:
	$(PYTHON) -I benchmarks/gpu_check.py $(ARGS)

# ARGS="cases seed": how many random cases of each kind on each tier, and the first one's number.
sanitize: $(STAMP)
	@set -e; tiers='generic;avx2;avx512;avx512_bf16;amx_emulated'; \
	if grep -qw amx_tile /proc/cpuinfo; then tiers="$$tiers;amx_bf16"; fi; \
	for kind in address,undefined thread; do \
	  folder=build/sanitize-$$kind; mkdir -p build; echo "== -fsanitize=$$kind"; \
	  $(VENV)/bin/cmake -S csrc -B $$folder -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja \
	    -DCMAKE_CXX_COMPILER=g++ -DEF_SANITIZE=$$kind -DEF_TIERS="$$tiers" >$$folder.log 2>&1 || { cat $$folder.log; exit 1; }; \
	  $(VENV)/bin/cmake --build $$folder --parallel 2 -- --quiet; \
	  $$folder/ef_sanitize $(ARGS); \
	done

clean:
	rm -rf $(VENV) .bench-envs build dist encoder_fast/_C.* *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks demo-output bench-output
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements-dev.txt setup.py pyproject.toml
	@$(RUN) -m pip --version >/dev/null 2>&1 || { $(make_venv); }
	@rm -f $(VENV)/.installed-*
	@echo 'Installing into $(VENV): some minutes the first time, seconds later.'
	$(PIP) install --requirement requirements-dev.txt
	ENCODER_FAST_BUILD=none $(PIP) install --quiet --no-build-isolation --editable .
	@touch $@

# Where the machine can compile, a compile error is an error; elsewhere setup.py says what is missing and goes on.
$(NATIVE): $(STAMP) $(CSRC) encoder_fast/_version.py
	@rm -f $@
	@echo 'Building the native engine: a minute the first time, only what changed later.'
	@headers=$$($(RUN) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	if command -v c++ >/dev/null && [ -f "$$headers/Python.h" ]; then mode=cpu; else mode=auto; fi; \
	ENCODER_FAST_BUILD=$${ENCODER_FAST_BUILD:-$$mode} $(RUN) setup.py --quiet build_ext --inplace
	@touch $@

# A missing or half-made environment is made anew. Debian's python3 has venv but no ensurepip until python3-venv is
# installed, so virtualenv serves where it is present.
define make_venv
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
  { echo 'encoder_fast needs Python 3.10 or newer; $(PYTHON) is not. Try: make PYTHON=/path/to/python3.11' >&2; exit 1; }; \
if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv --clear $(VENV); \
elif $(PYTHON) -c 'import virtualenv' 2>/dev/null; then $(PYTHON) -m virtualenv --quiet --clear $(VENV); \
elif command -v virtualenv >/dev/null; then virtualenv --quiet --clear --python '$(PYTHON)' $(VENV); \
else echo '$(PYTHON) cannot make a virtual environment: install python3-venv (Debian, Ubuntu) or virtualenv, or name another Python: make PYTHON=/path/to/python3' >&2; exit 1; fi
endef
