"""Everything privileged: drivers that run sandboxes, root file systems, limits, set-up."""
