"""Defects that are read, with honest lines that look like them; and the reading of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from repairgym.tasks.audit.foreign.file_reading import named_paths, read_tests, read_visible
from repairgym.tasks.audit.foreign.harbor_folder import (
    Copy,
    HarborFolder,
    Run,
    find_folders,
    missing_image,
    read_harbor_folder,
)
from repairgym.tasks.audit.foreign.rewards import Reward, read_reward
from repairgym.tasks.audit.foreign.shell_reading import read_scripts

LIMITS = "[verifier]\ntimeout_sec = 60.0\n[agent]\ntimeout_sec = 60.0\n"


def make(folder: Path, **files: str) -> HarborFolder:
    """A folder with a Dockerfile, limits and an empty test script, and ``files`` (``__`` for /, ``_`` for a dot)."""
    fixed = {"task.toml": LIMITS, "tests/test.sh": "#!/bin/bash\n", "environment/Dockerfile": "FROM python:3.11\n"}
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    for name, text in {**fixed, **named}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_harbor_folder(folder)


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ("pytest /tests | tee /logs/out.txt\nif [ $? -eq 0 ]; then", ["status_swallowed"]),
        ("if python3 -m pytest /tests | tee out; then", ["status_swallowed"]),
        ("set -o pipefail\npytest /tests | tee out\nstatus=$?", []),
        ("pytest /tests | tee out\nstatus=${PIPESTATUS[0]}", []),
        ("pytest /tests || true\nstatus=$?", ["status_swallowed"]),
        ("rm -rf build || true\npytest /tests\nstatus=$?", []),
        ("count=$(ls | wc -l)\npytest /tests\nstatus=$?", []),
        ("pip install pytest", ["unpinned_download"]),
        ("pip install -q pytest==8.4.1 -r requirements.txt", []),
        ("python3 -m pip install --index-url https://example.org/simple pytest>=8", []),
        ("uvx --with pytest pytest /tests", ["unpinned_download"]),
        ("uvx -p 3.13 \\\n  -w pytest==8.4.1 \\\n  pytest /tests", []),
        ("npm install jest", ["unpinned_download"]),
        ("curl -LsSf https://astral.sh/uv/install.sh | sh", ["unpinned_download"]),
        ("curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh", []),
        ("git clone https://example.org/a/b", ["unpinned_download"]),
        ("git clone --branch v1.2 https://example.org/a/b", []),
        ("# pip install pytest", []),
        ("curl -s https://example.org/answer.json -o answer.json", ["needs_network"]),
        ("curl -s http://localhost:8000/health", []),
        ("n=$RANDOM", ["depends_on_random"]),
        ("today=$(date)", ["depends_on_time"]),
        ("start=$(date +%s)", []),
        ("cp /tests/data/expected.txt /tmp/x", ["missing_file"]),
        ("echo 1 > /tests/made.txt\ncat /tests/made.txt", []),
    ],
)
def test_lines_of_a_verifier(lines: str, kinds: list[str], tmp_path: Path) -> None:
    folder = make(tmp_path, tests__test_sh=f"#!/bin/bash\n{lines}\n")
    assert [defect.kind for defect in read_scripts(folder)] == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("import datetime\nassert age() == datetime.date.today().year - 2000\n", ["depends_on_time"]),
        ("import time\nstart = time.time()\n", []),
        ("import random\nx = random.randint(0, 9)\n", ["depends_on_random"]),
        ("import random\nrandom.seed(1)\nx = random.randint(0, 9)\n", []),
        ("import random\nx = random.Random(7).random()\n", []),
        ("import requests\nrequests.get('https://example.org')\n", ["needs_network"]),
        ("import requests\nrequests.get('http://localhost:80')\n", []),
        ("def test_x(:\n", ["no_tests"]),
    ],
)
def test_calls_of_tests(text: str, kinds: list[str], tmp_path: Path) -> None:
    assert [defect.kind for defect in read_tests(make(tmp_path, tests__check_py=text))] == kinds


def test_limits_line_ends_and_modes(tmp_path: Path) -> None:
    script = "/tests/run_checks.sh && echo 1 > /logs/verifier/reward.txt\r\n"
    folder = make(tmp_path, task_toml="[agent]\ntimeout_sec = 5\n", tests__test_sh=script)
    (tmp_path / "tests" / "run_checks.sh").write_text("exit 0\n")
    folder = read_harbor_folder(tmp_path)
    evidence = [defect.evidence for defect in read_scripts(folder)]
    limits, mode, ends = evidence
    assert limits == "task.toml sets no timeout_sec in verifier"
    assert mode == "tests/test.sh executes /tests/run_checks.sh, which has mode 644"
    assert "CR LF" in ends
    (tmp_path / "tests" / "run_checks.sh").chmod(0o755)
    assert [defect.evidence for defect in read_scripts(read_harbor_folder(tmp_path))] == [limits, ends]


def test_the_steps_of_a_dockerfile(tmp_path: Path) -> None:
    text = """# a comment
