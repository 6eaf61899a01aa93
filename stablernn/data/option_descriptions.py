"""Descriptions of options, which stand below them in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel


def add_descriptions(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the descriptions to the JSON Schema of a model: the ``json_schema_extra`` of its configuration."""
    for option, description in option_descriptions(model).items():
        schema["properties"][option]["description"] = description


@cache
def option_descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the description of each option of a model.

    The option ``use_attribute_docstrings`` of pydantic does the same at every import, where it takes a tenth of the
    start of a command that seldom needs them.

    Args:
        model: A class whose source is at hand.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for option, text in pairwise(definition.body):
            match option, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                    descriptions[name] = inspect.cleandoc(description)
    return descriptions
