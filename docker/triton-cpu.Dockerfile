# The embedded Triton as an image: NVIDIA's tritonserver from the package index with Tritune's onnxruntime backend, for
# machines without NVIDIA's image. It runs on the CPU. Built in the project's folder:
#
#     docker build -f docker/triton-cpu.Dockerfile -t tritune-triton:cpu .
#     tritune server start --kind docker --image tritune-triton:cpu --gpus none
#
# The base is any x86-64 Linux with glibc >= 2.35, bash and CPython 3.11 or 3.12 with venv and a shared libpython.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

COPY requirements-triton.txt /opt/tritonserver/
RUN python3 -m venv /opt/tritonserver/env \
    && /opt/tritonserver/env/bin/pip install --no-cache-dir --no-deps --only-binary :all: \
        --requirement /opt/tritonserver/requirements-triton.txt \
    && rm -rf /opt/tritonserver/env/lib/python3.*/site-packages/tritonclient*

COPY tritune/servers/backends /opt/tritonserver/backends
COPY docker/link-tritonserver.sh docker/tritonserver /opt/tritonserver/bin/
RUN sh /opt/tritonserver/bin/link-tritonserver.sh
ENV PATH=/opt/tritonserver/bin:$PATH

# The version in requirements-triton.txt, for those who compare it with a model's opset before they start this.
LABEL io.tritune.onnxruntime="1.32.0"

EXPOSE 8000 8001 8002
CMD ["tritonserver", "--model-repository=/models"]
