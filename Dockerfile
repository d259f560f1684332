# RepairGym on machines without Linux (macOS, Windows) or without Python: a container with everything that the demo needs.
#
#   docker build -t repairgym .
#   docker run --rm -it --privileged -v "$PWD/runs:/repairgym/runs" repairgym repairgym demo --run runs/demo
#
# Sandboxes are Linux namespaces inside the container, which needs --privileged (or: --security-opt seccomp=unconfined
# --security-opt apparmor=unconfined --cap-add SYS_ADMIN). `repairgym doctor` says whether they start.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap git make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /repairgym
COPY . .
ARG TORCH_INDEX=
RUN make setup TORCH_INDEX="$TORCH_INDEX" && ln -s /repairgym/.venv/bin/repairgym /usr/local/bin/repairgym
CMD ["repairgym", "doctor"]
