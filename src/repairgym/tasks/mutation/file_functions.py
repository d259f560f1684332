"""Functions of a file in the language that its suffix names."""

from repairgym.tasks.javascript.syntax import is_javascript, named_functions
from repairgym.tasks.mutation.operators import FunctionSpan, find_functions


def functions_in(path: str, source: str) -> list[FunctionSpan]:
    """Return the functions of a file, in source order; SyntaxError when it does not parse."""
    if not is_javascript(path):
        return find_functions(source)
    return [FunctionSpan(f.name, f.first_line, f.last_line, (0, 0)) for f in named_functions(path, source)]
