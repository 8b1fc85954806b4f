"""Updates: how do the parameters move?"""

from melior.updates.gradient import Gradient

__all__ = ["Gradient"]
