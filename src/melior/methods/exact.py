"""Exact methods for finite problems: records of the solver frame."""

from __future__ import annotations

from melior.exact.value_iteration import ValueIteration
from melior.method import Entry, Paper

VALUE_ITERATION = Entry(
    ValueIteration(),
    paper=Paper("A Markovian Decision Process", "Bellman", 1957, url="doi:10.1512/iumj.1957.6.56038"),
    track="tabular-base",
    evidence="textbook form",
    problem="What is the best that can be done in a finite problem whose probabilities are known?",
    move="Look one step ahead from the current values and keep the best; each sweep shrinks the error by gamma.",
    formula="V <- max_a (r + gamma P V);  |V_k+1 - V*| <= gamma / (1 - gamma) |V_k+1 - V_k|",
    use_when="States and actions fit in memory: it is the referee for methods that learn from samples.",
    beware="Sweeps grow like 1 / (1 - gamma): for gamma very near 1 policy iteration is faster.",
    alias="value-iteration",
)
