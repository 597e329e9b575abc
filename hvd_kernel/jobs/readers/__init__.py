"""Job readers, from a platform's file, command line or environment to a JobSpec. ``jobs.formats`` lists them."""
