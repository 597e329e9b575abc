"""Job readers: a platform's file, line or environment -> JobSpec. ``jobs.formats`` has their table."""
