"""%hvd job plan: the tasks of a platform's file, as a table."""

from __future__ import annotations

from pathlib import Path

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options


def job(context: Context, options: Options) -> None:
    """Show the tasks of a platform's file as a table; nothing is started.

    Example: ``%hvd job plan polyaxonfile.yml``.

    Raises
    ------
    UsageError
        The line does not say ``plan`` and a file.
    JobError
        The file cannot be read; place and field are named.
    """
    words = options.arguments[1:]
    if len(words) != 2 or words[0] != "plan":  # noqa: PLR2004 - a verb and a file
        raise UsageError("%hvd job: write %hvd job plan FILE; %%hvdrun --job FILE runs a cell as the file says")
    from hvd_kernel.jobs.here import of_file  # noqa: PLC0415 - a kernel that reads no such file starts without them
    from hvd_kernel.jobs.plan import as_text, plan  # noqa: PLC0415 - as above

    context.writer().say(as_text(plan(of_file(Path(words[1])))) + "\n")
