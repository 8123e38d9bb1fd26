"""The sentences that stand under the fields of a class: Python forgets them, its source does not."""

import ast
import inspect
from textwrap import dedent


def field_sentences(cls: type) -> dict[str, str]:
    """The text under each field of a class that has one."""
    tree = ast.parse(dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if is_text and isinstance(field, ast.AnnAssign | ast.Assign):
            target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            assert isinstance(target, ast.Name)
            assert isinstance(below, ast.Expr)
            assert isinstance(below.value, ast.Constant)
            found[target.id] = inspect.cleandoc(str(below.value.value))
    return found
