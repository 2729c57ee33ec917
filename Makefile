# make help lists what there is. PYTHON makes the virtual environments, each of which a target sets up when it needs it.
PYTHON ?= python3
VENV ?= .venv
QUICK ?= $(VENV)-quick
FUZZ ?= $(VENV)-fuzz
PROTO ?= $(VENV)-proto
LOCK ?= $(VENV)-lock
SHELL = bash
MINUTES ?= 60
FAMILIES ?=
STORE ?= s3
DIFFER = hdf5 tf
BENCH ?= build/bench
MODULE ?= ckptconv/dtypes.py
TESTS ?= tests/test_dtypes.py
bin = $(1)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN = $(call bin,$(VENV))
# Three workers for two processors: a test may wait for a process or a server, and each worker collects all tests.
PYTEST = -m pytest -q -n $(shell $(PYTHON) -c 'import os; print(3 * os.cpu_count() // 2)') --max-worker-restart 0

# What is imported is compiled once (pip leaves that out, see below), and not by each of a thousand processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help quick store format lint schemas test check cover docs fixtures proto fuzz mutants bench build lock audit demo clean

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

quick: $(QUICK)/quick.done ## tests that need no framework and are not slow; of random cases and long tables a few
	CKPTCONV_EFFORT=0.04 $(call bin,$(QUICK))/python $(PYTEST) -m "not slow"

store: $(VENV)-$(STORE)/store-$(STORE).done ## tests with the real client of STORE=s3, gs or hf, and no other
	$(call bin,$(VENV)-$(STORE))/python -c "import $(CLIENT_$(STORE))"  # otherwise they would be skipped
	$(call bin,$(VENV)-$(STORE))/python $(PYTEST) $(addprefix tests/storage/,$(TESTS_$(STORE)))
CLIENT_s3 = s3fs, moto.server
CLIENT_gs = gcsfs, gcp_storage_emulator.server
CLIENT_hf = huggingface_hub
TESTS_s3 = test_remote.py test_multipart.py
TESTS_gs = test_gs.py
TESTS_hf = test_hub.py

format: $(VENV)/lint.done ## format the code, with the fixes that ruff is sure of
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lint: $(VENV)/lint.done ## ruff, its formatting, mypy in strict mode, the weight of each room, the syntax of .github and CITATION.cff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/house/weight.py
	@if $(BIN)/check-jsonschema --version >/dev/null 2>&1; then $(MAKE) -s schemas; else \
	  echo "not checked against schemas, which takes Python 3.11: .github and CITATION.cff"; fi

schemas:
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/[0-9]*.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
SCHEMA = $(BIN)/check-jsonschema -q --builtin-schema

test: $(VENV)/test.done $(VENV)/lint.done ## make lint, and beside it all tests, with TensorFlow and PyTorch
	$(MAKE) -j2 lint check

# Ray by itself, and twice if need be: a fault in its driver ends the process that it is in, now and then, without a
# summary of the tests. A test that fails does so both times.
check:
	$(BIN)/python -c "import importlib.util as u; assert all(map(u.find_spec, '$(FRAMEWORKS)'.split()))"  # or they would be skipped
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python $(PYTEST) --ignore tests/engine/test_ray.py
	$(RAY) || $(RAY)
FRAMEWORKS = keras tensorflow tf_keras torch
RAY = $(BIN)/python -m pytest -q tests/engine/test_ray.py

cover: $(VENV)/test.done ## branch coverage, and which test reaches which line, in .coverage
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python $(PYTEST) --ignore tests/engine/test_ray.py --cov --cov-context=test

docs: $(VENV)/docs.done ## the generated tables and pages, then the site in build/site, whose links are checked
	$(BIN)/python tools/make_formats.py
	$(BIN)/python tools/make_readme.py
	$(BIN)/python tools/make_options.py
	$(BIN)/python tools/make_schemas.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

fixtures: $(VENV)/core.done ## the manifest of fixtures
	$(BIN)/python tools/manifest.py

proto: $(PROTO)/proto.done ## messages_pb2.py and its stub, from messages.proto
	$(call bin,$(PROTO))/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
	  ckptconv/formats/tensorflow/messages.proto
	stub=ckptconv/formats/tensorflow/messages_pb2.pyi && printf '# mypy: ignore-errors\n%s\n' "$$(cat $$stub)" > $$stub

fuzz: $(FUZZ)/fuzz.done $(if $(CASES),$(VENV)/test.done) ## findings; MINUTES=60 FAMILIES="tf hdf5"
	PYTHON=$(abspath $(call bin,$(FUZZ)))/python fuzz/run.sh $(MINUTES) $(FAMILIES)
	$(if $(CASES),for f in $(DIFFER); do $(BIN)/python fuzz/differential.py $$f $(CASES) || exit 1; done)

