"""How states are copied, written and kept."""

import io
import os
import time
from threading import Event

import pytest
import torch

from stec import checkpoint
from stec.run import RunFolder


def full():
    raise OSError(28, "No space left on device")


def test_what_was_copied_does_not_change_with_what_it_was_copied_from():
    weight = torch.zeros(3)
    state = {"model": {"w": weight}, "parts": [(weight, 2), {"steps": weight}]}
    copied = checkpoint.to_host(state)
    weight.fill_(1)
    zeros = torch.zeros(3)
    torch.testing.assert_close(copied, {"model": {"w": zeros}, "parts": [(zeros, 2), {"steps": zeros}]})
    without = checkpoint.to_host(state, kept=False)
    assert without == {"model": {"w": None}, "parts": [(None, 2), {"steps": None}]}


@pytest.mark.parametrize("links", [True, False])
def test_the_last_two_are_kept_also_where_files_have_one_name(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    there, publish = [], checkpoint.publish
    monkeypatch.setattr(checkpoint, "publish", lambda part, path: there.append(path.exists()) or publish(part, path))
    folder = RunFolder(tmp_path, "")
    for step in range(4):
        checkpoint.write({"step": step}, folder)
    assert there == [False, *[links] * 3], "the last one keeps its name until the next one takes it"
    assert checkpoint.read(folder.checkpoint) == {"step": 3}
    assert checkpoint.read(folder.previous) == {"step": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-previous.pt", "checkpoint.pt"]


def test_tensors_without_names_are_no_state(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "checkpoint.pt")
    with pytest.raises(checkpoint.DamagedError, match="it holds no state of a run"):
        checkpoint.read(tmp_path / "checkpoint.pt")


def test_a_piece_that_could_not_be_written_is_not_sealed_over():
    """As on a disk that is full for a moment."""

    class FailsOnce(io.BytesIO):
        failed = False

        def write(self, data):
            if not self.failed:
                self.failed = True
                full()
            return super().write(data)

    sealing = checkpoint._Sealing(FailsOnce())
    torch.save({"w": torch.zeros(3)}, sealing)
    with pytest.raises(OSError, match="No space left"):
        sealing.seal()


def test_one_thing_is_written_after_the_other():
    released, done = Event(), []
    with checkpoint.Writer() as writer:
        writer.start(lambda: released.wait(10) and done.append("first"))
        assert writer.busy
        assert not done, "the caller goes on meanwhile"
        released.set()
        writer.start(lambda: time.sleep(0.1) or done.append("second"))
        assert done[0] == "first"
    assert done == ["first", "second"]
    assert not writer.busy


def test_an_error_of_the_writer_is_raised_once_and_at_the_end_at_the_latest():
    writer = checkpoint.Writer()
    writer.start(full)
    writer.join()
    with pytest.raises(OSError, match="No space left"):
        writer.check()
    writer.check()
    with pytest.raises(OSError, match="No space left"), checkpoint.Writer() as writer:
        writer.start(full)


def test_an_error_of_the_writer_does_not_hide_the_one_that_ended_the_run():
    def diverge():
        with checkpoint.Writer() as writer:
            writer.start(full)
            raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        diverge()
