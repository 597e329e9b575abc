"""The magic commands and the sub-commands of %hvd, a file for each concept; ``index`` and ``table`` list them."""
