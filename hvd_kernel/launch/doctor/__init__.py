"""Migration report: ``hvdrun doctor DIR`` lists which parts of a Horovod project run unchanged, and which do not.

Each kind of text has a function that returns its findings without inspecting this machine; ``project`` finds the texts.
"""
