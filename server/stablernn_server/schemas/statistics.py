"""Answers of Triton's statistics extension."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Duration(BaseModel):
    count: int
    ns: int = Field(description="Nanoseconds of all of them together.")


class InferenceStatistics(BaseModel):
    """By request. Where inputs are gathered and answers taken apart is part of ``compute_infer``; nothing is cached."""

    success: Duration = Field(description="Answered requests, from their head to the end of the answer.")
    fail: Duration = Field(description="Those that were refused or failed.")
    queue: Duration = Field(description="Wait until the run began.")
    compute_input: Duration
    compute_infer: Duration = Field(description="The run, counted once for each request in it.")
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(BaseModel):
    """By run."""

    batch_size: int = Field(description="Rows; above 1024 the next power of two.")
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistic(BaseModel):
    name: str
    version: str
    last_inference: int = Field(description="Milliseconds of Unix time; 0 for never.")
    inference_count: int = Field(description="Sequences and streams in all runs.")
    execution_count: int = Field(description="Runs.")
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class StatisticsAnswer(BaseModel):
    model_stats: list[ModelStatistic]
