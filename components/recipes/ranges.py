"""Numeric types of recipe and piece options, with their ranges. Strings, nan and infinity are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, Strict

Bool = Annotated[bool, Strict()]
Int = Annotated[int, Strict()]
Natural = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Finite = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
PositiveShare = Annotated[float, Strict(), Field(gt=0, le=1)]
Above1 = Annotated[float, Strict(), Field(gt=1, allow_inf_nan=False)]
BelowHalf = Annotated[float, Strict(), Field(ge=0, lt=0.5)]
BelowOne = Annotated[float, Strict(), Field(ge=0, lt=1)]
OpenShare = Annotated[float, Strict(), Field(gt=0, lt=1)]
LearningRate = Annotated[float, Strict(), Field(gt=0, le=1)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
Temperature = Annotated[float, Strict(), Field(ge=0, le=10)]
Names = Annotated[list[str], Field(min_length=1)]
Weights = Annotated[list[Finite], Field(min_length=1)]
EnvironmentSpec = Mapping[str, Any]  # an environment piece with its options, or its name
ArrayEnvironmentSpec = Mapping[str, Any]  # an environment of arrays with its options, or its name
RewardSpec = Mapping[str, Any]  # a reward piece with its options, or its name
SelectorSpec = Mapping[str, Any]  # a selector with its options, or its name
