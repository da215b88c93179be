from __future__ import annotations

import os
import threading

import pytest

from relayc.backend.runtime import ArgumentError, num_threads, set_num_threads
from relayc.backend.runtime.threads import available_cpus, cgroup_cpu_quota, in_threads


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch):
    monkeypatch.delenv("RELAYC_NUM_THREADS", raising=False)
    yield
    set_num_threads(None)


def _cpus(monkeypatch, count, quota=None):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    monkeypatch.setattr("relayc.backend.runtime.threads.cgroup_cpu_quota", lambda: quota)


def test_the_least_of_all_limits_counts(monkeypatch):
    _cpus(monkeypatch, 16)
    assert num_threads() == 16
    assert num_threads(4) == 4
    assert num_threads(40) == 16
    monkeypatch.setenv("RELAYC_NUM_THREADS", "8")
    assert num_threads() == 8 and num_threads(12) == 8
    set_num_threads(3)
    assert num_threads() == 3 and num_threads(2) == 2
    set_num_threads(None)
    assert num_threads() == 8


@pytest.mark.parametrize(("quota", "expected"), [(None, 16), (2.5, 2), (0.3, 1), (64.0, 16)])
def test_a_quota_counts_whole_cpus(monkeypatch, quota, expected):
    _cpus(monkeypatch, 16, quota)
    assert available_cpus() == expected


@pytest.mark.parametrize("bad", ["0", "-2", "many", "1.5"])
def test_a_bad_variable_is_named(monkeypatch, bad):
    monkeypatch.setenv("RELAYC_NUM_THREADS", bad)
    with pytest.raises(ArgumentError, match=f"RELAYC_NUM_THREADS is '{bad}'; expected a positive integer"):
        num_threads()


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("RELAYC_NUM_THREADS", "")
    _cpus(monkeypatch, 16, None)
    assert num_threads() == 16


def test_bad_counts_are_rejected():
    with pytest.raises(ArgumentError, match="set_num_threads is 0"):
        set_num_threads(0)
    with pytest.raises(ArgumentError, match="num_threads is -1"):
        num_threads(-1)
    with pytest.raises(ArgumentError, match=r"num_threads is 1\.5; expected a positive integer"):
        num_threads(1.5)


def _tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_quota_of_cgroup_v2_takes_the_tightest_ancestor(tmp_path):
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        },
    )
    assert cgroup_cpu_quota(root) == 2.5


def test_quota_of_cgroup_v1_inside_a_container(tmp_path):
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/0123\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_cpu_quota(root) == 1.5


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}])
def test_no_quota(tmp_path, files):
    assert cgroup_cpu_quota(_tree(tmp_path, files)) is None


def test_items_are_shared_between_threads_each_taken_once(monkeypatch):
    _cpus(monkeypatch, 3)
    together, seen = threading.Barrier(3), []

    def take(item):
        if item < 3:
            together.wait(timeout=30)  # all three are at work at once
        seen.append((item, threading.get_ident()))

    in_threads(take, range(100), 1 << 30)
    assert sorted(item for item, _ in seen) == list(range(100))
    assert len({thread for _, thread in seen}) == 3 and threading.get_ident() in {thread for _, thread in seen}


def test_little_work_stays_in_its_thread(monkeypatch):
    _cpus(monkeypatch, 16)
    seen = set()
    in_threads(lambda _: seen.add(threading.get_ident()), range(20), 1000)
    in_threads(lambda _: seen.add(threading.get_ident()), [1], 1 << 30)
    in_threads(lambda _: seen.add(threading.get_ident()), [], 1 << 30)
    assert seen == {threading.get_ident()}


@pytest.mark.parametrize("nbytes", [0, 1 << 30])
@pytest.mark.parametrize("error", [IndexError, KeyboardInterrupt])
def test_what_a_call_raises_is_raised_and_the_rest_left_out(monkeypatch, nbytes, error):
    _cpus(monkeypatch, 2)
    begun = []

    def fail(item):
        begun.append(item)
        raise error(item)

    with pytest.raises(error):
        in_threads(fail, range(1000), nbytes)
    assert len(begun) <= 2