FROM python:3.12 AS build
COPY gone.txt /gone.txt
FROM debian:12-slim
ARG PLACE=/srv/app
ENV LANG=C.UTF-8 MODE="a b"
WORKDIR $PLACE
COPY --chown=me:me data ./data/
COPY ["a.py", "b.py", "lib/"]
COPY --from=build /x /x
COPY *.md missing.txt /docs/
WORKDIR ..
RUN --mount=type=cache,target=/x mkdir -p \\
    out && echo $HOME
"""
    files = {"data__one_csv": "1", "data__two_csv": "2", "a_py": "a", "b_py": "b", "x_md": "x"}
    folder = make(tmp_path, environment__Dockerfile=text, **{f"environment__{k}": v for k, v in files.items()})
    image = folder.image
    assert (image.base, image.folder, image.missing) == ("debian:12-slim", "/srv", ["missing.txt"])
    assert image.environment == {"LANG": "C.UTF-8", "MODE": "a b"}
    copied = ["/srv/app/data/one.csv", "/srv/app/data/two.csv", "/srv/app/lib/a.py", "/srv/app/lib/b.py", "/docs/x.md"]
    assert sorted(image.copied) == sorted(copied)
    assert [type(step) for step in image.steps] == [Copy, Copy, Copy, Run]
    run = image.steps[-1]
    assert isinstance(run, Run)
    assert (run.command.split(), run.folder) == (["mkdir", "-p", "out", "&&", "echo", "$HOME"], "/srv")


@pytest.mark.parametrize(
    ("lines", "copied"),
    [
        ("WORKDIR /app\nCOPY main.py /app", ["/app/main.py"]),
        ("WORKDIR /app/deep\nWORKDIR /\nCOPY main.py /app", ["/app/main.py"]),
        ("COPY data /app\nCOPY main.py /app", ["/app/main.py", "/app/x"]),
        ("RUN mkdir -p /a /app && ls\nCOPY main.py /app", ["/app/main.py"]),
        ("COPY main.py /usr/local/bin", ["/usr/local/bin/main.py"]),
        ("COPY main.py /", ["/main.py"]),
        ("COPY main.py /app", ["/app"]),
        ("WORKDIR /app\nCOPY main.py run", ["/app/run"]),
        ("FROM debian:12 AS a\nWORKDIR /app\nFROM debian:12\nCOPY main.py /app", ["/app"]),
    ],
)
def test_a_file_goes_into_a_folder_that_is_there(lines: str, copied: list[str], tmp_path: Path) -> None:
    files = {"environment__main_py": "m", "environment__data__x": "x"}
    folder = make(tmp_path, environment__Dockerfile=f"FROM python:3.11\n{lines}\n", **files)
    assert sorted(folder.image.copied) == copied


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        ("COPY <<EOF /app/conf\nCOPY gone.txt /x\nEOF", "COPY <<EOF /app/conf"),
        ("RUN <<'END'\napt-get update\nCOPY gone.txt /x\nEND", "RUN <<'END'"),
        ("RUN python - <<-E && cat <<F >x\nRUN a\nE\nCOPY gone.txt /x\nF", "RUN python - <<-E && cat <<F >x"),
        ('RUN echo "1 <<n" $((1<<2)) && cat <<<x', ""),
        ("FROM debian:12 AS a\nRUN <<E\nls\nE\nFROM debian:12", ""),
    ],
)
def test_here_documents_are_named_and_hide_nothing_else(lines: str, start: str, tmp_path: Path) -> None:
    text = f"FROM python:3.11\n{lines}\nCOPY main.py /y\n"
    folder = make(tmp_path, environment__Dockerfile=text, environment__main_py="m")
    assert (folder.image.heredoc, folder.image.missing, list(folder.image.copied)) == (start, [], ["/y"])
    assert missing_image(folder) == (f"what the here-document of `{start}` makes" if start else "")


def test_what_docker_ignores_is_not_in_the_image(tmp_path: Path) -> None:
    copy_all = "FROM python:3.11\nCOPY . /app/\n"
    files = {
        "keep_py": "k",
        "answers__a_txt": "a",
        "b_log": "b",
        ".dockerignore": "# mine\nDockerfile\n/answers\n*.log\n",
    }
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / ".dockerignore").write_text(files.pop(".dockerignore"))
    folder = make(tmp_path, environment__Dockerfile=copy_all, **{f"environment__{k}": v for k, v in files.items()})
    assert sorted(folder.image.copied) == ["/app/.dockerignore", "/app/keep.py"]


def test_paths_of_an_instruction(tmp_path: Path) -> None:
    text = (
        "Write `/app/out.txt` from /app/in.csv. Do not touch /app/keep.txt. See https://x.org/app/y and `GET /users/1`."
    )
    folder = make(tmp_path, instruction_md=text, environment__Dockerfile="FROM python:3.11\nWORKDIR /app\n")
    assert named_paths(folder) == ["/app/in.csv", "/app/out.txt"]


def test_copies_of_tests_and_of_the_solution(tmp_path: Path) -> None:
    checks = "".join(f"assert compute({number}) == {number * 7}\n" for number in range(6))
    folder = make(tmp_path, tests__check_py=checks, tests__answer_csv="id,value\n1,2\n2,3\n3,5\n")
    fixed = b"def compute(number):\n    total = number * 7\n    return total + 0\n"
    answer = b"id,value\n1,2\n2,3\n3,5\n"
    hidden: dict[str, bytes] = {"/app/a.py": b"def compute(number):\n    pass\n"}

    def kinds(initial: dict[str, bytes]) -> list[str]:
        return [defect.kind for defect in read_visible(folder, initial, {"/app/a.py": fixed, "/app/out.csv": answer})]

    assert kinds(hidden) == []
    assert kinds({**hidden, "/x/renamed.py": b"# mine\n" + checks.encode()}) == ["tests_visible"]
    assert kinds({**hidden, "/x/cut.py": checks.replace("compute(5)", "(5)").encode()}) == []  # one check is hidden
    assert kinds({**hidden, "/x/backup.txt": fixed + b"# the end\n"}) == []  # two lines are no proof
    assert kinds({**hidden, "/x/cache.csv": answer}) == ["solution_visible"]


@pytest.mark.parametrize(
    ("text", "json_text", "reward"),
    [
        ("", "", Reward(None)),
        ("1\n", '{"reward": 0}', Reward(1.0)),
        ("", '{"reward": 0.5, "num_tests": 12}', Reward(0.5)),
        ("", '{"score": 1}', Reward(1.0)),
        ("", "0.25", Reward(0.25)),
        ("100", "", Reward(100.0, "the reward 100 is outside of 0 to 1")),
        ("nan", "", Reward(float("nan"), "the reward nan is outside of 0 to 1")),
        ("passed", "", Reward(None, "the reward 'passed' is no number")),
        ("", "{", Reward(None, "reward.json is no JSON: '{'")),
    ],
)
def test_rewards(text: str, json_text: str, reward: Reward) -> None:
    assert repr(read_reward(text, json_text)) == repr(reward)


def test_a_folder_of_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make(tmp_path / name)
    assert [folder.name for folder in find_folders(tmp_path)] == ["a", "b"]
    assert find_folders(tmp_path / "a") == [tmp_path / "a"]
