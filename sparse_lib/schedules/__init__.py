"""Schedules: from a step to a value, or to whether masks are updated."""

from sparse_lib.schedules.updates import (
    CallableSchedule,
    FreqSchedule,
    ListSchedule,
    Updates,
    UpdateSchedule,
    make_update_schedule,
)
from sparse_lib.schedules.values import (
    Constant,
    Cosine,
    Cubic,
    Cycling,
    Exp,
    HyperParameterSchedule,
    Lambda,
    Level,
    Linear,
    Periodic,
    Polynomial,
    Power,
    make_hyperparameter_schedule,
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
