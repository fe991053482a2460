"""What this machine makes of sandboxes, as a client sees it: `journeyman bench sandbox`."""
