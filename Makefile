# Two words to remember: `make run` and `make test`. Both set up what is missing first.
SHELL := /bin/bash
# The embedded Triton wants CPython 3.11 or 3.12; a name alone may be a shim that does not run.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do "$$p" -c "" 2>/dev/null && { command -v "$$p"; break; }; done)
PIP := .venv/bin/python -m pip --disable-pip-version-check --no-input

.PHONY: run test check setup setup-dev format bench clean

run: setup
	@exec .venv/bin/tritune app --everything

test: setup-dev check
	.venv/bin/python -m pytest

check: .venv/dev.done
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

setup: .venv/run.done
	@.venv/bin/tritune setup

setup-dev: .venv/dev.done
	@.venv/bin/tritune setup

# A stamp is written last, so that a set-up that was interrupted is done again.
.venv/run.done: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3 was found. Install CPython 3.11 or 3.12 and run make again."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$("$(PYTHON)" --version) is too old: Tritune needs CPython 3.11 or newer (PYTHON=... make run)."; exit 1; }
	@test -x .venv/bin/python || "$(PYTHON)" -m venv .venv || \
		{ echo "No virtual environment could be made. On Debian: apt-get install python3-venv."; exit 1; }
	@echo "Installing the app's packages into .venv (once; about 2 GB and a few minutes)"
	$(PIP) install --quiet -r requirements.txt
	$(PIP) install --quiet --no-deps --editable .
	@touch $@

.venv/dev.done: .venv/run.done requirements-dev.txt
	$(PIP) install --quiet -r requirements-dev.txt
	@touch $@

format:
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: setup-dev
	.venv/bin/python -m benchmarks

clean:
	rm -rf .venv .triton
