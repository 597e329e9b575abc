"""Migration report: ``hvdrun doctor DIR`` says what of a Horovod project runs as it is, and what needs which line.

Each kind of text has a function from it to findings, without a look at this machine; ``project`` finds the texts.
"""
