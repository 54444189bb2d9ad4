"""No positions. Without a mask a model then cannot see order at all; with a causal mask it can, because
each token sees a different number of others."""

from headway.positions.positions import Positions


class NoPositions(Positions):
    name = "none"
    blind = True
    reversible = True
    uses_index = False


class NoPositionsCausal(Positions):
    name = "none-causal"
    causal = True
    uses_index = False
