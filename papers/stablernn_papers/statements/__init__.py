"""Statements of the papers, each with a rule that judges it by the stored figures. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn_papers.statements.antisymmetric import ANTISYMMETRIC
from stablernn_papers.statements.latent_vector_field import LATENT_VECTOR_FIELD
from stablernn_papers.statements.lipschitz import LIPSCHITZ, LIPSCHITZ_ROBUSTNESS
from stablernn_papers.statements.rules import VERDICTS, Evidence, Statement

__all__ = ["STATEMENTS", "VERDICTS", "Statement", "judge_statements"]

STATEMENTS: tuple[Statement, ...] = (*ANTISYMMETRIC, *LIPSCHITZ, *LIPSCHITZ_ROBUSTNESS, *LATENT_VECTOR_FIELD)


def judge_statements(results: Mapping[str, Mapping[str, Any] | None]) -> list[dict[str, str]]:
    """Judge every statement by results.

    Args:
        results: Results of the full protocol by the key of their table; None or a missing key where there are none.

    Returns:
        For each statement ``key``, ``table``, ``statement``, ``source``, ``verdict`` (``held``, ``not held`` or ``not
        tested``) and ``figures``, the sentence with the figures that the verdict is drawn from.
    """
    evidence = Evidence({key: entry for key, entry in results.items() if entry is not None})
    judged = []
    for statement in STATEMENTS:
        verdict = statement.rule.judge(evidence)
        judged.append(
            {
                "key": statement.key,
                "table": statement.table,
                "statement": statement.sentence,
                "source": statement.source,
                "verdict": verdict.state,
                "figures": verdict.figures,
            }
        )
    return judged
