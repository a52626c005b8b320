"""How much each setting of a search decides: Optuna's importance, of results that somebody has."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from labkit.errors import InputError, require_extra

Direction = Literal["maximize", "minimize"]
FEWEST = 4  # results


def importances(
    space: Mapping[str, Any], results: Sequence[tuple[Mapping[str, Any], float]], *, direction: Direction
) -> list[tuple[str, float]]:
    """Return the share of each setting in the differences of the results, the largest first.

    They are those of fANOVA (Hutter et al., "An efficient approach for assessing hyperparameter importance",
    2014), which Optuna computes.

    Args:
        space: of each setting by its name, with the attributes ``kind`` (``float``, ``int`` or ``choice``),
            ``low``, ``high``, ``log`` and ``choices``.
        results: the settings of a trial, and its result.
        direction: of what is better.

    Raises InputError where Optuna isn't installed, and for too few different results.
    """
    require_extra("search", ("optuna",), "The importance of settings")
    import optuna  # takes a second

    if len(results) < FEWEST or len({value for _, value in results}) < 2:
        raise InputError(f"The importance of settings needs {FEWEST} different results of one rung.")
    kinds: Any = optuna.distributions
    distributions = {
        name: kinds.CategoricalDistribution(one.choices)
        if one.kind == "choice"
        else (kinds.IntDistribution if one.kind == "int" else kinds.FloatDistribution)(
            one.low, one.high, log=one.log
        )
        for name, one in space.items()
    }
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=direction)
    for values, value in results:
        known = {name: values[name] for name in space}
        study.add_trial(optuna.trial.create_trial(params=known, distributions=distributions, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return sorted(shares.items(), key=lambda pair: -pair[1])
