# Tritune itself as an image: the app, the worker and the Locust workers of docker-compose.yml. Built by
#
#     docker compose build app
#
# The base is CPython 3.11 or newer with venv. WITHOUT leaves packages out, their names joined by |: torch saves most of
# the image, and what needs it (building and retraining MNIST) then says that it is missing.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

ARG WITHOUT=
WORKDIR /app
COPY requirements.txt ./
RUN python3 -m venv /opt/tritune \
    && grep -v -E "^(${WITHOUT:-#})(\[|=|$)" requirements.txt > /tmp/requirements.txt \
    && /opt/tritune/bin/pip install --no-cache-dir --disable-pip-version-check --no-compile \
        --requirement /tmp/requirements.txt \
    && (/opt/tritune/bin/python -m compileall -q -j 0 /opt/tritune/lib > /dev/null || true) \
    && rm /tmp/requirements.txt

COPY . ./
RUN ln -s /app/docker/tritune /usr/local/bin/tritune
# HOME: also a user without one may run this. The worker service does the work, so no other is started.
ENV PATH=/opt/tritune/bin:$PATH \
    PYTHONPATH=/app \
    HOME=/tmp \
    TRITUNE_MODEL_REPO=/data/models \
    TRITUNE_RESULTS=/data/results \
    TRITUNE_WORKER=service

EXPOSE 8501
CMD ["streamlit", "run", "app.py", "--server.address", "0.0.0.0", "--server.port", "8501", "--server.headless", "true"]
