"""Argument errors that a framework's own except clauses catch: Horovod raises the framework's class for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def raised_as(make: Callable[[str], ValueError]) -> Iterator[None]:
    """Replace a plain ValueError by what ``make`` returns for its message. Also a decorator.

    Derived classes, as NotInitialized and ConfigError, pass unchanged: they have a meaning of their own.

    Examples
    --------
    ::

        @raised_as(MxnetArgumentError)  # a ValueError and an MXNetError
        def alltoall(tensor, splits=None): ...
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise make(str(error)).with_traceback(error.__traceback__) from None
