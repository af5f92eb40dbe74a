"""The SimCLR identity model: alone against the equations, and in two processes against one."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from lightly.loss import NTXentLoss
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stec.config import IdentityConfig
from stec.identity import SimCLR
from stec.identity.simclr import gather

PAIRS, PIXELS, DIM, PROCESSES = 6, 10, 8, 2  # pairs of each process


class Model(nn.Module):
    """An encoder and the identity model, without a batch (SimCLR reads features alone)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(PIXELS, DIM)
        self.encoder.dim = DIM
        self.identity = SimCLR(self.encoder, IdentityConfig(temperature=0.2, hidden=16, output=5))
        # Batch norms use these instead of the statistics of a batch, which would differ between processes.
        for module in self.identity.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        loss, accuracy = self.identity(self.encoder(views), batch=None)
        return loss, accuracy


def views_of(process: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + process)
    first = torch.randn(PAIRS, PIXELS, generator=generator)
    return first, first + 0.5 * torch.randn(PAIRS, PIXELS, generator=generator)


def train_in_one_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    model = Model()
    parallel = DistributedDataParallel(model)  # averages gradients over processes, as long as it exists
    loss, accuracy = parallel(torch.cat(views_of(rank)))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    rows = gather(torch.full((2, 1), float(rank), requires_grad=True))
    torch.save(
        {"loss": loss.detach(), "accuracy": accuracy, "gradients": gradients, "rows": rows.detach()},
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(train_in_one_of_two, args=(str(folder),), nprocs=PROCESSES)
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture(scope="module")
def one_process() -> dict:
    model = Model()
    first, second = zip(*(views_of(process) for process in range(PROCESSES)), strict=True)
    loss, accuracy = model(torch.cat([*first, *second]))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"loss": loss.detach(), "accuracy": accuracy, "gradients": gradients}


def test_two_processes_give_the_loss_of_one(two_processes: list[dict], one_process: dict) -> None:
    for process in two_processes:
        torch.testing.assert_close(process["loss"], one_process["loss"], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(process["accuracy"], one_process["accuracy"])


def test_two_processes_give_the_gradients_of_one(two_processes: list[dict], one_process: dict) -> None:
    assert len(one_process["gradients"]) == 7
    for name, expected in one_process["gradients"].items():
        assert expected.abs().max() > 1e-4
        for process in two_processes:
            torch.testing.assert_close(process["gradients"][name], expected, rtol=1e-5, atol=1e-6)


def test_two_processes_contrast_with_each_other(one_process: dict) -> None:
    """The loss of one is not the mean of what its halves would give by themselves."""
    alone = [Model()(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert one_process["loss"] > torch.stack(alone).mean() + 0.1


def test_rows_are_gathered_process_by_process(two_processes: list[dict]) -> None:
    for process in two_processes:
        assert process["rows"].flatten().tolist() == [0, 0, 1, 1]


def test_one_process_gathers_its_own_rows() -> None:
    rows = torch.randn(3, 2)
    assert gather(rows) is rows


def test_loss_and_accuracy_of_one_process() -> None:
    """Loss: twice lightly's, on the same projections. Accuracy: the nearest other view by a loop."""
    model = Model()
    first, second = views_of(0)
    views = torch.cat([first, second])
    loss, accuracy = model(views)
    projections = model.identity.projector(model.encoder(views))
    expected = 2 * NTXentLoss(temperature=0.2)(*projections.chunk(2))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)

    found = 0
    for i in range(2 * PAIRS):
        similarity = torch.cosine_similarity(projections[i], projections, dim=1)
        similarity[i] = -2
        found += int(similarity.argmax()) == (i + PAIRS) % (2 * PAIRS)
    assert 0 < found < 2 * PAIRS
    assert float(accuracy) == pytest.approx(found / (2 * PAIRS))
    assert not accuracy.requires_grad


def test_the_projector_has_the_configured_shape() -> None:
    encoder = nn.Linear(PIXELS, 7)
    encoder.dim = 7
    model = SimCLR(encoder, IdentityConfig(hidden=11, output=3))
    assert [(m.in_features, m.out_features) for m in model.projector if isinstance(m, nn.Linear)] == [(7, 11), (11, 3)]
    assert not any(parameter is encoder.weight for parameter in model.parameters())  # the encoder is the method's
