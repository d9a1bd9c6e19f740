# HAProxy on an image that has none, for machines without an image registry; others take the published image.
#
#     docker build -t router -f compose/router/haproxy.Dockerfile compose/router
ARG BASE=debian:12-slim
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