# cosmic-ray changes files in place, so it gets a copy of what git has staged.
mutants: $(VENV)/test.done $(VENV)/mutants.done ## which mutants of MODULE=ckptconv/dtypes.py survive TESTS=tests/test_dtypes.py
	rm -rf build/mutants && git checkout-index -q --all --prefix=build/mutants/
	sed 's|MODULE|$(MODULE)|; s|TESTS|$(TESTS)|; s|PYTHON|$(abspath $(BIN))/python|' tools/mutants.toml > build/mutants/run.toml
	cd build/mutants && export PYTHONPATH=$$PWD TF_CPP_MIN_LOG_LEVEL=3 && cr=$(abspath $(BIN)) && \
	  $$cr/cosmic-ray baseline run.toml && $$cr/cosmic-ray init run.toml run.sqlite && \
	  $$cr/cr-filter-operators run.sqlite run.toml && $$cr/cosmic-ray exec run.toml run.sqlite && \
	  $$cr/cr-report --surviving-only --show-diff run.sqlite

bench: $(VENV)/test.done ## figures for docs/performance.md, on a machine that does nothing else; fails if slower than last
	$(BIN)/python benchmarks/make_files.py $(BENCH) 0.4 1.3 5
	$(BIN)/python benchmarks/run.py --files $(BENCH) --last $(BENCH)/last.json --save $(BENCH)/last.json

build: $(VENV)/build.done ## the wheel and the source distribution, in dist/
	rm -rf dist
	$(BIN)/python -m build $(if $(LOCKED),--no-isolation)

lock: $(LOCK)/lock.done ## requirements/*.txt: the newest versions, with digests, and the oldest that pyproject.toml allows
	for group in lint quick audit docs; do $(LOCKING) pyproject.toml --group $$group -o requirements/$$group.txt || exit 1; done
	$(LOCKING) --group build -o requirements/build.txt # what we need ourselves has no place where the release is built
	$(COMPILE) pyproject.toml --resolution lowest-direct --extra http --extra match -o requirements/oldest.txt
COMPILE = $(call bin,$(LOCK))/uv pip compile -q --no-header --no-annotate --python-version 3.10 --upgrade
LOCKING = $(COMPILE) --generate-hashes --universal --group backend

audit: $(VENV)/audit.done ## ask the advisory database about requirements/*.txt
	for file in requirements/*.txt; do $(BIN)/pip-audit --disable-pip --no-deps -r $$file || exit 1; done

demo: $(VENV)/core.done ## convert a real checkpoint and show what came out
	@mkdir -p build
	$(BIN)/ckptconv fixtures/g2p_en -o build/g2p_en.safetensors --weights-only --force
	$(BIN)/ckptconv inspect build/g2p_en.safetensors
	@echo; echo 'What to try next:'
	@echo '  $(BIN)/ckptconv report build/g2p_en.safetensors --open          a page with statistics and pictures'
	@echo '  $(BIN)/ckptconv diff fixtures/g2p_en build/g2p_en.safetensors   what was left out'
	@echo '  $(BIN)/ckptconv fixtures/g2p_en -o build/g2p_en.pt -c tf-torch --weights-only --dry-run'
	@echo '  $(BIN)/ckptconv --help'

clean: ## remove what these targets made
	rm -rf $(VENV) $(QUICK) $(FUZZ) $(PROTO) $(LOCK) .mypy_cache .ruff_cache .pytest_cache build dist

# Environments. LOCKED=1 installs what requirements/*.txt lists, each file by its digest: for machines that build and release.
# Of what is installed only what is imported is compiled, at first use: all of TensorFlow would take a minute.
install = $(call bin,$(@D))/python -m pip install -q --no-compile

ifdef LOCKED

%.done: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(install) --require-hashes -r requirements/$(*F).txt
	$(install) --no-deps --no-build-isolation -e .
	touch $@

else

$(VENV)/core.done $(QUICK)/core.done $(FUZZ)/core.done $(PROTO)/core.done $(LOCK)/core.done $(VENV)-$(STORE)/core.done: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(install) --upgrade "pip>=25.1" # knows dependency groups
	$(install) -e .
	touch $@

# torch comes first: what else needs it would fetch another build
$(VENV)/test.done: $(VENV)/core.done
	$(install) torch==2.13.0
	$(install) --group test
	touch $@

%.done: # the group of this name
	$(install) --group $(*F)
	touch $@

$(VENV)/lint.done $(VENV)/build.done $(VENV)/audit.done $(VENV)/docs.done $(VENV)/mutants.done: $(VENV)/core.done
$(QUICK)/quick.done: $(QUICK)/core.done
$(FUZZ)/fuzz.done: $(FUZZ)/core.done
$(PROTO)/proto.done: $(PROTO)/core.done
$(LOCK)/lock.done: $(LOCK)/core.done
$(VENV)-$(STORE)/store-$(STORE).done: $(VENV)-$(STORE)/core.done

endif
