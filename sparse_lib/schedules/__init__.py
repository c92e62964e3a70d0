"""Schedules: from a step to a value, or to whether masks are updated."""

from sparse_lib.schedules.specs import (
    Level,
    Updates,
    make_hyperparameter_schedule,
    make_update_schedule,
)
from sparse_lib.schedules.updates import (
    CallableSchedule,
    FreqSchedule,
    ListSchedule,
    UpdateSchedule,
)
from sparse_lib.schedules.values import (
    Constant,
    Cosine,
    Cubic,
    Cycling,
    Exp,
    HyperParameterSchedule,
    Lambda,
    Linear,
    Periodic,
    Polynomial,
    Power,
)

__all__ = [
    "CallableSchedule",
    "Constant",
    "Cosine",
    "Cubic",
    "Cycling",
    "Exp",
    "FreqSchedule",
    "HyperParameterSchedule",
    "Lambda",
    "Level",
    "Linear",
    "ListSchedule",
    "Periodic",
    "Polynomial",
    "Power",
    "UpdateSchedule",
    "Updates",
    "make_hyperparameter_schedule",
    "make_update_schedule",
]
