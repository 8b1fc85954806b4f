"""Updates: how do the parameters move?"""

from melior.updates.gradient import Gradient
from melior.updates.step_norm import StepNorm
from melior.updates.turn_by_turn import TurnByTurn

__all__ = ["Gradient", "StepNorm", "TurnByTurn"]
