"""The rank's shell: cells, requests, prompts, the debugger, stacks."""
