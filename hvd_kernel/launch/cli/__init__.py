"""The command line of hvdrun: flags, configuration file, and what runs them."""
