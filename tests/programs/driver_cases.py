"""Report the results of a driver's cases: a line of JSON each."""

import json
import traceback


def report_cases(*cases):
    for case in cases:
        try:
            result = case()
        except Exception as error:
            cause = error.__cause__
            result = {"raised": type(error).__name__, "text": str(error), "cause": type(cause).__name__, "args": []}
            result["args"] = list(map(str, getattr(cause, "args", ())))
            traceback.print_exc()
        print("RESULT " + json.dumps([case.__name__, result]), flush=True)
