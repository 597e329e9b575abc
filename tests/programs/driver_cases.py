"""Report the results of a driver's cases: a line of JSON each."""

import json
import traceback


def tell(*cases):
    for case in cases:
        try:
            told = case()
        except Exception as error:
            cause = error.__cause__
            told = {"raised": type(error).__name__, "text": str(error), "cause": type(cause).__name__, "args": []}
            told["args"] = list(map(str, getattr(cause, "args", ())))
            traceback.print_exc()
        print("TOLD " + json.dumps([case.__name__, told]), flush=True)
