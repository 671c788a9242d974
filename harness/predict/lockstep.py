"""What a step would take on a link where it was trained in lockstep, without one."""

from __future__ import annotations

from dataclasses import replace

from harness.precision import Precision
from harness.predict.costs import PredictError, given_costs
from harness.predict.layers import Layers
from harness.predict.trial import foretell_job
from harness.trial import Trial
from results.record import Prediction


def predicted_step(trial: Trial, layers: Layers, source: str) -> Prediction | None:
    """What a step of a lockstep trial would take on the link that its fabric names, if that can be known.

    `layers` are one rank's times a micro-batch in float32, `source` where they are from.
    """
    (job,), rate_bps = trial.jobs, trial.fabric.rate_bps
    if rate_bps is None or job.precision is not Precision.FLOAT32:
        return None
    costs = given_costs(trial.world, alpha_s=trial.fabric.alpha_s, beta_s_per_byte=8 / rate_bps)
    try:
        prediction = foretell_job(job, layers, costs).prediction
    except PredictError:
        return None
    return replace(prediction, source=f"{prediction.source}; layer times: {source}")
