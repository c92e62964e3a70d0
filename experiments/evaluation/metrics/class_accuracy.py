"""Top-1 accuracy of each class that occurs, as a score of the task ``class:<name>``."""

from experiments.evaluation.outputs import Estimate, Images, mean

OF, HIGHER_IS_BETTER = Images, True


def compute(outputs: Images) -> dict[str, Estimate]:
    """Accuracies by class."""
    correct = (outputs.ranks == 0).astype(float)
    own = {name: correct[outputs.labels == k] for k, name in enumerate(outputs.classes)}
    chance = 1 / len(outputs.classes)
    return {f"class:{name}": mean(part, chance) for name, part in own.items() if len(part)}
