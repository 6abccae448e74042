# One image for every role; the command chooses: api, runner, migrate. Locked packages, checked hashes, no root.
FROM node:22-slim AS console
WORKDIR /build/console
COPY console/package.json console/package-lock.json console/.npmrc ./
RUN npx --yes npm@10.9.9 ci --no-audit --no-fund
COPY console .
RUN node_modules/.bin/vite build --outDir /build/bundle --emptyOutDir

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN python -m venv /opt/vitrina \
    && /opt/vitrina/bin/pip install --require-hashes -r requirements/runtime.txt \
    && pip install --require-hashes -r requirements/build.txt
# After the packages, so that a change of source does not fetch them again.
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY --from=console /build/bundle src/vitrina/api/console
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/vitrina/bin/pip install --no-deps dist/vitrina-*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --create-home --home-dir /home/vitrina vitrina
COPY --from=build /opt/vitrina /opt/vitrina
ENV PATH=/opt/vitrina/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 VITRINA_LOG_FORMAT=json
USER vitrina
WORKDIR /home/vitrina
EXPOSE 8000
# For the API, the default command; infra/docker-compose.yml has the runner's own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=3)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["vitrina"]
CMD ["api", "--host", "0.0.0.0", "--port", "8000"]
