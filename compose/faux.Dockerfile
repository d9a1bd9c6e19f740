# What the fake engine is made of, without the fake itself.
ARG BASE=python:3.12-slim
FROM ${BASE}
COPY pyproject.toml README.md LICENSE /project/
RUN python3 -m venv /opt/faux && /opt/faux/bin/pip install --no-cache-dir '/project[faux]'
ENV PATH=/opt/faux/bin:$PATH
