# make demo: convert a real checkpoint and show what came out.  make test: everything CI checks.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test check lint clean

demo: $(VENV)/core.done
	@mkdir -p build
	$(BIN)/ckptconv fixtures/g2p_en -o build/g2p_en.safetensors --weights-only --force
	$(BIN)/ckptconv inspect build/g2p_en.safetensors

test: $(VENV)/test.done
	$(MAKE) check BIN=$(BIN)

# Ray by itself: its driver ends the process it is in when the machine is too busy to answer the cluster in time
check: lint
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m pytest -q -n auto --dist loadfile --max-worker-restart 0 --ignore tests/engine/test_ray.py
	$(BIN)/python -m pytest -q tests/engine/test_ray.py

lint:
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/core.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e .
	touch $@

# torch comes first and pinned: what else needs it must not fetch another build
$(VENV)/test.done: $(VENV)/core.done
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q --group test
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
