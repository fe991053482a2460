"""The face that the `e2b` SDK knows: its control API, and inside each sandbox its processes and
files by Connect with JSON. What is served and what is not: docs/e2b.md."""
