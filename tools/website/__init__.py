"""Documentation site: its source folder, generated reference pages and pictures."""
