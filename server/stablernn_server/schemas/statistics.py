"""Responses of Triton's statistics extension."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Duration(BaseModel):
    count: int
    ns: int = Field(description="Total time in nanoseconds.")


class InferenceStatistics(BaseModel):
    """Statistics by request. ``compute_infer`` includes gathering inputs and splitting outputs; nothing is cached."""

    success: Duration = Field(description="Answered requests, from the head to the end of the response.")
    fail: Duration = Field(description="Requests that were refused or failed.")
    queue: Duration = Field(description="Wait until the run began.")
    compute_input: Duration
    compute_infer: Duration = Field(description="Time of the run, counted once for each request in it.")
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(BaseModel):
    """Statistics by run."""

    batch_size: int = Field(description="Number of rows; above 1024, the next power of two.")
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistic(BaseModel):
    name: str
    version: str
    last_inference: int = Field(description="End of the last run, in milliseconds of Unix time; 0 for never.")
    inference_count: int = Field(description="Number of sequences and streams in all runs.")
    execution_count: int = Field(description="Number of runs.")
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class StatisticsAnswer(BaseModel):
    model_stats: list[ModelStatistic]
