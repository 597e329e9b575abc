"""The notebook's shell: completion, hints, prompts, transformation, escalation of interrupts."""
