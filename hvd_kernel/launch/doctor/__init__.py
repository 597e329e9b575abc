"""Migration report: ``hvdrun doctor DIR`` lists what of a Horovod project runs unchanged, and what has to be changed.

Each kind of text has a function that returns its findings without inspecting this machine; ``project`` finds the texts.
"""
