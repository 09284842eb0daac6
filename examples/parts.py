"""Parts of one's own: QK-norm, squared ReLU and a quadratic decay.

python ablations/run.py --ladder examples/parts.py --variant all --scale tiny --stages pretrain --cluster here
"""

from dataclasses import replace

from torch import Tensor

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification as Change
from neobert.model.encoder import Block, BlockParts
from neobert.model.layers import GELUFeedForward


class QKNorm(Block):
    def __init__(self, parts: BlockParts) -> None:
        super().__init__(parts)
        self.query_norm, self.key_norm = (parts.norm(parts.qkv.in_features // parts.heads) for _ in range(2))

    def normalize(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_norm(query), self.key_norm(key)


class SquaredReLU(GELUFeedForward):
    def forward(self, hidden: Tensor) -> Tensor:
        return self[2](self[0](hidden).relu().square())


def quadratic(progress: float) -> float:
    return (1 - progress) ** 2


CHANGES = {
    "qk": Change("QK-norm", source="arXiv 2010.04245", model={"block": QKNorm}),
    "relu2": Change("Squared ReLU", source="arXiv 2109.08668", model={"feedforward": SquaredReLU}),
    "square": Change("Quadratic decay", source="this study", optimization={"decay": quadratic}),
}
M5 = replace(ladder.M5, parent=None, modifications=())
ARMS = [M5.derive(name, change, kept=False) for name, change in CHANGES.items()]
SHAPES = {"trained": {(12, 768): (2, 16)}, "published": {(12, 768): (2, 16)}}
TINY = replace(SMOKE, shapes=SHAPES, heads=2, documents=200, contexts={512: 64})
SCALES = {"tiny": replace(TINY, tokens_per_step={131_072: 256}, steps={1_000_000: 6})}
