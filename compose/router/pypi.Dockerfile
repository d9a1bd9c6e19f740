# A router that is published on PyPI.
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG PACKAGE
RUN pip install --no-cache-dir ${PACKAGE}
