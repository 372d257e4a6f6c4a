"""The mean of a peer's weights and the own ones, and whether it is worth having.

The mean of the weights of models that come from one base is a model that has learnt what both have learnt (model soups,
arXiv 2203.05482; the outer step of DiLoCo, arXiv 2311.08105), and has forgotten some of what only one of them can. So a
mean is held to what the own weights answer in each task, and tried again with less of the peer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from swarmd.training.sampling.evaluation import Accuracy, mean_accuracy

SHARES = (0.5, 0.25)  # of a peer's weights in the means that are tried, one after another
DEVIATIONS = 1.5  # of the difference of two measurements, beyond which a task has become worse
DEVIATIONS_IN_ALL = 1.0  # beyond which all tasks together have


def mix(own: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """The weighted mean, with this share of theirs; 1 gives theirs as they are. Of the tensors that they have.

    What is no floating-point number, such as a buffer of counts or a mask, has no mean and stays as it is.
    """
    if share >= 1:
        return dict(theirs)
    return {name: _mean(own[name], value, share) for name, value in theirs.items()}


def _mean(own: torch.Tensor, theirs: torch.Tensor, share: float) -> torch.Tensor:
    return torch.lerp(own, theirs.to(own.dtype), share) if own.is_floating_point() else own


def find_worse(own: Mapping[str, Accuracy], best: Mapping[str, float], found: Mapping[str, Accuracy]) -> str:
    """What is worse with the mean than with the own weights, in words; empty where nothing is.

    A task is worse where it is so beyond what may be chance, beside the best that this node has been there: else each
    mean could take a little, and in the end all of it. A node that is below its best anyway takes none that is not
    better there, beyond chance.

    Args:
        own: accuracy of the own weights, by task.
        best: the best that it has been, by task.
        found: accuracy of the mean, on the same questions.
    """
    for task, measured in found.items():
        without, questions = own[task].correct, own[task].questions
        chance = DEVIATIONS * _noise(without, questions)
        if measured.correct < min(max(best.get(task, 0.0), without) - chance, without + chance):
            return f"{task} is answered to {measured.correct:.3f} with the mean, {without:.3f} without"
    before, after = mean_accuracy(own) or 0.0, mean_accuracy(found) or 0.0
    questions = sum(each.questions for each in own.values())
    if after < before - DEVIATIONS_IN_ALL * _noise(before, questions):
        return f"an accuracy of {after:.3f} with the mean, {before:.3f} without"
    return ""


def _noise(share: float, questions: int) -> float:
    """Standard deviation of the difference of two measurements with so many questions each (Agresti and Coull)."""
    share = (share * questions + 2) / (questions + 4)
    return math.sqrt(2 * share * (1 - share) / (questions + 4))
