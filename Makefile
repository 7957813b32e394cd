PYTHON ?= python3
BIN := .venv/bin
LOCK := locks/linux-x86_64-py311.txt

.PHONY: demo test types complete docs torture lock locked audit wheel clean

demo: .venv/installed
	$(BIN)/osscl demo

test: types
	$(BIN)/ruff format --check src tests docs/*.py docs/_ext
	$(BIN)/ruff check src tests docs/*.py docs/_ext
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

types: .venv/tested
	$(BIN)/mypy

# All optional dependencies; with them and OSSCL_ALL_TESTS=1 only tests that need a GPU are skipped.
complete: .venv/complete

# The documentation site, offline and with warnings as errors; open build/docs/index.html.
docs: .venv/docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d build/doctrees docs build/docs

# Kills, flipped bits, hostile files and failing writes; see docs/reliability.md. Options: make torture SECONDS=120 SEED=7
torture: .venv/complete
	PYTHONPATH=tests $(BIN)/python -m torture --seconds $(or $(SECONDS),7200) --seed $(or $(SEED),0)

# Write the versions installed here, with the hashes of their files, for this platform; torch apart, see docs/security.md.
lock: .venv/complete
	mkdir -p build
	$(BIN)/pip list --format=freeze | grep -viE '^(osscl|torch|pip)==' > build/pinned.txt
	$(BIN)/pip install --quiet --dry-run --ignore-installed --no-deps --report build/report.json -r build/pinned.txt
	$(BIN)/python locks/write_lock.py build/report.json $(LOCK)

# Fetch every locked file and compare its hash; installs nothing.
locked: .venv/bin/python
	$(BIN)/pip install --quiet --dry-run --ignore-installed --no-deps --require-hashes -r $(LOCK)

# Known vulnerabilities of the locked versions; asks a service on the network, and fails where it does not answer.
audit:
	$(PYTHON) -m venv build-env
	build-env/bin/pip install --quiet pip-audit
	build-env/bin/pip-audit --strict --disable-pip --require-hashes --requirement $(LOCK)
	rm -rf build-env

# Build a wheel, install it in an empty environment and run the smallest demo there.
wheel: .venv/tested
	rm -rf build dist build-env
	$(BIN)/python -m build --wheel --outdir dist
	$(PYTHON) -m venv build-env
	build-env/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build-env && bin/osscl --version && bin/osscl demo --smallest --out runs
	rm -rf build-env

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,fetch]"
	touch $@

.venv/complete: .venv/tested
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,test-extras,fetch,photos,hub,ray,tune,track,docs,serve,export]"
	touch $@

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv build dist build-env src/*.egg-info docs/reference/commands docs/reference/python
