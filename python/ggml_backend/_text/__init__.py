"""Text: names on their way to C, patterns for names, and what is shown."""
