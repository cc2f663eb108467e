# The image behind `helm install`: `bayplan operator` and `bayplan gateway`.
# Packages come from the index that pip is configured for, and only with the hashes of the lock files.
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements.lock requirements-dev.lock ./
RUN python -m venv /opt/bayplan \
    && /opt/bayplan/bin/pip install --disable-pip-version-check --no-cache-dir --only-binary=:all: \
        --require-hashes --requirement requirements.lock
# What builds the wheel stays in this stage; its pins and hashes are those of the development lock.
RUN awk '/^[a-z]/ { kept = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } kept' requirements-dev.lock \
        > requirements-build.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --disable-pip-version-check --no-cache-dir --only-binary=:all: \
        --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN /opt/build/bin/pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/bayplan/bin/pip install --disable-pip-version-check --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/bayplan/bin/bayplan --version

FROM ${PYTHON}
COPY --from=build /opt/bayplan /opt/bayplan
ENV PATH=/opt/bayplan/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# The chart's user; a number, so that `runAsNonRoot` can be checked.
USER 65532:65532
ENTRYPOINT ["bayplan"]
CMD ["--help"]
