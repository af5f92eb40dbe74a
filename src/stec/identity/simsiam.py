"""SimSiam: from one view, predict the projection of the other, which is taken as given (Chen and He 2021)."""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity.interface import Identity, IdentityOutput
from stec.networks.heads import mlp, projector
from stec.noncontrastive import partner_accuracy, simsiam
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class SimSiam(Identity):
    """Negative cosine between prediction and projection; the stopped gradient keeps it from collapsing.

    The projector has two layers, as in the paper's CIFAR experiments and in AugSelf's on STL-10 (three on ImageNet),
    with batch norm on its output. That has no scale, as in the authors' code: a trained one lets the projections
    shrink to the few dimensions that are predicted best. The predictor's hidden layer is a bottleneck, a quarter of
    the output. The authors leave its rate constant on ImageNet, others on CIFAR-10, too: `predictor_rate`.
    """

    settings = ("hidden", "output", "predictor_rate")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.projector = projector(dim, config.hidden, config.output, output_scale=False)
        self.predictor = mlp(config.output, max(1, config.output // 4), config.output)
        self.predictor_rate = config.predictor_rate

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.projector(features)
        first, second = projections.chunk(2)
        first_prediction, second_prediction = self.predictor(projections).chunk(2)
        loss = average(simsiam(first_prediction, second_prediction, first, second), len(first))
        accuracy = partner_accuracy(gather(first.detach()), gather(second.detach()), own_rows(len(first)))
        return IdentityOutput(loss, average(accuracy, len(first)), projections, (first, second))

    def steady(self) -> list[nn.Module]:
        """The predictor, where its rate is constant."""
        return [self.predictor] if self.predictor_rate == "constant" else []

    def queries(self, features: Tensor) -> Tensor:
        """The predictions."""
        return self.predictor(self.projector(features))

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """From a small view, the projections of the large ones are predicted."""
        return average(simsiam(queries, queries, *keys), len(queries))
