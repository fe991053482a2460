"""Configuration: one frozen model per component. Imports neither torch nor ray."""
